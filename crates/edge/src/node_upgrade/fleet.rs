//! Whether the policy lets one upgrade disturb its node now: pure, from the upgrades of the same Cluster to the same image.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use slipway_capi::{condition, names::condition as names, view::Machine};
use slipway_runtime::ObjectKey;

use super::{
    api::{NodeUpgrade, Phase},
    facts::FleetFacts,
};
use crate::upgrade_policy::{
    api::UpgradePolicySpec,
    health,
    judge::{self, Member, Standing, Verdict},
};

/// Reasons for which an upgrade waits that nobody else has to wait for.
pub const HOST_UNREACHABLE: &str = "HostUnreachable";
pub const MAINTENANCE: &str = "Maintenance";
/// The reason of one that waits for what the policy wants to be well.
pub const NOT_HEALTHY: &str = "NotHealthy";

fn phase(upgrade: &NodeUpgrade) -> Phase {
    upgrade
        .status
        .as_ref()
        .map_or(Phase::Pending, |status| status.phase)
}

/// Of two upgrades of a machine the later one counts.
fn age(upgrade: &NodeUpgrade) -> (Option<Timestamp>, String) {
    let created = upgrade.metadata.creation_timestamp.as_ref();
    (created.map(|time| time.0), upgrade.name_any())
}

fn is_called_off(upgrade: &NodeUpgrade) -> bool {
    upgrade.metadata.deletion_timestamp.is_some()
        || matches!(phase(upgrade), Phase::Cancelled | Phase::Superseded)
}

/// The upgrade that takes the place of this one.
pub fn newer(upgrade: &NodeUpgrade, of_machine: &[Arc<NodeUpgrade>]) -> Option<String> {
    of_machine
        .iter()
        .filter(|other| other.spec.machine_uid == upgrade.spec.machine_uid && !is_called_off(other))
        .filter(|other| age(other) > age(upgrade))
        .max_by_key(|other| age(other))
        .map(|other| other.name_any())
}

fn standing(upgrade: &NodeUpgrade) -> Standing {
    let status = upgrade.status.as_ref();
    let ended = status.and_then(|status| status.ended_at.as_ref());
    match phase(upgrade) {
        Phase::Done => Standing::Done(ended.map(|time| time.0).unwrap_or_default()),
        Phase::RolledBack => Standing::RolledBack,
        Phase::Failed | Phase::Superseded | Phase::Cancelled => Standing::Failed,
        phase if phase.disturbs() => Standing::Disturbed,
        _ => {
            let ready = status.and_then(|status| condition::find(&status.conditions, names::READY));
            let is_stuck =
                ready.is_some_and(|ready| [HOST_UNREACHABLE, MAINTENANCE].contains(&ready.reason.as_str()));
            if is_stuck {
                Standing::Failed
            } else {
                Standing::Waiting
            }
        }
    }
}

/// Everybody who is on the way to the same image in the same Cluster, by the same policy: one a machine. Whoever has a place is
/// disturbed, whatever the status shows yet.
pub fn members(
    upgrade: &NodeUpgrade,
    all: &[Arc<NodeUpgrade>],
    machines: &[Arc<Machine>],
    places: &BTreeSet<ObjectKey>,
) -> Vec<Member> {
    let spec = &upgrade.spec;
    let mut latest: BTreeMap<&str, &Arc<NodeUpgrade>> = BTreeMap::new();
    let same = all.iter().filter(|other| {
        other.spec.image.digest == spec.image.digest
            && other.spec.policy_name == spec.policy_name
            && !is_called_off(other)
    });
    for other in same {
        let known = latest.entry(&other.spec.machine_name).or_insert(other);
        if age(other) > age(known) {
            *known = other;
        }
    }
    let of_machine = |machine: &Arc<Machine>| {
        let other = latest.get(machine.name_any().as_str())?;
        let key = ObjectKey::of(other.as_ref());
        let standing = match standing(other) {
            _ if places.contains(&key) && !phase(other).is_terminal() => Standing::Disturbed,
            // It asks because its host answers and nobody works on it.
            Standing::Failed if key == ObjectKey::of(upgrade) => Standing::Waiting,
            standing => standing,
        };
        Some(Member {
            name: machine.name_any(),
            labels: machine.labels().clone(),
            standing,
        })
    };
    machines.iter().filter_map(of_machine).collect()
}

