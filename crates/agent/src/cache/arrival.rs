//! How an image comes: its digest is found out, its room reserved, its blobs fetched once for everybody who waits.

use std::sync::{Arc, Weak};

use slipway_slots::Digest;
use slipway_slots::manifest::Blob;
use tokio::sync::{oneshot, watch};

use super::download::{self, Download, Meter, Progress};
use super::failpoint::ServiceFailpoint;
use super::manifest::{self, Read};
use super::source::{BlobSource, SourceError};
use super::{Cache, CacheError, Ensure, TagPolicy};

/// An image on its way; everybody who needs it waits for the same one.
#[derive(Clone)]
pub(super) struct Arrival {
    flight: u64,
    progress: watch::Receiver<Progress>,
    result: watch::Receiver<Option<Result<(), CacheError>>>,
    waiting: Weak<Waiting>,
}

/// Everybody who waits holds it; the download ends with the last of them.
struct Waiting(#[expect(dead_code, reason = "its end is the message")] oneshot::Sender<()>);

impl Cache {
    /// What the tag means, by the policy.
    async fn resolve(&self, ensure: &Ensure) -> Result<Digest, CacheError> {
        if let Some(digest) = ensure.digest {
            return Ok(digest);
        }
        let name = ensure.name.clone().unwrap_or_default();
        let known = self.index.lock().resolve(&name);
        if let (TagPolicy::PreferCache, Some(digest)) = (ensure.tag_policy, known) {
            return Ok(digest);
        }
        let mut reasons = Vec::new();
        let mut answered = false;
        // Mirrors first, the registry itself last.
        for source in ensure.sources.iter().filter(|source| !source.is_peer()) {
            let answer = tokio::time::timeout(self.settings.waits.stall, source.resolve_tag()).await;
            let reason = match answer {
                Ok(Ok(digest)) => return Ok(digest),
                Ok(Err(error)) => {
                    answered = matches!(error, SourceError::Absent | SourceError::Denied(_));
                    error.to_string()
                }
                Err(_) => {
                    answered = false;
                    "does not answer".to_owned()
                }
            };
            reasons.push(format!("{} {reason}", source.name()));
        }
        // When the registry itself says no, what the tag meant once does not count.
        known.filter(|_| !answered).ok_or_else(|| CacheError::UnknownTag {
            name,
            reason: if reasons.is_empty() {
                "no registry is named".to_owned()
            } else {
                reasons.join("; ")
            },
        })
    }

    /// Sees to it that an image is usable; `report` is told how far it is.
    pub async fn ensure(
        self: &Arc<Self>,
        ensure: Ensure,
        report: impl Fn(Progress) + Send,
    ) -> Result<Digest, CacheError> {
        let digest = self.resolve(&ensure).await?;
        if ensure.verify {
            self.verify(&digest).await?;
        }
        if self.image(&digest).is_none() {
            self.arrive(digest, &ensure, report).await?;
        }
        let now = self.now();
        let named = ensure.name.as_ref().map(|name| {
            let at = self.index.lock().name_time(name, now);
            (name.clone(), at)
        });
        let ttl = ensure.ttl.or(self.settings.default_ttl).map(|ttl| ttl.as_secs());
        self.change(&digest, |record| {
            record.last_used = now;
            record.ttl = ttl;
            record.names.extend(named);
            if let Some(owner) = &ensure.pin {
                record.pins.insert(owner.clone(), None);
            }
        })?;
        Ok(digest)
    }

    /// Joins the download of an image, or begins it.
    async fn arrive(
        self: &Arc<Self>,
        digest: Digest,
        ensure: &Ensure,
        report: impl Fn(Progress) + Send,
    ) -> Result<(), CacheError> {
        let (mut arrival, _waiting) = {
            let mut arrivals = self.arrivals.lock();
            // It may have come while we waited for the lock.
            if self.image(&digest).is_some() {
                return Ok(());
            }
            let joined = arrivals
                .get(&digest)
                .and_then(|arrival| Some((arrival.clone(), arrival.waiting.upgrade()?)));
            match joined {
                Some(joined) => joined,
                None => {
                    let (arrival, waiting) = self.begin(digest, ensure);
                    arrivals.insert(digest, arrival.clone());
                    (arrival, waiting)
                }
            }
        };
        loop {
            if let Some(result) = arrival.result.borrow_and_update().clone() {
                // The last bytes and the end may have come together.
                report(*arrival.progress.borrow_and_update());
                return result;
            }
            tokio::select! {
                changed = arrival.result.changed() => changed.map_err(|_| CacheError::GivenUp)?,
                Ok(()) = arrival.progress.changed() => {
                    let progress = *arrival.progress.borrow_and_update();
                    report(progress);
                }
            }
        }
    }

    /// The download goes on as long as anybody waits for it.
    fn begin(self: &Arc<Self>, digest: Digest, ensure: &Ensure) -> (Arrival, Arc<Waiting>) {
        let meter = Meter::default();
        let (sender, result) = watch::channel(None);
        let (alive, nobody_waits) = oneshot::channel();
        let waiting = Arc::new(Waiting(alive));
        let flight = self.flight(digest);
        let arrival = Arrival {
            flight: flight.number,
            progress: meter.subscribe(),
            result,
            waiting: Arc::downgrade(&waiting),
        };
        let (cache, sources) = (self.clone(), ensure.sources.clone());
        tokio::spawn(async move {
            let result = tokio::select! {
                result = cache.fetch(digest, flight.number, &sources, &meter) => result,
                _ = nobody_waits => Err(CacheError::GivenUp),
            };
            drop(flight);
            let _ = sender.send(Some(result));
        });
        (arrival, waiting)
    }

    /// Notes that an image is on its way, until the value is dropped.
    pub(super) fn flight(self: &Arc<Self>, digest: Digest) -> InFlight {
        InFlight {
            number: self.index.lock().begin_flight(digest),
            cache: self.clone(),
            digest,
        }
    }

    async fn fetch(
        self: &Arc<Self>,
        digest: Digest,
        flight: u64,
        sources: &[Arc<dyn BlobSource>],
        meter: &Meter,
    ) -> Result<(), CacheError> {
        let _permit = self.limit.acquire().await.map_err(|_| CacheError::GivenUp)?;
        let (manifests, image) = self.read_manifests(digest, sources).await?;
        let held: Vec<_> = manifests
            .iter()
            .map(|bytes| Blob {
                digest: Digest::of(bytes),
                size: bytes.len() as u64,
            })
            .collect();
        let blobs: Vec<_> = held.iter().chain(&image.blobs).copied().collect();
        meter.total(blobs.iter().map(|blob| blob.size).sum());
        self.reserve(flight, &blobs)?;
        self.store.reached(ServiceFailpoint::Reserved);
        for bytes in &manifests {
            self.store
                .add_bytes(bytes)
                .map_err(|error| CacheError::disk("writing a manifest", &error))?;
            meter.present(bytes.len() as u64);
        }
        let download = Download {
            store: &self.store,
            sources,
            waits: self.settings.waits,
            suspects: &self.suspects,
            meter,
        };
        for blob in &image.blobs {
            let lock = self.blobs.lock().entry(blob.digest).or_default().clone();
            let _one = lock.lock().await;
            download
                .run(*blob, |bytes| self.index.lock().allocated(flight, bytes))
                .await?;
        }
        self.admit(digest, flight, blobs, &image)
    }

    /// The manifests that lead to the image for this host, outermost first.
    pub(super) async fn read_manifests(
        &self,
        digest: Digest,
        sources: &[Arc<dyn BlobSource>],
    ) -> Result<(Vec<bytes::Bytes>, manifest::Image), CacheError> {
        let mut manifests = Vec::new();
        let mut next = digest;
        // An index may name an index; more than that is a joke.
        for _ in 0..3 {
            let held = self.store.blob_size(&next).and_then(|size| {
                self.store
                    .read_blob(&Blob { digest: next, size })
                    .ok()
                    .filter(|_| size <= manifest::MAX_MANIFEST)
            });
            let bytes = match held {
                Some(bytes) => bytes::Bytes::from(bytes),
                None => download::manifest(&next, sources, &self.settings.waits, &self.suspects).await?,
            };
            let read = manifest::read(&bytes, &self.settings.architecture).map_err(|problem| {
                CacheError::NotUsable {
                    image: digest.to_string(),
                    problem: problem.to_string(),
                }
            })?;
            manifests.push(bytes);
            match read {
                Read::Image(image) => return Ok((manifests, image)),
                Read::Index(blob) => next = blob.digest,
            }
        }
        Err(CacheError::NotUsable {
            image: digest.to_string(),
            problem: "its indexes name each other".to_owned(),
        })
    }

    /// Room first, then the first byte.
    pub(super) fn reserve(&self, flight: u64, blobs: &[Blob]) -> Result<(), CacheError> {
        let free = self
            .store
            .free()
            .map_err(|error| CacheError::disk("asking for the disk's room", &error))?
            .saturating_sub(self.settings.margin);
        let mut index = self.index.lock();
        index.keep_for_flight(flight, blobs.iter().map(|blob| blob.digest));
        let need = index.need(blobs, |blob| self.store.present(blob));
        let evictions = index.make_room(need, &self.settings.limits, free, self.now())?;
        self.carry_out(&mut index, &evictions)?;
        index.reserve(flight, need);
        Ok(())
    }
}

/// An image on its way. However that ends: it is no longer under way, and what it left on disk is known.
pub(super) struct InFlight {
    pub number: u64,
    cache: Arc<Cache>,
    digest: Digest,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let cache = &self.cache;
        {
            // Another download of the image may have begun since nobody waited for this one.
            let mut arrivals = cache.arrivals.lock();
            let ours = arrivals
                .get(&self.digest)
                .is_some_and(|arrival| arrival.flight == self.number);
            if ours {
                arrivals.remove(&self.digest);
            }
        }
        let mut index = cache.index.lock();
        for blob in index.end_flight(self.number) {
            match cache.store.present(&blob) {
                // Nothing came: the room that the disk promised is given back.
                0 => {
                    if let Err(error) = cache.store.drop_partial(&blob) {
                        tracing::warn!(%blob, "removing an empty download: {error}");
                    }
                }
                size => index.found_loose(blob, size),
            }
        }
    }
}
