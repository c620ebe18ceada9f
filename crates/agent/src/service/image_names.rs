//! What orders call the images of slots. A slot carries the digest of its signed manifest, orders name the digest of a registry, and the
//! cache forgets what it no longer has: so the pair is on disk before a slot is written, and survives reboots and rollbacks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use slipway_slots::Digest;

use crate::cache::replace_file;

/// By the slots' name, what orders called it.
type Names = BTreeMap<Digest, BTreeSet<Digest>>;

pub(super) struct ImageNames {
    path: PathBuf,
    names: Mutex<Names>,
}

impl ImageNames {
    /// One that is damaged is empty: names are told again with the next order, and nothing unsafe follows from a missing one.
    pub fn open(state: &Path) -> io::Result<Self> {
        let path = state.join("image-names.json");
        let names = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Names::default(),
            read => serde_json::from_slice(&read?).unwrap_or_else(|error| {
                tracing::warn!("{} cannot be read and begins again: {error}", path.display());
                Names::default()
            }),
        };
        Ok(Self {
            path,
            names: Mutex::new(names),
        })
    }

    pub fn of(&self, image: &Digest) -> BTreeSet<Digest> {
        self.names.lock().get(image).cloned().unwrap_or_default()
    }

    /// Notes that orders call `image` so. Of the others those go that nothing on the host is about any more.
    pub fn add(&self, image: Digest, digest: Digest, needed: &BTreeSet<Digest>) -> io::Result<()> {
        let mut current = self.names.lock();
        if current.get(&image).is_some_and(|known| known.contains(&digest)) {
            return Ok(());
        }
        let mut next = current.clone();
        next.retain(|known, _| needed.contains(known) || *known == image);
        next.entry(image).or_default().insert(digest);
        replace_file(&self.path, &serde_json::to_vec(&next)?)?;
        *current = next;
        Ok(())
    }
}
