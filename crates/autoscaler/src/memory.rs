//! What the controllers remember between reconciles and share: objects that gave no machine lately, how a NodePool's last
//! machines fared, and what was reported already. After a restart it is learnt again; nothing rests on it but who is tried first.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ApiResource, DynamicObject};
use parking_lot::Mutex;
use slipway_packing::model::RepairPolicy;
use slipway_runtime::Informer;

use crate::{
    api::ConfigMapKey, instances::Reference, management::Management, metrics::KarpenterMetrics,
    options::Options, repair, safety::Breaker, snapshot::Store,
};

/// How long an object that gave no machine is passed over, as Karpenter's providers have it.
pub const UNAVAILABLE_FOR: Duration = Duration::from_mins(3);

/// Beyond this many, what was said is forgotten and said again.
const MOST_REPORTED: usize = 20_000;

/// A kind of machine templates, and the watch on it.
type Templates = (ApiResource, Informer<DynamicObject>);

#[derive(Default)]
pub struct Memory {
    unavailable: Mutex<BTreeMap<Reference, (Timestamp, String)>>,
    breakers: Mutex<BTreeMap<String, Breaker>>,
    /// Claims whose outcome was counted, by uid.
    counted: Mutex<BTreeSet<String>>,
    reported: Mutex<BTreeSet<(String, String)>>,
    /// Watches on infrastructure machine templates, by group and kind.
    pub(crate) templates: Mutex<BTreeMap<(String, String), Templates>>,
    /// Read once, when the first node could be repaired.
    repair: OnceLock<Vec<RepairPolicy>>,
    pub(crate) management: Management,
    /// What planning reads, converted once for all who plan.
    pub(crate) store: Arc<Mutex<Store>>,
    /// Held by whoever makes claims, from the fresh read that it decides by until they are made: so limits hold.
    pub(crate) making: tokio::sync::Mutex<()>,
    pub(crate) metrics: KarpenterMetrics,
    /// Of NodePools and NodeClasses: what was last seen of what their claims go by.
    seen: Mutex<BTreeMap<String, String>>,
    pub(crate) prices: Mutex<Vec<(ConfigMapKey, Informer<ConfigMap>)>>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Memory {
    /// An object gave no machine: it is passed over for a while.
    pub fn note_unavailable(&self, object: &Reference, why: &str, now: Timestamp) {
        let lasts = SignedDuration::try_from(UNAVAILABLE_FOR).unwrap_or_default();
        let until = now.checked_add(lasts).unwrap_or(Timestamp::MAX);
        self.unavailable
            .lock()
            .insert(object.clone(), (until, why.to_owned()));
    }

    /// Why an object is passed over, if it is.
    pub fn unavailable(&self, object: &Reference, now: Timestamp) -> Option<String> {
        let mut unavailable = self.unavailable.lock();
        unavailable.retain(|_, (until, _)| *until > now);
        let (until, why) = unavailable.get(object)?;
        Some(format!("passed over until {until:.0}: {why}"))
    }

    /// A claim's machine registered, or was given up. Each claim counts once.
    pub fn note_outcome(&self, pool: &str, claim: &str, registered: bool) {
        if self.counted.lock().insert(claim.to_owned()) {
            self.breakers
                .lock()
                .entry(pool.to_owned())
                .or_default()
                .add(registered);
        }
    }

    /// A claim is gone.
    pub fn forget_claim(&self, claim: &str) {
        self.counted.lock().remove(claim);
    }

    pub fn breaker(&self, pool: &str) -> Breaker {
        self.breakers.lock().get(pool).cloned().unwrap_or_default()
    }

    /// Whether what matters of an object is something else than when it was last seen.
    pub fn is_new(&self, object: String, seen: String) -> bool {
        let known = self.seen.lock().insert(object, seen.clone());
        known != Some(seen)
    }

    /// The policies that nodes are repaired by; none where the gate is off.
    pub fn repair_policies(&self, options: &Options) -> Vec<RepairPolicy> {
        if !options.gates.node_repair {
            return Vec::new();
        }
        let read = || match &options.repair_policies {
            None => repair::usual(),
            Some(path) => repair::read(path).unwrap_or_else(|why| {
                tracing::error!(why, "No node is repaired");
                Vec::new()
            }),
        };
        self.repair.get_or_init(read).clone()
    }

    /// Whether this is the first time that something is said of an object.
    pub fn is_news(&self, object: &str, message: &str) -> bool {
        !self
            .reported
            .lock()
            .contains(&(object.to_owned(), message.to_owned()))
    }

    pub fn note_reported(&self, object: &str, message: &str) {
        let mut reported = self.reported.lock();
        if reported.len() >= MOST_REPORTED {
            reported.clear();
        }
        reported.insert((object.to_owned(), message.to_owned()));
    }
}
