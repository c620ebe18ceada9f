//! The addresses that this host holds, as far as it was ordered to: on disk, because the kernel keeps them when the agent ends and
//! drops them when the machine does.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::cache::replace_file;

pub(super) struct Addresses {
    path: PathBuf,
    held: Mutex<Held>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct Held {
    /// The kernel's run in which they were set.
    boot: String,
    addresses: BTreeSet<String>,
}

impl Addresses {
    pub fn open(state: &Path, boot: &str) -> io::Result<Self> {
        let path = state.join("addresses.json");
        let read = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => serde_json::from_slice::<Held>(&read?).ok(),
        };
        let empty = Held {
            boot: boot.to_owned(),
            addresses: BTreeSet::new(),
        };
        let held = read.filter(|held| held.boot == boot).unwrap_or(empty);
        Ok(Self {
            path,
            held: Mutex::new(held),
        })
    }

    pub fn list(&self) -> Vec<String> {
        self.held.lock().addresses.iter().cloned().collect()
    }

    /// Notes that an address is held, or no longer.
    pub fn set(&self, address: &str, held: bool) -> io::Result<()> {
        let mut current = self.held.lock();
        let mut next = current.clone();
        if held {
            next.addresses.insert(address.to_owned());
        } else {
            next.addresses.remove(address);
        }
        replace_file(&self.path, &serde_json::to_vec(&next)?)?;
        *current = next;
        Ok(())
    }
}
