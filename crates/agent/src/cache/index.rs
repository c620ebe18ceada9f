//! What the cache holds, who needs it, and what may go: pure. The files are `store`'s.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use slipway_slots::Digest;
use slipway_slots::manifest::Blob;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// A signed image for a slot.
    Disk,
    /// An image for containers.
    Container,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Container => "container",
        }
    }
}

/// One image that is usable: every blob is there and was verified when it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageRecord {
    pub digest: Digest,
    pub kind: Kind,
    /// The manifest first. Each once.
    pub blobs: Vec<Blob>,
    /// Tags that point here, and since when.
    #[serde(default)]
    pub names: BTreeMap<String, Timestamp>,
    /// Who needs it, and until when.
    #[serde(default)]
    pub pins: BTreeMap<String, Option<Timestamp>>,
    /// Seconds after the last use.
    #[serde(default)]
    pub ttl: Option<u64>,
    pub last_used: Timestamp,
    /// The engine's name for a disk image: the digest of its signed manifest's contents.
    #[serde(default)]
    pub slot_image: Option<Digest>,
}

impl ImageRecord {
    pub fn size(&self) -> u64 {
        self.blobs.iter().map(|blob| blob.size).sum()
    }

    pub fn expires(&self) -> Option<Timestamp> {
        let ttl = SignedDuration::from_secs(self.ttl?.min(1 << 40).cast_signed());
        Some(self.last_used.saturating_add(ttl).unwrap_or(Timestamp::MAX))
    }

    pub fn is_pinned(&self, now: Timestamp) -> bool {
        self.pins
            .values()
            .any(|until| until.is_none_or(|until| until > now))
    }
}

/// How much the cache may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Never more than this.
    pub quota: u64,
    /// Above this, images go until [`Limits::low`] is reached.
    pub high: u64,
    pub low: u64,
}

/// Everything that decides, in memory.
#[derive(Clone, Debug, Default)]
pub struct Index {
    images: BTreeMap<Digest, ImageRecord>,
    /// Readers at work: an image is written to a slot, exported, delivered.
    leases: BTreeMap<Digest, usize>,
    /// Images of slots, by the engine's name for them: the one that runs and the one that can take over.
    slots: BTreeMap<Digest, String>,
    /// Images on their way, from a registry or a bundle, by number: one image may come both ways at once.
    flights: BTreeMap<u64, Flight>,
    next_flight: u64,
    /// Blobs on disk that belong to no image: of downloads that were interrupted. With their size, complete or not.
    loose: BTreeMap<Digest, u64>,
}

#[derive(Clone, Debug)]
struct Flight {
    image: Digest,
    /// Counted against the quota until the image is there.
    reserved: u64,
    /// Of them, what the disk has not given yet.
    outstanding: u64,
    blobs: BTreeSet<Digest>,
}

/// What an image that arrives takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// All of its blobs that no cached image has.
    pub quota: u64,
    /// Of them, what is not on the disk yet.
    pub disk: u64,
}

/// Why an image stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepReason {
    Pinned(Vec<String>),
    InUse,
    Slot(String),
    Arriving,
}

impl std::fmt::Display for KeepReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pinned(owners) => write!(f, "pinned by {}", owners.join(", ")),
            Self::InUse => write!(f, "in use"),
            Self::Slot(slot) => write!(f, "the image of slot {slot}"),
            Self::Arriving => write!(f, "being downloaded"),
        }
    }
}

/// Something that goes, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Eviction {
    Image {
        digest: Digest,
        reason: String,
    },
    /// A blob of an interrupted download.
    Loose {
        digest: Digest,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no room for {needed} bytes: {available} can be had, {kept} are kept for images that are pinned, in use or in slots; unpin images or raise the cache's quota"
)]
pub struct NoRoom {
    pub needed: u64,
    pub available: u64,
    pub kept: u64,
}

impl Index {
    pub fn images(&self) -> impl Iterator<Item = &ImageRecord> {
        self.images.values()
    }

    pub fn image(&self, digest: &Digest) -> Option<&ImageRecord> {
        self.images.get(digest)
    }

    pub fn insert(&mut self, mut record: ImageRecord) {
        for blob in &record.blobs {
            self.loose.remove(&blob.digest);
        }
        // A tag points to one image: the one it was given to last, in whichever order they are read from disk.
        for other in self.images.values_mut() {
            if other.digest != record.digest {
                let later = |name: &String, at: &Timestamp| record.names.get(name).is_none_or(|new| at > new);
                other.names.retain(|name, at| later(name, at));
                record.names.retain(|name, _| !other.names.contains_key(name));
            }
        }
        self.images.insert(record.digest, record);
    }

