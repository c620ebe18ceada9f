//! What `slipway up` shows of K3s: a cluster of three servers and a worker, on the test hosts that run there.

use serde_json::{Value, json};
use slipway_runtime::provider::Example;

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const HOSTS: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const NAMESPACE: &str = "default";
const NAME: &str = "edge";
const VERSION: &str = "v1.35.2+k3s1";

pub fn example() -> Example {
    let objects = objects();
    let becomes = ["KThreesControlPlane", "MachineDeployment", "Cluster"]
        .into_iter()
        .filter_map(|kind| objects.iter().position(|object| object["kind"] == kind))
        .map(|index| (index, "Available"))
        .collect();
    Example {
        title: "A K3s cluster of three servers and a worker",
        objects,
        becomes,
        follows: &[],
    }
}

fn objects() -> Vec<Value> {
    let metadata = |name: &str| json!({"name": name, "namespace": NAMESPACE});
    let group = "infrastructure.cluster.x-k8s.io";
    vec![
        json!({"apiVersion": HOSTS, "kind": "TestHostCluster", "metadata": metadata(NAME), "spec": {}}),
        json!({"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "metadata": metadata(NAME),
            "spec": {"template": {"spec": {}}}}),
        json!({"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KThreesControlPlane",
        "metadata": metadata(NAME), "spec": {
            "replicas": 3,
            "version": VERSION,
            "machineTemplate": {
                "infrastructureRef": {"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "name": NAME},
            },
        }}),
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": metadata(NAME), "spec": {
            "clusterNetwork": {"pods": {"cidrBlocks": ["10.42.0.0/16"]}},
            "infrastructureRef": {"apiGroup": group, "kind": "TestHostCluster", "name": NAME},
            "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KThreesControlPlane", "name": NAME},
        }}),
        json!({"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KThreesConfigTemplate",
        "metadata": metadata(NAME), "spec": {"template": {"spec": {
            "agentConfig": {"nodeLabels": ["example.slipway.dev/pool=workers"]},
        }}}}),
        json!({"apiVersion": CORE, "kind": "MachineDeployment", "metadata": metadata("edge-workers"), "spec": {
            "clusterName": NAME,
            "replicas": 1,
            "selector": {"matchLabels": {"pool": "workers"}},
            "template": {"metadata": {"labels": {"pool": "workers"}}, "spec": {
                "clusterName": NAME,
                "version": VERSION,
                "bootstrap": {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KThreesConfigTemplate", "name": NAME}},
                "infrastructureRef": {"apiGroup": group, "kind": "TestHostMachineTemplate", "name": NAME},
            }},
        }}),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_available_is_among_the_objects() {
        let example = example();
        assert_eq!(example.becomes.len(), 3);
        assert!(
            example
                .becomes
                .iter()
                .all(|(index, _)| *index < example.objects.len())
        );
    }
}
