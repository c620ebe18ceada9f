//! Nodes as the kubelet and k3s' controllers write them. Pure: data in, objects out.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    cloud_config::Config,
    cluster::Machine,
    model::{ADDRESS_ANNOTATION, MEMBER_ANNOTATION, Node, REMOVE_ANNOTATION, REMOVED_ANNOTATION},
};

/// The annotations k3s keeps; every other is somebody else's.
const OURS: [&str; 4] = [
    MEMBER_ANNOTATION,
    ADDRESS_ANNOTATION,
    REMOVE_ANNOTATION,
    REMOVED_ANNOTATION,
];
pub const ROLES: [&str; 3] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/etcd",
    "node-role.kubernetes.io/master",
];

/// What the kubelet registers with, besides what the model knows.
#[derive(Clone, Debug, Default)]
pub struct Registration {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Value>,
    pub provider_id: Option<String>,
    pub capacity: BTreeMap<String, String>,
    pub address: String,
}

impl Registration {
    pub fn new(machine: &Machine, config: &Config, address: &str) -> Self {
        let mut labels = machine.labels.clone();
        if let Some(zone) = &machine.failure_domain {
            labels.insert("topology.kubernetes.io/zone".into(), zone.clone());
        }
        for label in &config.node_labels {
            let (key, value) = label.split_once('=').unwrap_or((label, ""));
            labels.insert(key.to_owned(), value.to_owned());
        }
        let argument = |name: &str| {
            config
                .kubelet_arguments
                .iter()
                .find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='))
                .map(str::to_owned)
        };
        // An external cloud controller sets the id that the platform knows, unless the kubelet brought one.
        let external = argument("cloud-provider").is_some_and(|provider| provider == "external");
        let provider_id = argument("provider-id").or_else(|| external.then(|| machine.provider_id.clone()));
        Self {
            labels,
            taints: config.node_taints.iter().map(|text| taint(text)).collect(),
            provider_id,
            capacity: machine.capacity.clone(),
            address: address.to_owned(),
        }
    }
}

/// `key=value:Effect`.
fn taint(text: &str) -> Value {
    let (rest, effect) = text.rsplit_once(':').unwrap_or((text, "NoSchedule"));
    match rest.split_once('=') {
        Some((key, value)) => json!({"key": key, "value": value, "effect": effect}),
        None => json!({"key": rest, "effect": effect}),
    }
}

/// A node that does not exist yet.
pub fn registered(name: &str, node: &Node, with: &Registration) -> Value {
    let mut labels = json!({
        "beta.kubernetes.io/arch": "amd64",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "k3s",
    });
    for (key, value) in node.labels.iter().chain(&with.labels) {
        labels[key] = json!(value);
    }
    let mut spec = json!({"taints": with.taints});
    if let Some(id) = &with.provider_id {
        spec["providerID"] = json!(id);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": node.annotations},
        "spec": spec,
    })
}

/// The whole status.
pub fn status(name: &str, node: &Node, with: &Registration) -> Value {
    let mut status = changed_status(node);
    let capacity = if with.capacity.is_empty() {
        json!({"cpu": "4", "memory": "8Gi", "pods": "110"})
    } else {
        json!(with.capacity)
    };
    status["capacity"] = capacity.clone();
    status["allocatable"] = capacity;
    status["addresses"] = json!([
        {"type": "InternalIP", "address": with.address},
        {"type": "Hostname", "address": name},
    ]);
    status
}

/// What changes of a status in a node's life.
pub fn changed_status(node: &Node) -> Value {
    let condition = |type_: &str, status: &str, reason: &str, message: &str, at: (Timestamp, Timestamp)| {
        json!({"type": type_, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": seconds(at.0), "lastTransitionTime": seconds(at.1)})
    };
    let since = (node.ready_since, node.ready_since);
    let (status, reason, message) = if node.ready {
        ("True", "KubeletReady", "kubelet is posting ready status")
    } else {
        (
            "Unknown",
            "NodeStatusUnknown",
            "Kubelet stopped posting node status.",
        )
    };
    let mut conditions = vec![condition("Ready", status, reason, message, since)];
    let pressure = if node.ready { "False" } else { "Unknown" };
    for type_ in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
        conditions.push(condition(type_, pressure, reason, message, since));
    }
    if let Some(voter) = &node.voter {
        let status = if voter.status { "True" } else { "False" };
        let at = (voter.heartbeat, voter.transition);
        conditions.push(condition("EtcdIsVoter", status, voter.reason, &voter.message, at));
    }
    json!({
        "conditions": conditions,
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "",
            "containerRuntimeVersion": "containerd://2.1.4-k3s1",
            "kernelVersion": "simulated",
            "kubeProxyVersion": node.kubelet_version,
            "kubeletVersion": node.kubelet_version,
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "simulated",
            "systemUUID": "",
        },
    })
}

/// What k3s changes of a node's metadata, as a merge patch.
pub fn changed_metadata(node: &Node) -> Value {
    let of = |map: &BTreeMap<String, String>, keys: &[&str]| -> Value {
        keys.iter()
            .map(|key| ((*key).to_owned(), json!(map.get(*key))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    json!({"metadata": {"labels": of(&node.labels, &ROLES), "annotations": of(&node.annotations, &OURS)}})
}

fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_registers_with_what_its_configuration_says() {
        let machine = Machine {
            name: "a".into(),
            provider_id: "testhost://ns/a".into(),
            failure_domain: Some("west".into()),
            ..Machine::default()
        };
        let mut config = Config {
            node_labels: vec!["pool=fast".into()],
            node_taints: vec!["gpu=yes:NoExecute".into(), "edge:NoSchedule".into()],
            kubelet_arguments: vec!["cloud-provider=external".into()],
            ..Config::default()
        };
        let with = Registration::new(&machine, &config, "10.0.0.1");
        assert_eq!(with.provider_id.as_deref(), Some("testhost://ns/a"));
        assert_eq!(with.labels["pool"], "fast");
        assert_eq!(with.labels["topology.kubernetes.io/zone"], "west");
        assert_eq!(
            with.taints[0],
            json!({"key": "gpu", "value": "yes", "effect": "NoExecute"})
        );
        assert_eq!(with.taints[1], json!({"key": "edge", "effect": "NoSchedule"}));
        config.kubelet_arguments.push("provider-id=own://a".into());
        let with = Registration::new(&machine, &config, "10.0.0.1");
        assert_eq!(with.provider_id.as_deref(), Some("own://a"));
    }
}