    /// The blobs that nobody needs any more.
    pub fn remove(&mut self, digest: &Digest) -> Vec<Digest> {
        let Some(record) = self.images.remove(digest) else {
            return Vec::new();
        };
        let needed = self.needed_blobs();
        record
            .blobs
            .iter()
            .map(|blob| blob.digest)
            .filter(|blob| !needed.contains(blob))
            .collect()
    }

    fn needed_blobs(&self) -> BTreeSet<Digest> {
        let images = self
            .images
            .values()
            .flat_map(|record| record.blobs.iter().map(|blob| blob.digest));
        let flights = self
            .flights
            .values()
            .flat_map(|flight| flight.blobs.iter().copied());
        images.chain(flights).collect()
    }

    /// Sizes of the blobs of cached images, each once.
    fn image_blobs(&self) -> BTreeMap<Digest, u64> {
        self.images
            .values()
            .flat_map(|record| record.blobs.iter().map(|blob| (blob.digest, blob.size)))
            .collect()
    }

    /// What a tag means, as far as is known here: the latest image it pointed to.
    pub fn resolve(&self, name: &str) -> Option<Digest> {
        self.images
            .values()
            .filter_map(|record| Some((record.names.get(name)?, record.digest)))
            .max()
            .map(|(_, digest)| digest)
    }

    /// When a tag is said to point somewhere: after everything else it pointed to, also when the clock went back.
    pub fn name_time(&self, name: &str, now: Timestamp) -> Timestamp {
        let latest = self
            .images
            .values()
            .filter_map(|record| record.names.get(name))
            .max();
        latest.map_or(now, |latest| {
            let next = latest.saturating_add(SignedDuration::from_millis(1));
            now.max(next.unwrap_or(Timestamp::MAX))
        })
    }

    pub fn found_loose(&mut self, digest: Digest, size: u64) {
        self.loose.insert(digest, size);
    }

    pub fn loose_gone(&mut self, digest: &Digest) {
        self.loose.remove(digest);
    }

    pub fn lease(&mut self, digest: Digest) {
        *self.leases.entry(digest).or_default() += 1;
    }

    pub fn release(&mut self, digest: &Digest) {
        if let Some(count) = self.leases.get_mut(digest) {
            *count -= 1;
            if *count == 0 {
                self.leases.remove(digest);
            }
        }
    }

    pub fn set_slots(&mut self, slots: BTreeMap<Digest, String>) {
        self.slots = slots;
    }

    /// An image is on its way from now on; the number it goes by.
    pub fn begin_flight(&mut self, image: Digest) -> u64 {
        self.next_flight += 1;
        let flight = Flight {
            image,
            reserved: 0,
            outstanding: 0,
            blobs: BTreeSet::new(),
        };
        self.flights.insert(self.next_flight, flight);
        self.next_flight
    }

    /// Blobs of an image that is arriving are kept from now on, whatever else goes.
    pub fn keep_for_flight(&mut self, flight: u64, blobs: impl IntoIterator<Item = Digest>) {
        if let Some(flight) = self.flights.get_mut(&flight) {
            flight.blobs.extend(blobs);
        }
    }

    /// What a flight takes; the room was made before.
    pub fn reserve(&mut self, flight: u64, need: Need) {
        if let Some(flight) = self.flights.get_mut(&flight) {
            (flight.reserved, flight.outstanding) = (need.quota, need.disk);
        }
    }

    /// The disk has given so much of it.
    pub fn allocated(&mut self, flight: u64, bytes: u64) {
        if let Some(flight) = self.flights.get_mut(&flight) {
            flight.outstanding = flight.outstanding.saturating_sub(bytes);
        }
    }

    /// What an image of these blobs takes; `present` tells how much of one is on disk.
    pub fn need(&self, blobs: &[Blob], present: impl Fn(&Digest) -> u64) -> Need {
        let cached = self.image_blobs();
        let mut need = Need::default();
        for blob in blobs.iter().filter(|blob| !cached.contains_key(&blob.digest)) {
            need.quota += blob.size;
            need.disk += blob.size.saturating_sub(present(&blob.digest));
        }
        need
    }

    /// A flight has ended. The blobs that no image and no other flight has: what is there of them is told with
    /// [`Index::found_loose`].
    pub fn end_flight(&mut self, flight: u64) -> Vec<Digest> {
        let Some(flight) = self.flights.remove(&flight) else {
            return Vec::new();
        };
        let needed = self.needed_blobs();
        flight
            .blobs
            .into_iter()
            .filter(|blob| !needed.contains(blob))
            .collect()
    }

