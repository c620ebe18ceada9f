//! What the conditions of a node call for, by the repair policies.

use std::collections::BTreeMap;

use regex::Regex;

use crate::model::{Condition, Node, NodeClaim, RepairAction, RepairPolicy};
use crate::time::{duration_seconds, epoch_seconds};

/// So long a node has to wait to be as urgent as one whose condition is of the next higher priority.
const AGING_SECONDS: f64 = 1_800.0;
const PRIORITIES: std::ops::RangeInclusive<i32> = 0..=100;

/// What is wrong with a set of repair policies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the repair policies cannot be used: {}", .0.join("; "))]
pub struct InvalidRepairPolicies(pub Vec<String>);

/// Whether the policies can be used; [`Method::Repair`](super::Method::Repair) does nothing by those that cannot.
pub fn check_repair_policies(policies: &[RepairPolicy]) -> Result<(), InvalidRepairPolicies> {
    RepairPolicies::new(policies).map(|_| ())
}

#[derive(Clone, Debug)]
struct Policy {
    reason: Option<Regex>,
    toleration: f64,
    grace: Option<f64>,
    priority: i32,
    /// How many smaller priorities the set has.
    rank: f64,
    action: RepairAction,
}

#[derive(Clone, Debug)]
pub(super) struct RepairPolicies {
    /// By type and status of the condition.
    by_condition: BTreeMap<(String, String), Vec<Policy>>,
    fallback: Policy,
}

/// What is to be done with a node now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    pub action: RepairAction,
    pub condition: String,
    pub status: String,
    pub reason: String,
    /// The shortest that any policy says which applies.
    pub grace: Option<f64>,
    pub urgency: f64,
}