impl FleetFacts {
    /// Whether this machine has its place already.
    pub fn has_place(&self, machine: &str) -> bool {
        let mine = self.members.iter().find(|member| member.name == machine);
        mine.is_some_and(|member| member.standing == Standing::Disturbed)
    }

    /// How many machines are being drained, rebooted or verified.
    pub fn disturbed(&self) -> usize {
        let disturbed = |member: &&Member| member.standing == Standing::Disturbed;
        self.members.iter().filter(disturbed).count()
    }

    /// The policy wants something to be well, and nobody has looked yet whether it is.
    pub fn is_to_be_looked_at(&self) -> bool {
        let has_gates = |policy: &UpgradePolicySpec| !policy.health_gates.is_empty();
        self.unhealthy.is_none() && self.policy.as_ref().is_ok_and(has_gates)
    }

    /// Whether this machine may be disturbed, asked before its host is armed.
    pub fn judge(&self, machine: &str, now: Timestamp) -> Verdict {
        let wait = |reason, message| Verdict::Wait {
            reason,
            message,
            until: None,
        };
        let policy = match &self.policy {
            Ok(policy) => policy,
            Err(name) => return wait("PolicyMissing", format!("there is no UpgradePolicy {name}")),
        };
        // What drains has not rebooted yet, and need not.
        if let Some(message) = judge::halted(policy, &self.members) {
            return Verdict::Halted { message };
        }
        let verdict = judge::judge(policy, &self.members, machine, now);
        match &self.unhealthy {
            Some(unhealthy)
                if verdict == Verdict::Go && !unhealthy.is_empty() && !self.has_place(machine) =>
            {
                wait(NOT_HEALTHY, health::message(unhealthy))
            }
            _ => verdict,
        }
    }
}

/// Who was let go, for as long as it is disturbed: a status shows it a moment later. Only who leads lets go, so what this process
/// has let go is all.
#[derive(Debug, Default)]
pub struct Places(Mutex<Given>);

#[derive(Debug, Default)]
struct Given {
    by: BTreeSet<ObjectKey>,
    given: u64,
}

impl Places {
    /// Who has a place, and how many were ever given.
    pub fn look(&self) -> (BTreeSet<ObjectKey>, u64) {
        let taken = self.0.lock();
        (taken.by.clone(), taken.given)
    }

    /// Takes the place that was free when so many had been given. `false`: another has taken one since.
    pub fn take(&self, key: &ObjectKey, given: u64) -> bool {
        let mut taken = self.0.lock();
        if taken.given != given && !taken.by.contains(key) {
            return false;
        }
        if taken.by.insert(key.clone()) {
            taken.given += 1;
        }
        true
    }

    pub fn give_back(&self, key: &ObjectKey) {
        self.0.lock().by.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn upgrade(name: &str, machine: &str, created: &str, phase: Phase, reason: &str) -> Arc<NodeUpgrade> {
        let conditions = json!([{"type": "Ready", "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": "2026-11-18T02:00:00Z"}]);
        let upgrade = json!({"apiVersion": "edge.slipway.dev/v1alpha1", "kind": "NodeUpgrade",
            "metadata": {"name": name, "namespace": "default", "creationTimestamp": created},
            "spec": {"machineName": machine, "machineUID": format!("uid-{machine}"), "hostName": machine,
                "image": {"reference": "r", "digest": "sha256:new"}, "version": "v1.34.3"},
            "status": {"phase": phase, "conditions": conditions}});
        Arc::new(serde_json::from_value(upgrade).expect("an upgrade"))
    }

    fn machine(name: &str) -> Arc<Machine> {
        let machine = json!({"metadata": {"name": name, "namespace": "default"}});
        Arc::new(serde_json::from_value(machine).expect("a machine"))
    }

    const EARLY: &str = "2026-11-18T01:00:00Z";
    const LATE: &str = "2026-11-18T02:00:00Z";

    fn now() -> Timestamp {
        "2026-11-18T03:00:00Z".parse().expect("a time")
    }

    #[test]
    fn the_latest_upgrade_of_a_machine_takes_the_place_of_the_others() {
        let old = upgrade("a-old", "a", EARLY, Phase::Prepared, "InLine");
        let new = upgrade("a-new", "a", LATE, Phase::Pending, "Ordered");
        let gone = upgrade("a-gone", "a", "2026-11-18T02:30:00Z", Phase::Cancelled, "Deleted");
        let all = [old.clone(), new.clone(), gone];
        assert_eq!(newer(&old, &all).as_deref(), Some("a-new"));
        assert_eq!(newer(&new, &all), None);
        let other = upgrade("b", "b", "2026-11-18T02:30:00Z", Phase::Pending, "Ordered");
        assert_eq!(newer(&new, &[new.clone(), other]), None, "another machine's");
    }

    fn fleet(upgrade: &NodeUpgrade, all: &[Arc<NodeUpgrade>], places: &Places) -> FleetFacts {
        let (taken, given) = places.look();
        FleetFacts {
            policy: Ok(UpgradePolicySpec::default()),
            members: members(upgrade, all, &[machine("a"), machine("b")], &taken),
            given,
            unhealthy: None,
        }
    }

    fn is_in_line(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Wait { reason: "InLine", .. })
    }

