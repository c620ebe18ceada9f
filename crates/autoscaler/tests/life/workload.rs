//! What runs in the cluster: pods that are kept up, the budgets over them, and a scheduler.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use slipway_kit::objects::{api_of, delete, find, is_deleting, merge, merge_status, name, of_kind};

use super::cluster::{CORES, KEPT, Life, NAMESPACE, SIZE};

/// Once a budget has the pods it asks for, it has them for ever. `reached` are the budgets that had them.
pub fn budgets_hold(objects: &[Value], reached: &mut BTreeSet<String>) -> Result<(), String> {
    for budget in of_kind(objects, "PodDisruptionBudget") {
        let least = budget["spec"]["minAvailable"].as_u64().unwrap_or(0);
        let running = selected(objects, budget)
            .filter(|pod| pod["spec"]["nodeName"].is_string() && !is_deleting(pod))
            .count();
        if running as u64 >= least {
            reached.insert(name(budget).to_owned());
        } else if reached.contains(name(budget)) {
            return Err(format!("budget {} has {running} pods", name(budget)));
        }
    }
    Ok(())
}

/// The pods of a budget.
fn selected<'a>(objects: &'a [Value], budget: &'a Value) -> impl Iterator<Item = &'a Value> {
    let app = &budget["spec"]["selector"]["matchLabels"]["app"];
    of_kind(objects, "Pod").filter(move |pod| pod["metadata"]["labels"]["app"] == *app)
}

impl Life {
    /// Keeps as many pods of a budget as it says, and its status as its controller would.
    pub async fn replicate(&self, objects: &[Value], budget: &Value) {
        let number = |value: &Value| value.as_str().and_then(|text| text.parse::<usize>().ok());
        let kept = number(&budget["metadata"]["annotations"][KEPT]).unwrap_or(0);
        let app = budget["spec"]["selector"]["matchLabels"]["app"]
            .as_str()
            .unwrap_or_default();
        let mut standing: Vec<&Value> = selected(objects, budget)
            .filter(|pod| !is_deleting(pod))
            .collect();
        let first = self.server.version();
        for serial in (first..).take(kept.saturating_sub(standing.len())) {
            let cores = number(&budget["metadata"]["annotations"][SIZE]).unwrap_or(2);
            self.create(&pod_of(&format!("{app}-{serial}"), app, cores)).await;
        }
        // Those that run go last.
        standing.sort_by_key(|pod| pod["spec"]["nodeName"].is_string());
        for surplus in standing.iter().take(standing.len().saturating_sub(kept)) {
            delete(&self.server, surplus).await;
        }
        let running = selected(objects, budget)
            .filter(|pod| pod["spec"]["nodeName"].is_string() && !is_deleting(pod))
            .count();
        let least = usize::try_from(budget["spec"]["minAvailable"].as_u64().unwrap_or(0)).unwrap_or(0);
        let status = json!({"disruptionsAllowed": running.saturating_sub(least), "currentHealthy": running,
            "desiredHealthy": least, "expectedPods": kept});
        if budget["status"] != status {
            // Only over the budget it counted by, as the real controller: an eviction in between has spent a disruption.
            let counted = json!({"metadata": {"resourceVersion": budget["metadata"]["resourceVersion"]}, "status": status});
            let _ = api_of(&self.server, budget)
                .patch_status(name(budget), &PatchParams::default(), &Patch::Merge(counted))
                .await;
        }
    }

    /// Puts pods on nodes without taints that have cores left, and says where there are none.
    pub async fn schedule(&self, objects: &[Value]) {
        let cores = |pod: &Value| -> i64 {
            let asked = &pod["spec"]["containers"][0]["resources"]["requests"]["cpu"];
            asked.as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let mut left: BTreeMap<&str, i64> = of_kind(objects, "Node")
            .filter(|node| !is_deleting(node) && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty))
            .map(|node| (name(node), CORES))
            .collect();
        for pod in of_kind(objects, "Pod") {
            if let Some(node) = pod["spec"]["nodeName"].as_str() {
                if find(objects, "Node", node).is_none() {
                    delete(&self.server, pod).await;
                } else if let Some(left) = left.get_mut(node) {
                    *left -= cores(pod);
                }
            }
        }
        for pod in of_kind(objects, "Pod").filter(|pod| pod["spec"]["nodeName"].is_null()) {
            let asked = cores(pod);
            if let Some((node, left)) = left.iter_mut().find(|(_, left)| **left >= asked) {
                *left -= asked;
                merge(&self.server, pod, json!({"spec": {"nodeName": node}})).await;
                merge_status(&self.server, pod, json!({"phase": "Running", "conditions": null})).await;
            } else if pod["status"]["conditions"].is_null() {
                let unschedulable =
                    json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
                let status = json!({"phase": "Pending", "conditions": unschedulable});
                merge_status(&self.server, pod, status).await;
            }
        }
    }
}

/// A pod of two cores, so that two share a node.
pub fn pod(named: &str, app: &str) -> Value {
    pod_of(named, app, 2)
}

pub fn pod_of(named: &str, app: &str, cores: usize) -> Value {
    let requests = json!({"cpu": cores.to_string(), "memory": "1Gi"});
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": named, "namespace": NAMESPACE, "labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]}})
}