impl RepairPolicies {
    pub fn new(policies: &[RepairPolicy]) -> Result<Self, InvalidRepairPolicies> {
        let mut problems = Vec::new();
        let mut priorities: Vec<i32> = policies.iter().map(|policy| policy.priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        let mut by_condition: BTreeMap<(String, String), Vec<Policy>> = BTreeMap::new();
        let mut fallbacks = Vec::new();
        for (index, policy) in policies.iter().enumerate() {
            let mut problem =
                |text: String| problems.push(format!("policy {index} ({}): {text}", policy.condition_type));
            if policy.condition_type.is_empty() {
                problem("it names no condition".to_owned());
            }
            if !["True", "False", "Unknown"].contains(&policy.condition_status.as_str()) {
                problem(format!(
                    "{:?} is no status of a condition",
                    policy.condition_status
                ));
            }
            if !PRIORITIES.contains(&policy.priority) {
                problem(format!("the priority {} is not from 0 to 100", policy.priority));
            }
            let mut seconds = |text: Option<&String>| {
                let text = text?;
                let seconds = duration_seconds(text).filter(|seconds| *seconds >= 0.0);
                if seconds.is_none() {
                    problem(format!("{text:?} is no duration"));
                }
                seconds
            };
            let toleration = seconds(policy.toleration_duration.as_ref());
            let grace = seconds(policy.termination_grace_period.as_ref());
            let mut compiled = Policy {
                reason: None,
                toleration: toleration.unwrap_or(0.0),
                grace,
                priority: policy.priority,
                rank: priorities.partition_point(|own| *own < policy.priority) as f64,
                action: policy.action,
            };
            let key = (policy.condition_type.clone(), policy.condition_status.clone());
            // The fallback's own condition is known too, though it has no policy of its own.
            let own = by_condition.entry(key).or_default();
            if policy.reason_regex.is_empty() {
                fallbacks.push(compiled);
                continue;
            }
            match Regex::new(&policy.reason_regex) {
                Ok(reason) => compiled.reason = Some(reason),
                Err(error) => problems.push(format!(
                    "policy {index} ({}): {:?} is no regular expression: {error}",
                    policy.condition_type, policy.reason_regex
                )),
            }
            own.push(compiled);
        }
        if fallbacks.len() != 1 {
            problems.push(format!(
                "one policy has to be without a reason, {} are",
                fallbacks.len()
            ));
        }
        if fallbacks
            .iter()
            .any(|policy| policy.action != RepairAction::Replace)
        {
            problems.push("the policy without a reason has to replace the node".to_owned());
        }
        match fallbacks.pop() {
            Some(fallback) if problems.is_empty() => Ok(RepairPolicies {
                by_condition,
                fallback,
            }),
            _ => Err(InvalidRepairPolicies(problems)),
        }
    }

    /// Whether a node counts as unhealthy, tolerated for the moment or not.
    pub fn is_unhealthy(&self, node: &Node) -> bool {
        let known = |condition: &Condition| {
            let key = (condition.kind.clone(), condition.status.clone());
            self.by_condition.contains_key(&key)
        };
        node.status.conditions.iter().any(known)
    }

    /// What the node's conditions call for at a moment, once they are no longer tolerated.
    pub fn verdict(&self, node: &Node, claim: &NodeClaim, now: i64) -> Option<Verdict> {
        // No condition is older than the node, and after a reboot the wait begins again.
        let created = moment(node.metadata.creation_timestamp.as_deref());
        let rebooted = claim
            .condition("Rebooting")
            .filter(|condition| condition.status == "False")
            .map_or(i64::MIN, |condition| {
                moment(condition.last_transition_time.as_deref())
            });
        let mut due: Vec<(&Policy, &Condition, f64)> = Vec::new();
        for condition in &node.status.conditions {
            let since = moment(condition.last_transition_time.as_deref())
                .max(created)
                .max(rebooted);
            let age = now.saturating_sub(since) as f64;
            due.extend(
                self.matching(condition)
                    .into_iter()
                    .map(|policy| (policy, condition, age - policy.toleration))
                    .filter(|(.., overdue)| *overdue >= 0.0),
            );
        }
        let (policy, condition, _) = due.iter().copied().min_by(|left, right| {
            let replaces = |policy: &Policy| policy.action == RepairAction::Replace;
            replaces(right.0)
                .cmp(&replaces(left.0))
                .then(right.0.priority.cmp(&left.0.priority))
                .then(right.2.total_cmp(&left.2))
                .then(left.1.kind.cmp(&right.1.kind))
        })?;
        Some(Verdict {
            action: policy.action,
            condition: condition.kind.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            grace: due
                .iter()
                .filter_map(|(policy, ..)| policy.grace)
                .min_by(f64::total_cmp),
            urgency: due
                .iter()
                .map(|(policy, _, overdue)| policy.rank + overdue / AGING_SECONDS)
                .fold(0.0, f64::max),
        })
    }

    /// The policies for a condition: all whose reason fits, or else the one for every reason.
    fn matching(&self, condition: &Condition) -> Vec<&Policy> {
        let key = (condition.kind.clone(), condition.status.clone());
        let Some(own) = self.by_condition.get(&key) else {
            return Vec::new();
        };
        let fits = |policy: &&Policy| {
            let reason = policy.reason.as_ref();
            reason.is_some_and(|reason| reason.is_match(&condition.reason))
        };
        let fitting: Vec<&Policy> = own.iter().filter(fits).collect();
        if fitting.is_empty() {
            vec![&self.fallback]
        } else {
            fitting
        }
    }
}

fn moment(text: Option<&str>) -> i64 {
    text.and_then(epoch_seconds).unwrap_or(i64::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(condition: &str, reason: &str, toleration: &str, priority: i32) -> RepairPolicy {
        RepairPolicy {
            condition_type: condition.to_owned(),
            condition_status: "False".to_owned(),
            reason_regex: reason.to_owned(),
            toleration_duration: Some(toleration.to_owned()),
            priority,
            ..RepairPolicy::default()
        }
    }

    fn sick(conditions: &[(&str, &str, &str)]) -> Node {
        let mut node = Node::default();
        for (kind, reason, since) in conditions {
            node.status.conditions.push(Condition {
                kind: (*kind).to_owned(),
                status: "False".to_owned(),
                reason: (*reason).to_owned(),
                last_transition_time: Some(format!("2026-01-01T{since}:00Z")),
            });
        }
        node
    }

    fn at(time: &str) -> i64 {
        epoch_seconds(&format!("2026-01-01T{time}:00Z")).expect("a moment")
    }

    #[test]
    fn a_set_has_one_fallback_that_replaces_and_what_is_wrong_is_said() {
        let fallback = policy("Ready", "", "30m", 0);
        assert_eq!(check_repair_policies(std::slice::from_ref(&fallback)), Ok(()));
        let reboots = RepairPolicy {
            action: RepairAction::Reboot,
            ..fallback.clone()
        };
        let changed = |change: fn(&mut RepairPolicy)| {
            let mut changed = policy("Disk", "x", "1m", 1);
            change(&mut changed);
            vec![fallback.clone(), changed]
        };
        for (policies, problem) in [
            (vec![], "one policy has to be without a reason, 0 are"),
            (vec![fallback.clone(), fallback.clone()], "2 are"),
            (vec![reboots], "has to replace the node"),
            (
                changed(|policy| policy.condition_type.clear()),
                "names no condition",
            ),
            (
                changed(|policy| policy.condition_status = "Maybe".to_owned()),
                "\"Maybe\" is no status",
            ),
            (changed(|policy| policy.priority = 101), "the priority 101"),
            (
                changed(|policy| policy.toleration_duration = Some("-1m".to_owned())),
                "\"-1m\" is no duration",
            ),
            (
                changed(|policy| policy.termination_grace_period = Some("soon".to_owned())),
                "\"soon\" is no duration",
            ),
            (
                changed(|policy| policy.reason_regex = "(".to_owned()),
                "no regular expression",
            ),
        ] {
            let said = check_repair_policies(&policies).expect_err(problem).to_string();
            assert!(said.contains(problem), "{said}");
        }
    }

    /// Conditions, the moment, and what comes of it: the condition that decides, and how urgent it is.
    #[test]
    fn the_most_urgent_condition_orders_and_the_highest_priority_decides() {
        let policies = RepairPolicies::new(&[
            policy("Low", "", "30m", 10),
            policy("High", ".*", "30m", 90),
            policy("Low", "^Known$", "2h", 50),
        ])
        .expect("policies");
        let claim = NodeClaim::default();
        for (conditions, now, expected) in [
            (vec![("Low", "", "00:00")], "00:29", None),
            (vec![("Low", "", "00:00")], "00:30", Some(("Low", 0.0))),
            // A reason that a policy names waits as long as that policy says, though the fallback would not.
            (vec![("Low", "Known", "00:00")], "01:59", None),
            (vec![("Low", "Known", "00:00")], "02:30", Some(("Low", 1.0 + 1.0))),
            (vec![("Other", "", "00:00")], "09:00", None),
            (vec![("High", "", "00:00")], "00:45", Some(("High", 2.0 + 0.5))),
            // The old one of low priority is the more urgent, the fresh one of high priority still decides.
            (
                vec![("Low", "", "00:00"), ("High", "", "02:30")],
                "03:00",
                Some(("High", 5.0)),
            ),
        ] {
            let verdict = policies.verdict(&sick(&conditions), &claim, at(now));
            let found = verdict
                .as_ref()
                .map(|verdict| (verdict.condition.as_str(), verdict.urgency));
            assert_eq!(found, expected, "{conditions:?} at {now}");
        }
    }

    #[test]
    fn replacing_goes_before_rebooting_the_shortest_grace_counts_and_a_reboot_begins_the_wait_again() {
        let mut reboot = policy("Disk", "Hung", "10m", 90);
        reboot.action = RepairAction::Reboot;
        reboot.termination_grace_period = Some("5m".to_owned());
        let mut replace = policy("Ready", "", "10m", 0);
        replace.termination_grace_period = Some("20m".to_owned());
        let policies = RepairPolicies::new(&[reboot, replace]).expect("policies");
        let mut claim = NodeClaim::default();
        let node = sick(&[("Disk", "Hung", "00:00"), ("Ready", "", "00:05")]);
        let verdict = |claim: &NodeClaim, now| policies.verdict(&node, claim, at(now));
        let first = verdict(&claim, "00:10").expect("a verdict");
        assert_eq!((first.action, first.grace), (RepairAction::Reboot, Some(300.0)));
        let second = verdict(&claim, "00:15").expect("a verdict");
        assert_eq!(
            (second.action, second.condition.as_str(), second.grace),
            (RepairAction::Replace, "Ready", Some(300.0))
        );
        claim.status.conditions.push(Condition {
            kind: "Rebooting".to_owned(),
            status: "False".to_owned(),
            last_transition_time: Some("2026-01-01T00:12:00Z".to_owned()),
            ..Condition::default()
        });
        assert_eq!(verdict(&claim, "00:21"), None);
        assert!(verdict(&claim, "00:22").is_some());
    }
}
