//! kubectl and clusterctl for people: a folder of programs that know a cluster's configuration, for a `PATH`.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::parts::{Part, Parts};

/// The commands that a shell in front of the cluster offers.
#[derive(Clone, Debug)]
pub struct Tools {
    /// Goes in front of `PATH`.
    pub directory: PathBuf,
    /// What clusterctl reads unless `--config` names another: its providers and their folders.
    pub clusterctl_config: PathBuf,
}

impl Tools {
    /// Writes `bin/` and the place of clusterctl's configuration below `directory`.
    pub fn write(parts: &Parts, directory: &Path) -> io::Result<Self> {
        let (programs, settings) = (directory.join("bin"), directory.join("config"));
        let clusterctl_config = settings.join("cluster-api/clusterctl.yaml");
        fs::create_dir_all(&programs)?;
        fs::create_dir_all(settings.join("cluster-api"))?;
        let kubernetes = quoted(&parts.binary(Part::Kubernetes));
        script(
            &programs.join("kubectl"),
            &format!("exec {kubernetes} kubectl \"$@\""),
        )?;
        // A look for a newer clusterctl on the network would only cost time.
        script(
            &programs.join("clusterctl"),
            &format!(
                "export XDG_CONFIG_HOME={} CLUSTERCTL_DISABLE_VERSIONCHECK=true\nexec {} \"$@\"",
                quoted(&settings),
                quoted(&parts.binary(Part::Clusterctl))
            ),
        )?;
        Ok(Self {
            directory: programs,
            clusterctl_config,
        })
    }
}

fn script(path: &Path, lines: &str) -> io::Result<()> {
    fs::write(path, format!("#!/bin/sh\n{lines}\n"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// A path as one word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_whatever_is_in_it() {
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
