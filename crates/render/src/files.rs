//! The files under `deploy/`: a clusterctl provider repository, one file for what ships by Helm only, and the Helm chart.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use slipway_runtime::{Package, PackageKind};

use super::{Bundle, Release, RenderError, chart, yaml};

/// The Cluster API contract every package implements.
const CONTRACT: &str = "v1beta2";

/// The release series there are; a new minor version adds itself. clusterctl upgrades only from versions that the newer
/// release's metadata still names.
const SERIES: &[(u64, u64)] = &[(0, 1)];

/// Every file by its path under `deploy/`.
pub fn files<'package>(
    packages: impl IntoIterator<Item = &'package Package>,
    release: &Release,
) -> Result<BTreeMap<PathBuf, String>, RenderError> {
    let bundles = Bundle::join(packages)?;
    let mut files = chart::files(&bundles, release);
    for bundle in &bundles {
        let components = yaml::documents(&bundle.objects(release));
        if bundle.kind == PackageKind::HelmOnly {
            files.insert(
                PathBuf::from("components").join(format!("{}.yaml", bundle.identity)),
                components,
            );
            continue;
        }
        if !names_registry(&release.image) {
            return Err(RenderError::Image {
                image: release.image.clone(),
            });
        }
        let folder = Path::new("clusterctl")
            .join(&bundle.identity)
            .join(&release.version);
        let name = format!("{}-components.yaml", bundle.kind.prefix());
        files.insert(folder.join(name), components);
        files.insert(folder.join("metadata.yaml"), metadata(&release.version)?);
        for (name, text) in &bundle.templates {
            files.insert(folder.join(name), (*text).to_owned());
        }
    }
    Ok(files)
}

/// Whether an image's name begins with a host, as container engines tell one from a user's name.
fn names_registry(image: &str) -> bool {
    image
        .split_once('/')
        .is_some_and(|(host, rest)| !rest.is_empty() && (host.contains(['.', ':']) || host == "localhost"))
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
    let mut series: BTreeSet<(u64, u64)> = SERIES.iter().copied().collect();
    series.insert((major, minor));
    let series: Vec<Value> = series
        .into_iter()
        .filter(|one| *one <= (major, minor))
        .map(|(major, minor)| json!({"major": major, "minor": minor, "contract": CONTRACT}))
        .collect();
    Ok(yaml::document(&json!({
        "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3",
        "kind": "Metadata",
        "releaseSeries": series,
    })))
}

/// A folder that a user's clusterctl installs from: the packages of one release, and a configuration that names them.
/// Releases that are there already stay, so that one can be upgraded to the next. `directory` is absolute: clusterctl
/// takes nothing else.
pub fn repository<'package>(
    packages: impl IntoIterator<Item = &'package Package>,
    release: &Release,
    directory: &Path,
) -> Result<BTreeMap<PathBuf, String>, RenderError> {
    let mut repository = BTreeMap::new();
    let mut providers = Vec::new();
    for (path, text) in files(packages, release)? {
        let Ok(path) = path.strip_prefix("clusterctl") else {
            continue;
        };
        let mut parts = path.iter().map(|part| part.to_string_lossy());
        if let (Some(identity), Some(_), Some(file)) = (parts.next(), parts.next(), parts.next())
            && let Some(kind) = PackageKind::CLUSTERCTL
                .into_iter()
                .find(|kind| file == format!("{}-components.yaml", kind.prefix()))
        {
            let name = identity.strip_prefix(&format!("{}-", kind.prefix()));
            let url = directory
                .join(identity.as_ref())
                .join("latest")
                .join(file.as_ref());
            providers.push(json!({
                "name": name.unwrap_or(&identity),
                "type": kind.clusterctl_type(),
                "url": url.to_string_lossy(),
            }));
        }
        repository.insert(path.to_owned(), text);
    }
    repository.insert(
        PathBuf::from("clusterctl.yaml"),
        yaml::document(&json!({"providers": providers})),
    );
    Ok(repository)
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

    /// Compares `deploy/` with rendered files. Cluster templates that people put beside components are not looked at.
    pub fn find(files: &BTreeMap<PathBuf, String>, directory: &Path) -> io::Result<Self> {
        Self::find_among(files, directory, |path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            path.starts_with("components")
                || path.starts_with("helm")
                || path.starts_with("monitoring")
                || path.starts_with("argocd")
                || path.starts_with("k9s")
                || (path.starts_with("clusterctl")
                    && (name == "metadata.yaml" || name.ends_with("-components.yaml")))
        })
    }

    /// Compares a folder with rendered files; files that `is_owned` and are not rendered are stale.
    pub fn find_among(
        files: &BTreeMap<PathBuf, String>,
        directory: &Path,
        is_owned: impl Fn(&Path) -> bool,
    ) -> io::Result<Self> {
        let mut drift = Self::default();
        for (path, rendered) in files {
            match fs::read_to_string(directory.join(path)) {
                Ok(found) if found == *rendered => {}
                Ok(_) => drift.changed.push(path.clone()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => drift.missing.push(path.clone()),
                Err(error) => return Err(error),
            }
        }
        for found in walk(directory)? {
            let path = found.strip_prefix(directory).unwrap_or(&found);
            if is_owned(path) && !files.contains_key(path) {
                drift.stale.push(path.to_owned());
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
