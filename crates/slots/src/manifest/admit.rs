//! Whether a host takes an image: decided before the first byte is written and before any slot is given up.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::Digest;

use super::{KeyRing, LABEL_SIZE, Manifest, SignedManifest, TrustError};

/// What a host says about itself when an image is offered.
#[derive(Clone, Debug)]
pub struct Expectation<'a> {
    pub keys: &'a KeyRing,
    pub compatible: &'a str,
    pub arch: &'a str,
    /// The anti-rollback floor.
    pub epoch: u64,
    /// The later of the clock and of anything that proves that this much time has passed: a clock that was set
    /// back does not revive an expired image.
    pub now: Timestamp,
    /// The partitions of the slot that would be written, with their sizes; the first carries the label.
    pub partitions: &'a [(String, u64)],
    /// Images that failed on this host, and why.
    pub quarantined: &'a BTreeMap<Digest, String>,
}

/// Why an image is not taken. Each is a decision, so each is final for this image on this host as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the image is not trusted: {0}")]
    Untrusted(#[from] TrustError),
    #[error("the image {image} expired on {not_after}; it is {now}")]
    Expired {
        image: String,
        not_after: Timestamp,
        now: Timestamp,
    },
    #[error("the image {image} is for {offered}; this host is {host}")]
    Incompatible {
        image: String,
        offered: String,
        host: String,
    },
    #[error("the image {image} is of epoch {offered}; this host takes none below {floor}")]
    Downgrade { image: String, offered: u64, floor: u64 },
    #[error(
        "the image {image} has {needed} bytes for partition {partition}; the slot has room for {available}"
    )]
    TooLarge {
        image: String,
        partition: String,
        needed: u64,
        available: u64,
    },
    #[error("the image {image} has partitions {offered}; the slot has {slot}")]
    Partitions {
        image: String,
        offered: String,
        slot: String,
    },
    #[error("the image {image} is quarantined on this host: {reason}")]
    Quarantined { image: String, reason: String },
}

impl Refusal {
    /// A short word for status and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Untrusted(_) => "Untrusted",
            Self::Expired { .. } => "Expired",
            Self::Incompatible { .. } => "Incompatible",
            Self::Downgrade { .. } => "Downgrade",
            Self::TooLarge { .. } => "TooLarge",
            Self::Partitions { .. } => "Partitions",
            Self::Quarantined { .. } => "Quarantined",
        }
    }
}

/// The manifest, if this host takes it.
pub fn admit(signed: &SignedManifest, host: &Expectation<'_>) -> Result<Manifest, Refusal> {
    let manifest = host.keys.verify(signed)?;
    let image = format!("{} {}", manifest.name, manifest.version);
    if let Some(reason) = host.quarantined.get(&manifest.id()) {
        return Err(Refusal::Quarantined {
            image,
            reason: reason.clone(),
        });
    }
    if manifest.not_after < host.now {
        return Err(Refusal::Expired {
            image,
            not_after: manifest.not_after,
            now: host.now,
        });
    }
    if !manifest.compatible.iter().any(|kind| kind == host.compatible) {
        return Err(Refusal::Incompatible {
            image,
            offered: manifest.compatible.join(", "),
            host: host.compatible.to_owned(),
        });
    }
    if manifest.arch != host.arch {
        return Err(Refusal::Incompatible {
            image,
            offered: manifest.arch,
            host: host.arch.to_owned(),
        });
    }
    if manifest.epoch < host.epoch {
        return Err(Refusal::Downgrade {
            image,
            offered: manifest.epoch,
            floor: host.epoch,
        });
    }
    let offered: Vec<_> = manifest
        .partitions
        .iter()
        .map(|partition| &partition.name)
        .collect();
    let slot: Vec<_> = host.partitions.iter().map(|(name, _)| name).collect();
    if offered != slot {
        let list = |names: &[&String]| {
            names
                .iter()
                .map(|name| name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        return Err(Refusal::Partitions {
            image,
            offered: list(&offered),
            slot: list(&slot),
        });
    }
    for (at, (partition, (_, size))) in manifest.partitions.iter().zip(host.partitions).enumerate() {
        let available = if at == 0 {
            size.saturating_sub(LABEL_SIZE as u64)
        } else {
            *size
        };
        if partition.size > available {
            return Err(Refusal::TooLarge {
                image,
                partition: partition.name.clone(),
                needed: partition.size,
                available,
            });
        }
    }
    Ok(manifest)
}
