//! The addresses that this host holds, as far as it was ordered to: on disk, because the kernel keeps them when the agent ends and
//! drops them when the machine does. And those that it holds in turn with others: in whose turn it is it takes part until it is released,
//! over every restart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::address::keeper::{Notes, Share};
use crate::address::turn::Role;
use crate::cache::replace_file;

pub(super) struct Addresses {
    path: PathBuf,
    held: Mutex<Held>,
    path_of_shares: PathBuf,
    /// By address.
    shares: Mutex<BTreeMap<String, Share>>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct Held {
    /// The kernel's run in which they were set.
    boot: String,
    addresses: BTreeSet<String>,
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => Ok(serde_json::from_slice(&read?).ok()),
    }
}

impl Addresses {
    pub fn open(state: &Path, boot: &str) -> io::Result<Self> {
        let path = state.join("addresses.json");
        let empty = Held {
            boot: boot.to_owned(),
            addresses: BTreeSet::new(),
        };
        let held = read::<Held>(&path)?
            .filter(|held| held.boot == boot)
            .unwrap_or(empty);
        let path_of_shares = state.join("addresses-in-turn.json");
        // One that cannot be read is not held: the others do.
        let shares = read(&path_of_shares)?.unwrap_or_default();
        Ok(Self {
            path,
            held: Mutex::new(held),
            path_of_shares,
            shares: Mutex::new(shares),
        })
    }

    pub fn list(&self) -> Vec<String> {
        self.held.lock().addresses.iter().cloned().collect()
    }

    /// Notes that an address is held, or no longer.
    pub fn set(&self, address: &str, held: bool) -> io::Result<()> {
        let mut current = self.held.lock();
        if current.addresses.contains(address) == held {
            return Ok(());
        }
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

    pub fn shares(&self) -> Vec<Share> {
        self.shares.lock().values().cloned().collect()
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Share>)) -> io::Result<()> {
        let mut current = self.shares.lock();
        let mut next = current.clone();
        change(&mut next);
        if *current != next {
            replace_file(&self.path_of_shares, &serde_json::to_vec(&next)?)?;
            *current = next;
        }
        Ok(())
    }

    /// Takes part. Who has been first once is never first again: the answer has the role that counts.
    pub fn take_part(&self, mut share: Share) -> io::Result<Share> {
        if let Some(known) = self.shares.lock().get(&share.address) {
            share.role = known.role;
        }
        self.change(|shares| {
            shares.insert(share.address.clone(), share.clone());
        })?;
        Ok(share)
    }

    pub fn take_no_part(&self, address: &str) -> io::Result<()> {
        self.change(|shares| {
            shares.remove(address);
        })
    }
}

impl Notes for Addresses {
    fn role(&self, address: &str, role: Role) -> io::Result<()> {
        self.change(|shares| {
            if let Some(share) = shares.get_mut(address) {
                share.role = role;
            }
        })
    }

    fn held(&self, address: &str, held: bool) {
        if let Err(error) = self.set(address, held) {
            tracing::warn!(address, "writing the held addresses: {error}");
        }
    }
}
