//! Who leaves a node next, and who keeps it from being empty: pure. The drain is ours and nobody else's: the Machine is marked
//! so that Cluster API does not drain it again.
//!
//! Pods go in Karpenter's order: those that nothing depends on first, daemons after them, critical pods last. A pod is evicted,
//! so that the apiserver holds it back where a PodDisruptionBudget says so; only a NodeClaim's termination grace period ends that.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use slipway_packing::{
    model::{Taint, Toleration},
    taints::untolerated,
    time::duration_seconds,
};

use crate::api::names::{annotation, taint};

/// A pod that should be gone and is not: its kubelet does not answer, so nobody waits for it.
const STUCK_AFTER: SignedDuration = SignedDuration::from_mins(1);
const USUAL_GRACE_SECONDS: i64 = 30;
const CRITICAL: [&str; 2] = ["system-cluster-critical", "system-node-critical"];

/// One pod of a node, as far as draining reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub is_critical: bool,
    pub is_daemon: bool,
    /// When it is gone at the latest, if it is being deleted.
    pub gone_by: Option<Timestamp>,
    pub grace_seconds: i64,
    /// Why it must not be evicted.
    pub keeps: Option<Keeps>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// `karpenter.sh/do-not-disrupt: "true"`.
    ForGood,
    /// `karpenter.sh/do-not-disrupt: 10m`, counted from its start.
    Until(Timestamp),
}

impl PodFacts {
    /// A pod that a drain is about. One that has ended, that is a static pod's mirror, or that tolerates the taint of nodes on
    /// their way out is not: it goes with the node.
    pub fn of(pod: &Pod) -> Option<Self> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let owned_by = |kind: &str| pod.owner_references().iter().any(|owner| owner.kind == kind);
        if matches!(phase, Some("Failed" | "Succeeded")) || owned_by("Node") || tolerates_leaving(pod) {
            return None;
        }
        let spec = pod.spec.clone().unwrap_or_default();
        Some(PodFacts {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            is_critical: CRITICAL.contains(&spec.priority_class_name.as_deref().unwrap_or_default()),
            is_daemon: owned_by("DaemonSet"),
            gone_by: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            grace_seconds: spec
                .termination_grace_period_seconds
                .unwrap_or(USUAL_GRACE_SECONDS),
            keeps: keeps(pod),
        })
    }

    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn tolerates_leaving(pod: &Pod) -> bool {
    let leaving = Taint {
        key: taint::DISRUPTED.to_owned(),
        value: String::new(),
        effect: "NoSchedule".to_owned(),
    };
    let tolerations: Vec<Toleration> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.tolerations.iter().flatten())
        .map(|toleration| Toleration {
            key: toleration.key.clone().unwrap_or_default(),
            operator: toleration.operator.clone().unwrap_or_default(),
            value: toleration.value.clone().unwrap_or_default(),
            effect: toleration.effect.clone().unwrap_or_default(),
            toleration_seconds: toleration.toleration_seconds,
        })
        .collect();
    untolerated(&[leaving], &tolerations).is_none()
}

fn keeps(pod: &Pod) -> Option<Keeps> {
    let text = pod.annotations().get(annotation::DO_NOT_DISRUPT)?;
    if text == "true" {
        return Some(Keeps::ForGood);
    }
    let seconds = duration_seconds(text)?;
    let started = pod.status.as_ref()?.start_time.as_ref()?.0;
    let until = started
        .checked_add(SignedDuration::try_from_secs_f64(seconds).ok()?)
        .ok()?;
    Some(Keeps::Until(until))
}

/// One call for one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodRemoval {
    Evict {
        pod: String,
        uid: String,
    },
    /// Deletes it, whatever keeps it.
    Delete {
        pod: String,
        uid: String,
        grace_seconds: i64,
    },
}

