//! The maintenance lock: a file that a person makes on the host, and that outlives every restart.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cache::{replace_file, sync_directory};

/// Who works on the host, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maintenance {
    pub by: String,
    pub reason: String,
    pub since: Timestamp,
}

fn place(state: &Path) -> PathBuf {
    state.join("maintenance.json")
}

impl Maintenance {
    /// None when nobody does. A lock that cannot be read is one: somebody meant it.
    pub fn read(state: &Path) -> Option<Self> {
        match fs::read(place(state)) {
            Ok(bytes) => Some(serde_json::from_slice(&bytes).unwrap_or_else(|_| Self {
                by: "somebody".to_owned(),
                reason: "the lock cannot be read".to_owned(),
                since: Timestamp::UNIX_EPOCH,
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(Self {
                by: "somebody".to_owned(),
                reason: format!("the lock cannot be read: {error}"),
                since: Timestamp::UNIX_EPOCH,
            }),
        }
    }

    pub fn hold(&self, state: &Path) -> io::Result<()> {
        fs::create_dir_all(state)?;
        replace_file(&place(state), &serde_json::to_vec(self)?)
    }

    pub fn release(state: &Path) -> io::Result<()> {
        match fs::remove_file(place(state)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| sync_directory(state)),
        }
    }
}
