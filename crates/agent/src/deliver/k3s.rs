//! k3s' images folder: k3s imports every tar file in it when it starts, and while it runs. Files appear there whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use slipway_agent_api::{Class, Problem};
use slipway_slots::Digest;

use super::is_pinned;
use crate::cache::{Cache, sync_directory};

const PREFIX: &str = "slipway-";

/// `/var/lib/rancher/k3s/agent/images`
#[derive(Clone, Debug)]
pub struct K3sFolder(pub PathBuf);

impl K3sFolder {
    fn place(&self, digest: &Digest) -> PathBuf {
        let text = digest.to_string();
        self.0
            .join(format!("{PREFIX}{}.tar", text.trim_start_matches("sha256:")))
    }

    /// All of the image or nothing of it is in the folder. Again is nothing.
    pub fn deliver(&self, cache: &Arc<Cache>, digest: &Digest) -> Result<(), Problem> {
        fs::create_dir_all(&self.0).map_err(|error| problem(&self.0, &error))?;
        cache
            .export(&[*digest], &self.place(digest))
            .map_err(|error| error.problem())
    }

    /// Removes the files of images that nobody pins any more. Files of others are not ours.
    pub fn tidy(&self, cache: &Cache) -> Result<(), Problem> {
        let mut changed = false;
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let ours = name
                .to_str()
                .and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(".tar"))
                .and_then(|hex| format!("sha256:{hex}").parse::<Digest>().ok());
            if let Some(digest) = ours
                && !is_pinned(cache, &digest)
            {
                fs::remove_file(entry.path()).map_err(|error| problem(&self.0, &error))?;
                changed = true;
            }
        }
        if changed {
            sync_directory(&self.0).map_err(|error| problem(&self.0, &error))?;
        }
        Ok(())
    }
}

fn problem(folder: &Path, error: &std::io::Error) -> Problem {
    Problem::new(
        Class::Transient,
        "Delivery",
        format!("k3s' images folder {}: {error}", folder.display()),
    )
}
