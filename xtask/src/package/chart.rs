//! The chart as the archive that Helm installs, and a real Helm that installs it. The story that does it builds Helm first,
//! which is why it is not part of every test run.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use flate2::{Compression, GzBuilder};

use super::tar::{self, Entry};
use crate::bench::upstream::root;

const NAME: &str = "slipway";

/// Packs the chart in the folder of `slipway manifests`, and lets the story compare and install it.
pub fn pack_and_install(manifests: &Path, out: &Path) -> Result<()> {
    let archive = out.join(concat!("slipway-", env!("CARGO_PKG_VERSION"), ".tgz"));
    let content = pack(&manifests.join("helm").join(NAME))?;
    fs::write(&archive, content).with_context(|| format!("writing {}", archive.display()))?;
    println!("{}", archive.display());
    let status = Command::new(env!("CARGO"))
        .current_dir(root())
        .args([
            "test",
            "--locked",
            "--package",
            "slipway-tests",
            "--test",
            "stories",
            "helm_chart",
        ])
        .args(["--", "--nocapture"])
        .env("SLIPWAY_TEST_FULL", "1")
        .env("SLIPWAY_MANIFESTS", manifests)
        .env("SLIPWAY_CHART", &archive)
        .status()
        .context("running the chart's story")?;
    if !status.success() {
        bail!(
            "the chart is not what clusterctl installs, or cannot be installed; the story's message is above"
        );
    }
    Ok(())
}

/// A chart's archive holds its files under its name. The same files give the same archive.
fn pack(chart: &Path) -> Result<Vec<u8>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let place = chart.join(&folder);
        for entry in fs::read_dir(&place).with_context(|| format!("reading {}", place.display()))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                files.push((format!("{NAME}/{}", path.display()), fs::read(chart.join(&path))?));
            }
        }
    }
    files.sort();
    let entries: Vec<Entry<'_>> = files
        .iter()
        .map(|(path, content)| Entry {
            path,
            mode: 0o644,
            owner: 0,
            content,
        })
        .collect();
    let mut encoder = GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), Compression::default());
    encoder.write_all(&tar::archive(&entries))?;
    Ok(encoder.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_of_the_chart_is_whole_and_always_the_same() {
        let chart = root().join("deploy/helm").join(NAME);
        let archive = pack(&chart).expect("the chart can be read");
        assert_eq!(archive, pack(&chart).expect("and again"));
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let path = folder.path().join("chart.tgz");
        fs::write(&path, archive).expect("it can be written");
        let status = Command::new("tar")
            .arg("-xzf")
            .arg(&path)
            .arg("-C")
            .arg(folder.path())
            .status()
            .expect("tar is there");
        assert!(status.success());
        for name in ["Chart.yaml", "values.yaml", "templates/bootstrap-k3s.yaml"] {
            assert_eq!(
                fs::read(folder.path().join(NAME).join(name)).expect(name),
                fs::read(chart.join(name)).expect(name),
                "{name}"
            );
        }
    }
}
