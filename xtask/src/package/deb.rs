//! `cargo xtask package deb`: the node agent with its service, configuration and boot loader script as a Debian package.

use std::{fs, io::Write, path::Path};

use anyhow::{Context, Result, bail};
use flate2::{Compression, GzBuilder};

use super::{
    elf,
    static_build::{self, Target},
    tar::{Entry, archive},
    toolchain::Folders,
};
use crate::bench::peers::root;

/// Files of the repository and where they go.
const FILES: [(&str, &str); 3] = [
    (
        "crates/agent/package/slipway-agent.service",
        "usr/lib/systemd/system/slipway-agent.service",
    ),
    (
        "crates/agent/package/config.yaml",
        "usr/share/doc/slipway-agent/config.yaml",
    ),
    (
        "crates/agent/package/grub.cfg",
        "usr/share/doc/slipway-agent/grub.cfg",
    ),
];

/// Not started by the installation: a host is configured first.
const AFTER_INSTALLATION: &str = "#!/bin/sh\nset -e\nif [ -d /run/systemd/system ]; then systemctl daemon-reload; \
     systemctl try-restart slipway-agent.service || true; fi\n";

/// Builds the agent for these architectures and packs one package for each.
pub fn build(architectures: &[String], out: &Path) -> Result<()> {
    let folders = Folders::find()?;
    for target in static_build::targets(architectures)? {
        let program = static_build::build(target, &folders, "slipway-agent", "slipway-agent")?;
        let content = fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
        elf::check_static(&content, target.machine)
            .map_err(|reason| anyhow::anyhow!("{}: {reason}", program.display()))?;
        if let Some(folder) = folders.named_in(&content) {
            bail!("{} names {}", program.display(), folder.display());
        }
        let package = pack(target, &content)?;
        let version = env!("CARGO_PKG_VERSION");
        let path = out.join(format!("slipway-agent_{version}_{}.deb", target.architecture));
        fs::write(&path, package).with_context(|| format!("writing {}", path.display()))?;
        println!("{}: {:.1} MB static", path.display(), content.len() as f64 / 1e6);
    }
    Ok(())
}

fn pack(target: &Target, program: &[u8]) -> Result<Vec<u8>> {
    let mut files = vec![("usr/bin/slipway-agent", 0o755, program.to_vec())];
    for (from, to) in FILES {
        let path = root().join(from);
        let content = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        files.push((to, 0o644, content));
    }
    let installed: usize = files.iter().map(|(_, _, content)| content.len()).sum();
    let control = format!(
        "Package: slipway-agent\nVersion: {}\nArchitecture: {}\nMaintainer: Slipway <slipway@localhost>\n\
         Installed-Size: {}\nSection: admin\nPriority: optional\nRecommends: systemd\n\
         Description: keeps the A/B slots of a host\n Writes signed images into the slot that does not run, boots them, and\n \
         confirms the new system or returns to the old one.\n",
        env!("CARGO_PKG_VERSION"),
        target.architecture,
        installed.div_ceil(1024)
    );
    let control = archive(&[
        file("./control", 0o644, control.as_bytes()),
        file("./postinst", 0o755, AFTER_INSTALLATION.as_bytes()),
    ]);
    let names: Vec<String> = files.iter().map(|(path, ..)| format!("./{path}")).collect();
    let mut folders: Vec<String> = Vec::new();
    for name in &names {
        for (at, _) in name.match_indices('/').skip(1) {
            let folder = name[..=at].to_owned();
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    let mut entries: Vec<Entry<'_>> = folders.iter().map(|folder| file(folder, 0o755, b"")).collect();
    entries.extend(
        names
            .iter()
            .zip(&files)
            .map(|(name, (_, mode, content))| file(name, *mode, content)),
    );
    Ok(ar(&[
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", gzip(&control)?),
        ("data.tar.gz", gzip(&archive(&entries))?),
    ]))
}

fn file<'a>(path: &'a str, mode: u32, content: &'a [u8]) -> Entry<'a> {
    Entry {
        path,
        mode,
        owner: 0,
        content,
    }
}

/// The same bytes every time: no time, no name.
fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// The archive that a Debian package is.
fn ar(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let head = format!(
            "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n",
            0,
            0,
            0,
            100_644,
            content.len()
        );
        bytes.extend(head.as_bytes());
        bytes.extend(content);
        if content.len() % 2 == 1 {
            bytes.push(b'\n');
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn dpkg_reads_the_package() {
        let targets = static_build::targets(&[static_build::ARCHITECTURES[0].to_owned()]);
        let Ok(targets) = targets else {
            eprintln!("SKIPPED: this machine cannot build static programs");
            return;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent.deb");
        fs::write(&path, pack(targets[0], b"program").expect("packed")).expect("written");
        let dpkg = |option: &str| {
            let output = Command::new("dpkg-deb").arg(option).arg(&path).output();
            output.ok().map(|output| {
                assert!(
                    output.status.success(),
                    "{}",
                    String::from_utf8_lossy(&output.stderr)
                );
                String::from_utf8_lossy(&output.stdout).into_owned()
            })
        };
        let Some(info) = dpkg("--info") else {
            eprintln!("SKIPPED: dpkg-deb is not installed");
            return;
        };
        assert!(info.contains("Package: slipway-agent"), "{info}");
        let contents = dpkg("--contents").expect("dpkg");
        for (_, path) in FILES {
            assert!(contents.contains(path), "{contents}");
        }
        assert!(contents.contains("./usr/bin/slipway-agent"), "{contents}");
    }
}
