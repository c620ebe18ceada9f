//! What `slipway up` shows of edge: two hosts that join, a K3s cluster on them, its upgrade in place, and an upgrade that one host does not
//! survive. The hosts are those of `edge-sim`.

use serde_json::{Value, json};
use slipway_runtime::provider::{Example, Simulator};

use crate::{
    api::{GROUP, INFRASTRUCTURE_GROUP, VERSION},
    cluster_upgrade::status::HALTED,
    fleet,
    hooks::can_update::STRATEGY,
    host::status::CLAIMED,
};

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";
const NAMESPACE: &str = "default";
const NAME: &str = "demo-edge";
const FOLLOWED: &[[&str; 3]] = &[
    [GROUP, VERSION, "ClusterUpgrade"],
    [GROUP, VERSION, "NodeUpgrade"],
];

pub fn simulator() -> Simulator {
    Simulator {
        program: "edge-sim",
        needs_workload: false,
        arguments: |surroundings| {
            let path = |path: &std::path::Path| path.display().to_string();
            vec![
                "--management".to_owned(),
                path(surroundings.management),
                "--slipway".to_owned(),
                path(surroundings.slipway),
            ]
        },
        environment: |_, _| Vec::new(),
        flags: |said| {
            let manager = said["manager"].as_str().unwrap_or(fleet::DEFAULT_ADDRESS);
            vec![format!("--{}={manager}", fleet::ADDRESS_FLAG)]
        },
        addresses: |said| {
            let text = |pointer: &str| {
                said.pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            vec![("edge hosts join", text("/manager"))]
        },
    }
}

pub fn examples() -> Vec<Example> {
    let objects = cluster();
    let place = |kind: &str, name: &str| {
        let is_it = |object: &Value| object["kind"] == kind && object["metadata"]["name"] == name;
        objects.iter().position(is_it)
    };
    // A MachineDeployment that may miss its only machine is available without it.
    let becomes = [
        (place("KThreesControlPlane", NAME), "Available"),
        (place("EdgeHost", "box-2"), CLAIMED),
        (
            place("MachineDeployment", &format!("{NAME}-workers")),
            "MachinesReady",
        ),
        (place("Cluster", NAME), "Available"),
    ];
    let becomes = becomes
        .into_iter()
        .filter_map(|(place, condition)| Some((place?, condition)))
        .collect();
    let upgrade = |title, to: usize, becomes| Example {
        title,
        objects: vec![upgrade(to)],
        becomes: vec![(0, becomes)],
        follows: FOLLOWED,
    };
    vec![
        Example {
            title: "A K3s cluster on two edge hosts",
            objects,
            becomes,
            follows: &[],
        },
        upgrade(
            "Its hosts are upgraded in place to the next minor version",
            1,
            "Ready",
        ),
        upgrade(
            "An image that one of the hosts does not boot: it goes back, and the upgrade stops",
            2,
            HALTED,
        ),
    ]
}

/// One of the images that the simulated hosts can boot.
fn image(number: usize) -> Value {
    json!({"reference": format!("$said/images/{number}/reference"), "digest": format!("$said/images/{number}/digest")})
}

fn version(number: usize) -> Value {
    json!(format!("$said/images/{number}/version"))
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "namespace": NAMESPACE})
}

fn upgrade(to: usize) -> Value {
    let images: Vec<Value> = (1..=to)
        .map(|number| {
            let mut image = image(number);
            image["version"] = version(number);
            image
        })
        .collect();
    json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ClusterUpgrade", "metadata": metadata(NAME),
        "spec": {"clusterName": NAME, "version": version(to), "images": images}})
}

fn cluster() -> Vec<Value> {
    let infrastructure = format!("{INFRASTRUCTURE_GROUP}/{VERSION}");
    let (servers, workers) = (format!("{NAME}-servers"), format!("{NAME}-workers"));
    let host = |name: &str, role: &str| {
        json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "EdgeHost",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"role": role}}, "spec": {}})
    };
    let template = |name: &str, role: &str| {
        json!({"apiVersion": infrastructure, "kind": "EdgeMachineTemplate", "metadata": metadata(name),
            "spec": {"template": {"spec": {"hostSelector": {"matchLabels": {"role": role}}, "image": image(0)}}}})
    };
    // k3s comes with the image, and a node is known by the claim of its host.
    let agent = json!({"airGapped": true, "providerID": "{{ ds.meta_data.provider_id }}"});
    vec![
        host("box-1", "server"),
        host("box-2", "worker"),
        template(&servers, "server"),
        template(&workers, "worker"),
        json!({"apiVersion": infrastructure, "kind": "EdgeCluster", "metadata": metadata(NAME), "spec": {
            "controlPlaneEndpoint": {"host": "$said/endpoint/host", "port": "$said/endpoint/port"}}}),
        json!({"apiVersion": format!("{CONTROL_PLANE}/v1beta2"), "kind": "KThreesControlPlane", "metadata": metadata(NAME), "spec": {
            "replicas": 1,
            "version": version(0),
            "rolloutStrategy": {"type": "External"},
            "kthreesConfigSpec": {"agentConfig": agent},
            "machineTemplate": {"infrastructureRef": {"apiVersion": infrastructure, "kind": "EdgeMachineTemplate", "name": servers,
                "namespace": NAMESPACE}},
        }}),
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": metadata(NAME), "spec": {
            "clusterNetwork": {"pods": {"cidrBlocks": ["10.42.0.0/16"]}},
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeCluster", "name": NAME},
            "controlPlaneRef": {"apiGroup": CONTROL_PLANE, "kind": "KThreesControlPlane", "name": NAME},
        }}),
        json!({"apiVersion": format!("{BOOTSTRAP}/v1beta2"), "kind": "KThreesConfigTemplate", "metadata": metadata(&workers),
            "spec": {"template": {"spec": {"agentConfig": agent}}}}),
        json!({"apiVersion": CORE, "kind": "MachineDeployment",
            "metadata": {"name": workers, "namespace": NAMESPACE, "annotations": {(STRATEGY): "External"}}, "spec": {
            "clusterName": NAME,
            "replicas": 1,
            "selector": {"matchLabels": {"pool": workers}},
            "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
            "template": {"metadata": {"labels": {"pool": workers}}, "spec": {
                "clusterName": NAME,
                "version": version(0),
                "bootstrap": {"configRef": {"apiGroup": BOOTSTRAP, "kind": "KThreesConfigTemplate", "name": workers}},
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachineTemplate", "name": workers},
            }},
        }}),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_so_is_among_the_objects() {
        let examples = examples();
        assert_eq!(
            examples.iter().map(|one| one.becomes.len()).collect::<Vec<_>>(),
            [4, 1, 1]
        );
        for example in &examples {
            let there = |(index, _): &(usize, &str)| *index < example.objects.len();
            assert!(example.becomes.iter().all(there));
        }
    }
}