    pub fn reserved(&self) -> u64 {
        self.flights.values().map(|flight| flight.reserved).sum()
    }

    /// Bytes on disk, but for those of images that are arriving: they are reserved.
    pub fn used(&self) -> u64 {
        let images: u64 = self.image_blobs().values().sum();
        let arriving = |digest: &Digest| self.flights.values().any(|flight| flight.blobs.contains(digest));
        let loose = self.loose.iter().filter(|(digest, _)| !arriving(digest));
        images + loose.map(|(_, size)| size).sum::<u64>()
    }

    pub fn kept(&self, record: &ImageRecord, now: Timestamp) -> Option<KeepReason> {
        if record.is_pinned(now) {
            return Some(KeepReason::Pinned(record.pins.keys().cloned().collect()));
        }
        if self.leases.contains_key(&record.digest) {
            return Some(KeepReason::InUse);
        }
        let slot = record.slot_image.and_then(|image| self.slots.get(&image));
        if let Some(slot) = slot {
            return Some(KeepReason::Slot(slot.clone()));
        }
        self.flights
            .values()
            .any(|flight| flight.image == record.digest)
            .then_some(KeepReason::Arriving)
    }

    /// What may go, the first to go first: what nobody will finish, what has expired, then what was used longest ago.
    fn candidates(&self, now: Timestamp) -> Vec<Eviction> {
        let needed = self.needed_blobs();
        let mut evictions: Vec<_> = self
            .loose
            .keys()
            .filter(|digest| !needed.contains(*digest))
            .map(|digest| Eviction::Loose { digest: *digest })
            .collect();
        let mut images: Vec<_> = self
            .images
            .values()
            .filter(|record| self.kept(record, now).is_none())
            .map(|record| {
                let expired = record.expires().is_some_and(|expires| expires <= now);
                (!expired, record.last_used, record.digest)
            })
            .collect();
        images.sort_unstable();
        evictions.extend(
            images
                .into_iter()
                .map(|(current, last_used, digest)| Eviction::Image {
                    digest,
                    reason: if current {
                        format!("last used {last_used}, and room is needed")
                    } else {
                        "its time is over".to_owned()
                    },
                }),
        );
        evictions
    }

    /// Takes an eviction out of this copy; the bytes that it frees.
    fn apply(&mut self, eviction: &Eviction) -> u64 {
        match eviction {
            Eviction::Loose { digest } => self.loose.remove(digest).unwrap_or_default(),
            Eviction::Image { digest, .. } => {
                let sizes = self.image_blobs();
                self.remove(digest)
                    .iter()
                    .map(|blob| sizes.get(blob).copied().unwrap_or_default())
                    .sum()
            }
        }
    }

    /// What must go so that an image has its place under the quota and on the disk. Nothing goes when it would not be
    /// enough. The image's flight has begun and reserved nothing yet.
    pub fn make_room(
        &self,
        need: Need,
        limits: &Limits,
        free_on_disk: u64,
        now: Timestamp,
    ) -> Result<Vec<Eviction>, NoRoom> {
        let mut after = self.clone();
        let mut free = free_on_disk;
        let mut evictions = Vec::new();
        let room = |index: &Self, free: u64| {
            let outstanding: u64 = index.flights.values().map(|flight| flight.outstanding).sum();
            let quota = limits.quota.saturating_sub(index.used() + index.reserved());
            // In bytes of the quota, so that there is one number to tell.
            quota.min((free.saturating_sub(outstanding)).saturating_add(need.quota - need.disk))
        };
        for eviction in self.candidates(now) {
            if room(&after, free) >= need.quota {
                return Ok(evictions);
            }
            free += after.apply(&eviction);
            evictions.push(eviction);
        }
        let available = room(&after, free);
        if available >= need.quota {
            return Ok(evictions);
        }
        Err(NoRoom {
            needed: need.quota,
            available,
            kept: after.used(),
        })
    }

    /// What goes without being asked: what has expired, and what was used longest ago while the cache is above its high
    /// watermark or the disk is `short` of bytes that others need.
    pub fn sweep(&self, limits: &Limits, short: u64, now: Timestamp) -> Vec<Eviction> {
        let mut after = self.clone();
        let mut freed = 0;
        let over = after.used() > limits.high;
        let mut evictions = Vec::new();
        for eviction in self.candidates(now) {
            let expired = match &eviction {
                Eviction::Image { digest, .. } => self.images[digest]
                    .expires()
                    .is_some_and(|expires| expires <= now),
                Eviction::Loose { .. } => false,
            };
            if expired || (over && after.used() > limits.low) || freed < short {
                freed += after.apply(&eviction);
                evictions.push(eviction);
            }
        }
        evictions
    }
}
