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

/// How long nothing that stands is given up for an object after it gave no machine; twice as long each further time, and about a day
/// at most.
const SHUNNED_FOR: Duration = Duration::from_mins(10);
const DOUBLED_AT_MOST: u32 = 7;

/// Beyond this many, what was said is forgotten and said again.
const MOST_REPORTED: usize = 20_000;

/// A kind of machine templates, and the watch on it.
type Templates = (ApiResource, Informer<DynamicObject>);

#[derive(Default)]
pub struct Memory {
    unavailable: Mutex<BTreeMap<Reference, (Timestamp, String)>>,
    /// How often in a row an object gave no machine, and when it did last.
    failures: Mutex<BTreeMap<Reference, (u32, Timestamp)>>,
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
    /// An object gave no machine: it is passed over for a while, and nothing that stands is given up for it for longer and longer.
    pub fn note_unavailable(&self, object: &Reference, why: &str, now: Timestamp) {
        let lasts = SignedDuration::try_from(UNAVAILABLE_FOR).unwrap_or_default();
        let until = now.checked_add(lasts).unwrap_or(Timestamp::MAX);
        let mut unavailable = self.unavailable.lock();
        let was_known = unavailable.get(object).is_some_and(|(until, _)| *until > now);
        unavailable.insert(object.clone(), (until, why.to_owned()));
        if !was_known {
            let mut failures = self.failures.lock();
            let (times, _) = failures.get(object).copied().unwrap_or((0, now));
            failures.insert(object.clone(), (times + 1, now));
        }
    }

    /// A claim on an object has come up: what failed before it was made counts no more.
    pub fn note_came(&self, object: &Reference, made: Timestamp) {
        let mut failures = self.failures.lock();
        if failures.get(object).is_some_and(|(_, last)| *last < made) {
            failures.remove(object);
        }
    }

    /// Why nothing that stands is given up for an object that gave no machine, if so.
    pub fn is_shunned(&self, object: &Reference, now: Timestamp) -> Option<String> {
        let (times, last) = self.failures.lock().get(object).copied()?;
        let doubled = SHUNNED_FOR.saturating_mul(1 << (times - 1).min(DOUBLED_AT_MOST));
        let lasts = SignedDuration::try_from(doubled).unwrap_or_default();
        let until = last.checked_add(lasts).unwrap_or(Timestamp::MAX);
        (until > now)
            .then(|| format!("it gave no machine {times} times; nothing is given up for it until {until:.0}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_keeps_failing_is_left_alone_for_longer_and_longer() {
        let (memory, object) = (
            Memory::default(),
            Reference::new("MachineDeployment", "fleet", "workers"),
        );
        let at = |minute: i64| Timestamp::from_second(minute * 60).expect("a moment");
        let fails = |minute: i64| {
            // It is said again and again while it lasts.
            memory.note_unavailable(&object, "no quota", at(minute));
            memory.note_unavailable(&object, "no quota", at(minute + 1));
        };
        let shunned = |minute: i64| memory.is_shunned(&object, at(minute)).is_some();
        assert!(!shunned(0));
        fails(0);
        assert!(shunned(9) && !shunned(10));
        fails(20);
        assert!(shunned(39) && !shunned(40));
        memory.note_came(&object, at(15));
        assert!(shunned(30), "that one was made before it failed");
        memory.note_came(&object, at(25));
        assert!(!shunned(30));
    }
}