impl fmt::Display for PodRemoval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Evict { pod, .. } => write!(formatter, "evict Pod {pod}"),
            Self::Delete {
                pod, grace_seconds, ..
            } => write!(formatter, "delete Pod {pod} within {grace_seconds} s"),
        }
    }
}

/// What a drain has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drain {
    pub steps: Vec<(PodRemoval, String)>,
    /// Pods that keep the node, and why.
    pub kept_by: Vec<String>,
    /// Pods that are on their way out.
    pub leaving: usize,
    /// When something changes that nothing will tell.
    pub revisit: Option<Timestamp>,
}

impl Drain {
    pub fn is_done(&self) -> bool {
        self.steps.is_empty() && self.kept_by.is_empty() && self.leaving == 0
    }

    /// What is left, in a sentence.
    pub fn message(&self) -> String {
        let mut parts = Vec::new();
        if !self.steps.is_empty() {
            parts.push(format!("{} pods are told to go", self.steps.len()));
        }
        if self.leaving > 0 {
            parts.push(format!("{} pods are on their way out", self.leaving));
        }
        parts.extend(self.kept_by.iter().cloned());
        parts.join("; ")
    }
}

/// What is next for the pods of a node. After `deadline` none of them is left.
pub fn drain(pods: &[PodFacts], deadline: Option<Timestamp>, now: Timestamp) -> Drain {
    let mut result = Drain::default();
    let mut soonest = |moment: Timestamp| {
        if result.revisit.is_none_or(|known| moment < known) {
            result.revisit = Some(moment);
        }
    };
    let mut steps = Vec::new();
    let mut staying: Vec<&PodFacts> = Vec::new();
    for pod in pods {
        if pod
            .gone_by
            .is_some_and(|gone| now >= gone.saturating_add(STUCK_AFTER).unwrap_or(Timestamp::MAX))
        {
            continue;
        }
        let seconds_left = deadline.map(|deadline| deadline.duration_since(now).as_secs());
        let is_late = seconds_left.is_some_and(|left| left <= pod.grace_seconds);
        let goes_too_late = pod
            .gone_by
            .is_some_and(|gone| deadline.is_some_and(|deadline| gone > deadline));
        if is_late && (pod.gone_by.is_none() || goes_too_late) {
            let step = PodRemoval::Delete {
                pod: pod.key(),
                uid: pod.uid.clone(),
                grace_seconds: seconds_left.unwrap_or(0).max(0),
            };
            steps.push((step, "the claim's termination grace period ends".to_owned()));
        } else {
            staying.push(pod);
        }
        if let (Some(deadline), None, false) = (deadline, pod.gone_by, is_late) {
            let grace = SignedDuration::from_secs(pod.grace_seconds);
            soonest(deadline.checked_sub(grace).unwrap_or(now));
        }
        if let Some(gone) = pod.gone_by {
            soonest(gone.saturating_add(STUCK_AFTER).unwrap_or(Timestamp::MAX));
        }
    }
    // The first group that has pods left is the one that goes.
    let group = |pod: &PodFacts| (pod.is_critical, pod.is_daemon);
    let first = staying.iter().map(|pod| group(pod)).min();
    for pod in staying {
        if pod.gone_by.is_some() {
            result.leaving += 1;
            continue;
        }
        if Some(group(pod)) != first {
            result.leaving += 1;
            continue;
        }
        match pod.keeps {
            Some(Keeps::ForGood) => result.kept_by.push(format!(
                "Pod {} is annotated {}: \"true\"",
                pod.key(),
                annotation::DO_NOT_DISRUPT
            )),
            Some(Keeps::Until(until)) if until > now => {
                if result.revisit.is_none_or(|known| until < known) {
                    result.revisit = Some(until);
                }
                result.kept_by.push(format!(
                    "Pod {} must not be disrupted before {until:.0}",
                    pod.key()
                ));
            }
            _ => {
                let step = PodRemoval::Evict {
                    pod: pod.key(),
                    uid: pod.uid.clone(),
                };
                steps.push((step, "its node is being drained".to_owned()));
            }
        }
    }
    result.steps = steps;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a moment")
    }

    fn pod(name: &str, change: impl FnOnce(&mut PodFacts)) -> PodFacts {
        let mut pod = PodFacts {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: name.to_owned(),
            grace_seconds: 30,
            ..PodFacts::default()
        };
        change(&mut pod);
        pod
    }

    fn told(drain: &Drain) -> Vec<String> {
        drain.steps.iter().map(|(step, _)| step.to_string()).collect()
    }

    #[test]
    fn pods_go_in_order_and_daemons_and_critical_ones_last() {
        let mut pods = vec![
            pod("web", |_| {}),
            pod("agent", |pod| pod.is_daemon = true),
            pod("dns", |pod| pod.is_critical = true),
            pod("proxy", |pod| {
                pod.is_critical = true;
                pod.is_daemon = true;
            }),
        ];
        for expected in ["web", "agent", "dns", "proxy"] {
            let drain = drain(&pods, None, at(0));
            assert_eq!(told(&drain), [format!("evict Pod default/{expected}")]);
            assert!(!drain.is_done());
            pods.retain(|pod| pod.name != expected);
        }
        assert!(drain(&pods, None, at(0)).is_done());
    }

    #[test]
    fn one_that_leaves_holds_up_the_next_group_until_it_is_stuck() {
        let pods = [
            pod("web", |pod| pod.gone_by = Some(at(10))),
            pod("agent", |pod| pod.is_daemon = true),
        ];
        let waits = drain(&pods, None, at(5));
        assert_eq!((told(&waits).len(), waits.leaving), (0, 2));
        assert_eq!(waits.revisit, Some(at(70)));
        assert_eq!(told(&drain(&pods, None, at(70))), ["evict Pod default/agent"]);
    }

    #[test]
    fn a_pod_that_must_not_be_disrupted_keeps_the_node_until_the_grace_period_ends() {
        let pods = [pod("job", |pod| pod.keeps = Some(Keeps::ForGood))];
        let kept = drain(&pods, Some(at(100)), at(0));
        assert_eq!(told(&kept), [""; 0]);
        assert_eq!(
            kept.kept_by,
            ["Pod default/job is annotated karpenter.sh/do-not-disrupt: \"true\""]
        );
        assert_eq!(kept.revisit, Some(at(70)), "its own grace before the end");
        assert_eq!(
            told(&drain(&pods, Some(at(100)), at(70))),
            ["delete Pod default/job within 30 s"]
        );
        assert_eq!(
            told(&drain(&pods, Some(at(100)), at(120))),
            ["delete Pod default/job within 0 s"]
        );
        let until = [pod("job", |pod| pod.keeps = Some(Keeps::Until(at(50))))];
        assert_eq!(drain(&until, None, at(0)).revisit, Some(at(50)));
        assert_eq!(told(&drain(&until, None, at(50))), ["evict Pod default/job"]);
    }

    #[test]
    fn what_goes_with_the_node_is_not_evicted() {
        let read = |value: serde_json::Value| -> Option<PodFacts> {
            PodFacts::of(&serde_json::from_value(value).expect("a pod"))
        };
        let rows = [
            (
                serde_json::json!({"metadata": {"name": "a"}, "spec": {"containers": []}}),
                true,
            ),
            (
                serde_json::json!({"metadata": {"name": "a"}, "spec": {"containers": []}, "status": {"phase": "Succeeded"}}),
                false,
            ),
            (
                serde_json::json!({"metadata": {"name": "a"}, "spec": {"containers": [], "tolerations": [{"operator": "Exists"}]}}),
                false,
            ),
            (
                serde_json::json!({"metadata": {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]},
                    "spec": {"containers": []}}),
                false,
            ),
        ];
        for (value, is_drained) in rows {
            assert_eq!(read(value.clone()).is_some(), is_drained, "{value}");
        }
    }
}
