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

use super::api::{NodeUpgrade, Phase};
use crate::upgrade_policy::{
    api::UpgradePolicySpec,
    judge::{Member, Standing, Verdict, judge},
};

/// Reasons for which an upgrade waits that nobody else has to wait for.
pub const HOST_UNREACHABLE: &str = "HostUnreachable";
pub const MAINTENANCE: &str = "Maintenance";

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

/// Everybody who is on the way to the same image in the same Cluster, by the same policy: one a machine.
pub fn members(
    upgrade: &NodeUpgrade,
    all: &[Arc<NodeUpgrade>],
    machines: &[Arc<Machine>],
) -> BTreeMap<ObjectKey, Member> {
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
    machines
        .iter()
        .filter_map(|machine| {
            let other = latest.get(machine.name_any().as_str())?;
            let member = Member {
                name: machine.name_any(),
                labels: machine.labels().clone(),
                standing: standing(other),
            };
            Some((ObjectKey::of(other.as_ref()), member))
        })
        .collect()
}

/// Upgrades that were let go and whose status does not show it yet. Only who leads decides, so what this process has let go is all.
#[derive(Debug, Default)]
pub struct LetGo(Mutex<BTreeSet<ObjectKey>>);

impl LetGo {
    /// Judges one upgrade, and remembers that it was let go: two never take the same place.
    pub fn judge(
        &self,
        key: &ObjectKey,
        policy: &UpgradePolicySpec,
        mut members: BTreeMap<ObjectKey, Member>,
        now: Timestamp,
    ) -> Verdict {
        let mut let_go = self.0.lock();
        // What the status shows need not be remembered.
        let_go.retain(|known| {
            members
                .get(known)
                .is_none_or(|member| matches!(member.standing, Standing::Waiting | Standing::Failed))
        });
        for (known, member) in &mut members {
            if let_go.contains(known) {
                member.standing = Standing::Disturbed;
            }
        }
        let Some(me) = members.get_mut(key) else {
            return Verdict::Wait {
                reason: "NotInFleet",
                message: "its machine is not known yet".to_owned(),
                until: None,
            };
        };
        // It is asked about because its host answers and nobody works on it.
        if me.standing == Standing::Failed {
            me.standing = Standing::Waiting;
        }
        let name = me.name.clone();
        let members: Vec<Member> = members.into_values().collect();
        let verdict = judge(policy, &members, &name, now);
        if verdict == Verdict::Go {
            let_go.insert(key.clone());
        }
        verdict
    }

    /// It does not go on, or has ended: its place is free.
    pub fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
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

    /// Two that ask at the same time, before any status shows what came of it, are not both let go.
    #[test]
    fn a_place_is_given_once_whatever_the_statuses_show() {
        let all = [
            upgrade("a", "a", EARLY, Phase::Prepared, HOST_UNREACHABLE),
            upgrade("b", "b", EARLY, Phase::Prepared, "InLine"),
        ];
        let machines = [machine("a"), machine("b")];
        let (let_go, policy) = (LetGo::default(), UpgradePolicySpec::default());
        let ask = |upgrade: &Arc<NodeUpgrade>| {
            let members = members(upgrade, &all, &machines);
            assert_eq!(members.len(), 2);
            let_go.judge(&ObjectKey::of(upgrade.as_ref()), &policy, members, now())
        };
        assert_eq!(ask(&all[1]), Verdict::Go, "the host of the first one is away");
        assert_eq!(ask(&all[1]), Verdict::Go, "and so it stays");
        let waits = ask(&all[0]);
        assert!(
            matches!(waits, Verdict::Wait { reason: "InLine", .. }),
            "{waits:?}"
        );
        let_go.forget(&ObjectKey::of(all[1].as_ref()));
        assert_eq!(ask(&all[0]), Verdict::Go);
        let waits = ask(&all[1]);
        assert!(
            matches!(waits, Verdict::Wait { reason: "InLine", .. }),
            "{waits:?}"
        );
    }

    #[test]
    fn one_that_went_back_stops_the_others_until_it_is_taken_away() {
        let machines = [machine("a"), machine("b")];
        let (back, waiting) = (
            upgrade("a", "a", EARLY, Phase::RolledBack, "RolledBack"),
            upgrade("b", "b", EARLY, Phase::Prepared, "InLine"),
        );
        let ask = |all: &[Arc<NodeUpgrade>]| {
            let members = members(&waiting, all, &machines);
            let policy = UpgradePolicySpec::default();
            LetGo::default().judge(&ObjectKey::of(waiting.as_ref()), &policy, members, now())
        };
        assert!(matches!(ask(&[back, waiting.clone()]), Verdict::Halted { .. }));
        assert_eq!(ask(std::slice::from_ref(&waiting)), Verdict::Go);
    }
}