    /// Two that ask at the same time, before any status shows what came of it, are not both let go.
    #[test]
    fn a_place_is_given_once_whatever_the_statuses_show() {
        let all = [
            upgrade("a", "a", EARLY, Phase::Prepared, HOST_UNREACHABLE),
            upgrade("b", "b", EARLY, Phase::Prepared, "InLine"),
        ];
        let (a, b) = (ObjectKey::of(all[0].as_ref()), ObjectKey::of(all[1].as_ref()));
        let places = Places::default();
        let both = [fleet(&all[0], &all, &places), fleet(&all[1], &all, &places)];
        assert_eq!(both[0].members.len(), 2);
        // Each is told that it is its turn: the host of a was away, as far as its status shows.
        assert_eq!(both[0].judge("a", now()), Verdict::Go);
        assert_eq!(both[1].judge("b", now()), Verdict::Go);
        assert!(places.take(&b, both[1].given));
        assert!(!places.take(&a, both[0].given), "b has taken it meanwhile");
        assert!(places.take(&b, both[1].given), "and has it");
        let mut later = fleet(&all[0], &all, &places);
        assert!(is_in_line(&later.judge("a", now())), "{later:?}");
        assert!(fleet(&all[1], &all, &places).has_place("b"));
        places.give_back(&b);
        later = fleet(&all[0], &all, &places);
        assert_eq!(later.judge("a", now()), Verdict::Go);
        assert!(places.take(&a, later.given));
        assert!(is_in_line(&fleet(&all[1], &all, &places).judge("b", now())));
    }

    /// What is not well keeps the next machine, and not one that is disturbed already.
    #[test]
    fn what_is_not_well_holds_up_who_has_no_place_yet() {
        let all = [upgrade("a", "a", EARLY, Phase::Prepared, "InLine")];
        let places = Places::default();
        let mut asked = fleet(&all[0], &all, &places);
        asked.unhealthy = Some(vec!["Deployment shop/front is not available".to_owned()]);
        let Verdict::Wait { reason, message, .. } = asked.judge("a", now()) else {
            panic!("it went");
        };
        assert_eq!(
            (reason, message.as_str()),
            (NOT_HEALTHY, "Deployment shop/front is not available")
        );
        assert!(places.take(&ObjectKey::of(all[0].as_ref()), asked.given));
        let mut going = fleet(&all[0], &all, &places);
        going.unhealthy = asked.unhealthy;
        assert_eq!(going.judge("a", now()), Verdict::Go);
    }

    #[test]
    fn one_that_went_back_stops_the_others_until_it_is_taken_away() {
        let (back, waiting) = (
            upgrade("a", "a", EARLY, Phase::RolledBack, "RolledBack"),
            upgrade("b", "b", EARLY, Phase::Draining, "Draining"),
        );
        let ask = |all: &[Arc<NodeUpgrade>]| fleet(&waiting, all, &Places::default()).judge("b", now());
        assert!(
            matches!(ask(&[back, waiting.clone()]), Verdict::Halted { .. }),
            "also one that drains"
        );
        assert_eq!(ask(std::slice::from_ref(&waiting)), Verdict::Go);
    }
}
