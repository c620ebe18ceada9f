//! The k3s that real hosts run: programs named in the environment, one for each minor version. None comes with the
//! project.

use std::{collections::BTreeMap, path::PathBuf, process::Command};

const PREFIX: &str = "SLIPWAY_K3S_1_";

/// One k3s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// As it calls itself, e.g. `v1.36.3+k3s1`.
    pub version: String,
    pub path: PathBuf,
}

/// What there is, by minor version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Releases {
    by_minor: BTreeMap<u32, Release>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReleaseError {
    #[error("{0} does not end with a minor version, as SLIPWAY_K3S_1_36 does")]
    Name(String),
    #[error("{name}={path} cannot be run: {detail}")]
    Program {
        name: String,
        path: String,
        detail: String,
    },
    #[error("{name}={path} is {found}, which is not a k3s of that minor version")]
    Version {
        name: String,
        path: String,
        found: String,
    },
}

impl Releases {
    /// What the environment names; asks each program for its version.
    pub fn from_environment() -> Result<Releases, ReleaseError> {
        Releases::named(std::env::vars())
    }

    /// What these variables name.
    pub fn named(variables: impl Iterator<Item = (String, String)>) -> Result<Releases, ReleaseError> {
        let mut by_minor = BTreeMap::new();
        for (name, path) in variables.filter(|(name, path)| name.starts_with(PREFIX) && !path.is_empty()) {
            let minor: u32 = name[PREFIX.len()..]
                .parse()
                .map_err(|_| ReleaseError::Name(name.clone()))?;
            let unusable = |detail: String| ReleaseError::Program {
                name: name.clone(),
                path: path.clone(),
                detail,
            };
            let output = Command::new(&path)
                .arg("--version")
                .output()
                .map_err(|error| unusable(error.to_string()))?;
            if !output.status.success() {
                return Err(unusable(output.status.to_string()));
            }
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            // It calls itself what its file is called.
            let version = said
                .lines()
                .find_map(|line| line.split_once(" version ")?.1.split_whitespace().next())
                .filter(|version| version.starts_with(&format!("v1.{minor}.")));
            let Some(version) = version else {
                let found = said.lines().next().unwrap_or_default().to_owned();
                return Err(ReleaseError::Version { name, path, found });
            };
            let release = Release {
                version: version.to_owned(),
                path: path.into(),
            };
            by_minor.insert(minor, release);
        }
        Ok(Releases { by_minor })
    }

    pub fn is_empty(&self) -> bool {
        self.by_minor.is_empty()
    }

    /// All, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Release> {
        self.by_minor.values()
    }

    pub fn newest(&self) -> Option<&Release> {
        self.iter().next_back()
    }

    /// Releases of minor versions that follow one another, as an upgrade takes them; the longest way to the newest.
    pub fn upgrades(&self) -> Vec<&Release> {
        let mut way: Vec<(u32, &Release)> = Vec::new();
        for (minor, release) in self.by_minor.iter().rev() {
            if way.last().is_some_and(|(later, _)| minor + 1 != *later) {
                break;
            }
            way.push((*minor, release));
        }
        way.into_iter().rev().map(|(_, release)| release).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    use super::*;

    fn program(folder: &Path, version: &str) -> String {
        let path = folder.join(version);
        let text = format!("#!/bin/sh\necho 'k3s version {version} (00000000)'\necho 'go version go1'\n");
        fs::write(&path, text).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be run");
        path.display().to_string()
    }

    fn named(variables: &[(&str, &str)]) -> Result<Releases, ReleaseError> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Releases::named(variables)
    }

    #[test]
    fn releases_are_what_the_environment_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths =
            ["v1.36.3+k3s1", "v1.35.7+k3s1", "v1.33.1+k3s1"].map(|version| program(folder.path(), version));
        let releases = named(&[
            ("PATH", "/bin"),
            ("SLIPWAY_K3S_1_36", &paths[0]),
            ("SLIPWAY_K3S_1_35", &paths[1]),
            ("SLIPWAY_K3S_1_33", &paths[2]),
            ("SLIPWAY_K3S_1_34", ""),
        ])
        .expect("they are read");
        let versions = |found: Vec<&Release>| -> Vec<String> {
            found.into_iter().map(|release| release.version.clone()).collect()
        };
        assert_eq!(
            versions(releases.iter().collect()),
            ["v1.33.1+k3s1", "v1.35.7+k3s1", "v1.36.3+k3s1"]
        );
        assert_eq!(versions(releases.upgrades()), ["v1.35.7+k3s1", "v1.36.3+k3s1"]);
        assert_eq!(releases.newest().expect("one").version, "v1.36.3+k3s1");
        assert!(named(&[("PATH", "/bin")]).expect("none").is_empty());
    }

    #[test]
    fn what_is_no_k3s_of_that_minor_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = program(folder.path(), "v1.36.3+k3s1");
        let wrong = |name: &str, path: &str| named(&[(name, path)]).expect_err("it is refused").to_string();
        assert_eq!(
            wrong("SLIPWAY_K3S_1_X", &path),
            "SLIPWAY_K3S_1_X does not end with a minor version, as SLIPWAY_K3S_1_36 does"
        );
        assert!(wrong("SLIPWAY_K3S_1_35", &path).contains("not a k3s of that minor version"));
        assert!(wrong("SLIPWAY_K3S_1_36", "/nowhere/k3s").contains("/nowhere/k3s cannot be run"));
    }
}
