//! Which pods leave a node before it reboots: pure. As `kubectl drain` does it: pods of DaemonSets and mirror pods stay, pods that
//! have ended do not matter, and everybody else is evicted, so that PodDisruptionBudgets are kept.

use std::collections::BTreeMap;

use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::ResourceExt;

use crate::selector;

/// The pods of a node that a drain is about, each as namespace/name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    pub to_evict: Vec<String>,
    /// They are on their way out.
    pub leaving: Vec<String>,
    /// Those of `to_evict` that a budget holds back now, with its name.
    pub held_back: BTreeMap<String, String>,
}

impl Pods {
    pub fn is_empty(&self) -> bool {
        self.to_evict.is_empty() && self.leaving.is_empty()
    }

    /// What is left, in a sentence.
    pub fn message(&self) -> String {
        const SHOWN: usize = 5;
        let mut parts = Vec::new();
        let free = self.to_evict.len() - self.held_back.len();
        if free > 0 {
            parts.push(format!("{free} pods are evicted"));
        }
        if !self.leaving.is_empty() {
            parts.push(format!("{} pods are on their way out", self.leaving.len()));
        }
        parts.extend(
            self.held_back
                .iter()
                .take(SHOWN)
                .map(|(pod, budget)| format!("PodDisruptionBudget {budget} holds back Pod {pod}")),
        );
        if self.held_back.len() > SHOWN {
            parts.push(format!("{} more are held back", self.held_back.len() - SHOWN));
        }
        parts.join("; ")
    }

    pub fn of(pods: &[Pod], budgets: &[PodDisruptionBudget]) -> Self {
        let mut found = Self::default();
        for pod in pods {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let is_mirror = pod.annotations().contains_key("kubernetes.io/config.mirror");
            let is_daemon = pod
                .owner_references()
                .iter()
                .any(|owner| owner.kind == "DaemonSet" && owner.controller == Some(true));
            if is_mirror || is_daemon || matches!(phase, Some("Succeeded" | "Failed")) {
                continue;
            }
            let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
            if pod.metadata.deletion_timestamp.is_some() {
                found.leaving.push(name);
                continue;
            }
            if let Some(budget) = budgets.iter().find(|budget| holds_back(budget, pod)) {
                found.held_back.insert(name.clone(), budget.name_any());
            }
            found.to_evict.push(name);
        }
        found.to_evict.sort();
        found.leaving.sort();
        found
    }
}

fn holds_back(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let allowed = budget
        .status
        .as_ref()
        .map_or(0, |status| status.disruptions_allowed);
    let Some(selector) = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else {
        return false;
    };
    allowed <= 0 && budget.namespace() == pod.namespace() && selector::selects(Some(selector), pod.labels())
}
