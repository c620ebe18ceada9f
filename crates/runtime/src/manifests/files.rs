//! The files under `deploy/`: a clusterctl provider repository, and one file for what ships by Helm only.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::{Bundle, Release, RenderError, yaml};
use crate::{Package, PackageKind};

/// The Cluster API contract every package implements.
const CONTRACT: &str = "v1beta2";

/// Every file by its path under `deploy/`.
pub fn files<'package>(
    packages: impl IntoIterator<Item = &'package Package>,
    release: &Release,
) -> Result<BTreeMap<PathBuf, String>, RenderError> {
    let mut files = BTreeMap::new();
    for bundle in Bundle::join(packages)? {
        let components = yaml::documents(&bundle.objects(release));
        if bundle.kind == PackageKind::HelmOnly {
            files.insert(
                PathBuf::from("components").join(format!("{}.yaml", bundle.identity)),
                components,
            );
            continue;
        }
        let folder = Path::new("clusterctl")
            .join(&bundle.identity)
            .join(&release.version);
        let name = format!("{}-components.yaml", bundle.kind.prefix());
        files.insert(folder.join(name), components);
        files.insert(folder.join("metadata.yaml"), metadata(&release.version)?);
    }
    Ok(files)
}

/// clusterctl's `metadata.yaml`: which contract each release series has.
fn metadata(version: &str) -> Result<String, RenderError> {
    let invalid = || RenderError::Version {
        version: version.to_owned(),
    };
    let mut numbers = version
        .strip_prefix('v')
        .ok_or_else(invalid)?
        .split('.')
        .map(str::parse::<u64>);
    let (Some(Ok(major)), Some(Ok(minor)), Some(_)) = (numbers.next(), numbers.next(), numbers.next()) else {
        return Err(invalid());
    };
    Ok(yaml::document(&json!({
        "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3",
        "kind": "Metadata",
        "releaseSeries": [{"major": major, "minor": minor, "contract": CONTRACT}],
    })))
}

/// How a folder differs from what would be rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    pub missing: Vec<PathBuf>,
    pub changed: Vec<PathBuf>,
    /// Rendered once, and no longer.
    pub stale: Vec<PathBuf>,
}

impl Drift {
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.changed.is_empty() && self.stale.is_empty()
    }

    /// Compares a folder with rendered files. Only folders that rendering owns are looked through for stale ones.
    pub fn find(files: &BTreeMap<PathBuf, String>, directory: &Path) -> io::Result<Self> {
        let mut drift = Self::default();
        for (path, rendered) in files {
            match fs::read_to_string(directory.join(path)) {
                Ok(found) if found == *rendered => {}
                Ok(_) => drift.changed.push(path.clone()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => drift.missing.push(path.clone()),
                Err(error) => return Err(error),
            }
        }
        for owned in ["clusterctl", "components"] {
            for found in walk(&directory.join(owned))? {
                let path = found.strip_prefix(directory).unwrap_or(&found).to_owned();
                let rendered = path.file_name().is_some_and(|name| {
                    let name = name.to_string_lossy();
                    owned == "components" || name == "metadata.yaml" || name.ends_with("-components.yaml")
                });
                if rendered && !files.contains_key(&path) {
                    drift.stale.push(path);
                }
            }
        }
        Ok(drift)
    }

    /// Makes the folder what is rendered; files that people put beside it (cluster templates) stay.
    pub fn repair(&self, files: &BTreeMap<PathBuf, String>, directory: &Path) -> io::Result<()> {
        for path in self.missing.iter().chain(&self.changed) {
            let target = directory.join(path);
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(target, &files[path])?;
        }
        for path in &self.stale {
            fs::remove_file(directory.join(path))?;
        }
        Ok(())
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (paths, what) in [
            (&self.missing, "missing"),
            (&self.changed, "changed"),
            (&self.stale, "no longer rendered"),
        ] {
            for path in paths {
                writeln!(formatter, "{}: {what}", path.display())?;
            }
        }
        Ok(())
    }
}

/// Every file below a folder; none if it is not there.
fn walk(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(walk(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
