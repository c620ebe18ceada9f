//! What stays and what goes, carried out: pins, evictions, and images that are found damaged.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use slipway_slots::Digest;

use super::index::{Eviction, Index};
use super::{Cache, CacheError};

impl Cache {
    pub fn pin(&self, digest: &Digest, owner: &str, ttl: Option<Duration>) -> Result<(), CacheError> {
        let until = ttl.map(|ttl| {
            let ttl = SignedDuration::try_from(ttl).unwrap_or(SignedDuration::MAX);
            self.now().saturating_add(ttl).unwrap_or(Timestamp::MAX)
        });
        self.change(digest, |record| {
            record.pins.insert(owner.to_owned(), until);
        })
    }

    /// Taking a pin off that is not there is nothing.
    pub fn unpin(&self, digest: &Digest, owner: &str) -> Result<(), CacheError> {
        match self.change(digest, |record| {
            record.pins.remove(owner);
        }) {
            Err(CacheError::NotCached(_)) => Ok(()),
            changed => changed,
        }
    }

    /// Takes an image away, unless it stays. What is not there is gone already.
    pub fn evict(&self, digest: &Digest) -> Result<(), CacheError> {
        let mut index = self.index.lock();
        let Some(record) = index.image(digest) else {
            return Ok(());
        };
        if let Some(kept) = index.kept(record, self.now()) {
            return Err(CacheError::Kept {
                image: *digest,
                kept: kept.to_string(),
            });
        }
        self.carry_out(
            &mut index,
            &[Eviction::Image {
                digest: *digest,
                reason: "asked for".to_owned(),
            }],
        )
    }

    /// Takes away what has expired and what is too much; the images that went.
    pub fn sweep(&self) -> Result<Vec<Digest>, CacheError> {
        let free = self
            .store
            .free()
            .map_err(|error| CacheError::disk("asking for the disk's room", &error))?;
        let short = self.settings.margin.saturating_sub(free);
        let mut index = self.index.lock();
        let evictions = index.sweep(&self.settings.limits, short, self.now());
        self.carry_out(&mut index, &evictions)?;
        Ok(evictions
            .iter()
            .filter_map(|eviction| match eviction {
                Eviction::Image { digest, .. } => Some(*digest),
                Eviction::Loose { .. } => None,
            })
            .collect())
    }

    pub(super) fn carry_out(&self, index: &mut Index, evictions: &[Eviction]) -> Result<(), CacheError> {
        let failed = |error: io::Error| CacheError::disk("removing an image", &error);
        for eviction in evictions {
            match eviction {
                Eviction::Image { digest, reason } => {
                    tracing::info!(image = %digest, reason, "an image goes");
                    self.store.remove_record(digest).map_err(failed)?;
                    for blob in index.remove(digest) {
                        self.store.remove_blob(&blob).map_err(failed)?;
                    }
                }
                Eviction::Loose { digest } => {
                    self.store.remove_blob(digest).map_err(failed)?;
                    index.loose_gone(digest);
                }
            }
        }
        if !evictions.is_empty() {
            self.changed.send_modify(|changes| *changes += 1);
        }
        Ok(())
    }

    /// Reads every byte of an image again. One that is damaged is no image any more.
    pub async fn verify(self: &Arc<Self>, digest: &Digest) -> Result<bool, CacheError> {
        let Some(record) = self.image(digest) else {
            return Ok(false);
        };
        let _lease = self.lease(digest)?;
        for blob in record.blobs {
            let store = self.store.clone();
            let good = tokio::task::spawn_blocking(move || store.verify_blob(&blob).unwrap_or(false))
                .await
                .map_err(|_| CacheError::GivenUp)?;
            if !good {
                self.damaged(&blob.digest)?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A blob has other bytes than it should: every image that has it is no image any more, and is had again when it is
    /// ensured.
    pub(super) fn damaged(&self, blob: &Digest) -> Result<(), CacheError> {
        let failed = |error: io::Error| CacheError::disk("removing a damaged image", &error);
        let mut index = self.index.lock();
        let images: Vec<_> = index
            .images()
            .filter(|record| record.blobs.iter().any(|other| other.digest == *blob))
            .map(|record| record.digest)
            .collect();
        for image in images {
            tracing::error!(%image, %blob, "an image is damaged on disk and is no longer cached");
            self.store.remove_record(&image).map_err(failed)?;
            let record = index.image(&image).cloned();
            self.lost.lock().extend(record.map(|record| (image, record)));
            for loose in index.remove(&image) {
                let size = self.store.present(&loose);
                index.found_loose(loose, size);
            }
        }
        self.store.remove_blob(blob).map_err(failed)?;
        index.loose_gone(blob);
        drop(index);
        self.changed.send_modify(|changes| *changes += 1);
        Ok(())
    }
}
