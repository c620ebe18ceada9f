//! What only a real kube-apiserver can show: that it takes our definitions and their rules, keeps every field, and refuses what they refuse,
//! also where no webhook runs.

use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use slipway_agent::address::{
    lease::{LeasePlace, Leases, OwnCluster},
    turn::{LeaseState, Role, Write, Wrote},
};
use slipway_edge::api;
use slipway_testbed::{install::install, shared};

const DIGEST: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";

async fn with_definitions() -> (Client, String) {
    let cluster = shared("plain").await.expect("the shared cluster runs");
    let namespace = cluster.namespace("edge").await.expect("a namespace");
    let definitions: Vec<Value> = api::infrastructure()
        .into_iter()
        .chain(api::hosts())
        .chain(api::upgrades())
        .chain(api::images())
        .map(|crd| json!(crd))
        .collect();
    let client = cluster.client();
    install(&client, &definitions)
        .await
        .unwrap_or_else(|error| panic!("a definition is refused: {error}"));
    (client, namespace)
}

fn group(kind: &str) -> &'static str {
    if kind.starts_with("EdgeCluster") || kind.starts_with("EdgeMachine") {
        api::INFRASTRUCTURE_GROUP
    } else {
        api::GROUP
    }
}

fn objects(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group(kind), api::VERSION, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

async fn create(client: &Client, namespace: &str, kind: &str, spec: &Value) -> Result<Value, kube::Error> {
    let api = objects(client, namespace, kind);
    let version = format!("{}/{}", group(kind), api::VERSION);
    let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "one"}, "spec": spec});
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    let stored = api.create(&PostParams::default(), &object).await?;
    Ok(stored.data["spec"].clone())
}

/// What is said to a change, or nothing.
async fn change(client: &Client, namespace: &str, kind: &str, patch: Value) -> String {
    let api = objects(client, namespace, kind);
    let patched = api
        .patch(
            "one",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": patch})),
        )
        .await;
    patched.err().map(|error| error.to_string()).unwrap_or_default()
}

fn specs() -> Vec<(&'static str, Value)> {
    let image = json!({"reference": "registry.example.com/k3s", "digest": DIGEST});
    let selector = json!({"matchLabels": {"site": "north"}});
    let window = json!({"days": ["Monday"], "start": "02:00", "minutes": 60, "timeZone": "Europe/Berlin"});
    let cluster = json!({"controlPlaneEndpoint": {"host": "192.0.2.10", "port": 6443},
        "virtualAddress": {"address": "192.0.2.10/24", "interface": "eth0", "port": 6443}});
    let machine = json!({"hostSelector": selector, "image": image,
        "minimum": {"processors": 4, "memoryMiB": 8192, "architecture": "x86_64"}});
    let mut bound = machine.clone();
    bound["providerID"] = json!("edge://default/box-1/uid");
    bound["hostName"] = json!("box-1");
    let metadata = json!({"labels": {"a": "b"}, "annotations": {"c": "d"}});
    vec![
        ("EdgeCluster", cluster.clone()),
        (
            "EdgeClusterTemplate",
            json!({"template": {"metadata": metadata, "spec": cluster}}),
        ),
        ("EdgeMachine", bound),
        (
            "EdgeMachineTemplate",
            json!({"template": {"metadata": metadata, "spec": machine}}),
        ),
        (
            "EdgeHost",
            json!({"address": "192.0.2.7:7443", "failureDomain": "north", "maintenance": "new fan",
                "claim": {"name": "m-1", "uid": "uid-1", "released": true}}),
        ),
        (
            "HostImage",
            json!({"images": [{"reference": "registry.example.com/k3s", "digest": DIGEST, "delivery": "K3s"}],
                "hostSelector": selector, "parallelism": "25%", "windows": [window], "paused": true, "pullSecretName": "pull"}),
        ),
        (
            "NodeUpgrade",
            json!({"machineName": "m-1", "machineUID": "uid-1", "hostName": "box-1", "image": image, "version": "v1.34.3+k3s1",
                "desiredHash": "abc", "role": "ControlPlane", "distribution": "Kubeadm", "policyName": "slow", "tries": 3,
                "drain": {"skip": true, "minutes": 5, "onTimeout": "Reboot", "retryMinutes": 7},
                "deadlines": {"rebootMinutes": 9, "verifyMinutes": 8}, "allowDowngrade": true, "snapshotCommand": ["save"]}),
        ),
        (
            "UpgradePolicy",
            json!({"waves": [{"name": "canary", "selector": selector, "size": 1}], "soakMinutes": 60, "windows": [window],
                "maxConcurrent": "10%", "stopAfterRollbacks": 2,
                "healthGates": [{"kind": "Deployment", "namespace": "shop", "selector": selector}, {"kind": "Node"}], "mandatoryVersions": ["v1.34.2"], "knownVersions": ["v1.34.3"]}),
        ),
        (
            "ClusterUpgrade",
            json!({"clusterName": "edge", "version": "v1.35.0", "policyName": "slow", "canary": "workers", "paused": true,
                "images": [{"version": "v1.35.0", "reference": "registry.example.com/k3s", "digest": DIGEST}],
                "topologyImageVariable": "nodeImage"}),
        ),
    ]
}

#[tokio::test]
async fn definitions_are_taken_keep_every_field_and_refuse_what_must_not_change() {
    let (client, namespace) = with_definitions().await;
    for (kind, spec) in specs() {
        let stored = create(&client, &namespace, kind, &spec).await;
        let stored = stored.unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(stored, spec, "{kind} comes back as it was sent");
    }
    for (kind, patch, message) in [
        (
            "EdgeCluster",
            json!({"controlPlaneEndpoint": {"host": "192.0.2.11"}}),
            "controlPlaneEndpoint cannot be changed",
        ),
        (
            "EdgeCluster",
            json!({"virtualAddress": null}),
            "virtualAddress cannot be changed",
        ),
        (
            "EdgeMachine",
            json!({"providerID": null}),
            "providerID cannot be changed",
        ),
        (
            "EdgeHost",
            json!({"claim": {"uid": "uid-2"}}),
            "claim cannot go from one machine to another",
        ),
        (
            "EdgeHost",
            json!({"claim": {"released": false}}),
            "claim.released cannot be taken back",
        ),
        (
            "EdgeHost",
            json!({"claim": {"released": null}}),
            "claim.released cannot be taken back",
        ),
        (
            "NodeUpgrade",
            json!({"version": "v1.34.4"}),
            "a newer NodeUpgrade of the machine takes its place",
        ),
        (
            "ClusterUpgrade",
            json!({"clusterName": "other"}),
            "clusterName cannot be changed",
        ),
    ] {
        let said = change(&client, &namespace, kind, patch.clone()).await;
        assert!(said.contains(message), "{kind} {patch}: {said:?}");
    }
    for (kind, patch) in [
        (
            "EdgeMachine",
            json!({"image": {"digest": DIGEST.replace("aa", "bb")}}),
        ),
        ("EdgeHost", json!({"claim": null})),
        ("ClusterUpgrade", json!({"paused": false})),
    ] {
        assert_eq!(
            change(&client, &namespace, kind, patch.clone()).await,
            "",
            "{kind} {patch}"
        );
    }
}

/// The lease of a virtual address as an agent has it, with the kubeconfig of its host: made once, renewed, and never written over a version
/// that somebody else has written since.
#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_an_address_is_one_hosts_in_a_real_apiserver() {
    let cluster = shared("plain").await.expect("the shared cluster runs");
    let namespace = cluster.namespace("address").await.expect("a namespace");
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("k3s.yaml");
    let port = cluster.server().rsplit(':').next().expect("a port");
    let place = LeasePlace {
        namespace: namespace.clone(),
        name: "slipway-virtual-address".to_owned(),
        kubeconfigs: vec![folder.path().join("none.yaml"), kubeconfig.clone()],
        port: port.trim_end_matches('/').parse().expect("a number"),
    };
    let (one, other) = (OwnCluster::new(place.clone()), OwnCluster::new(place));
    let said = one.read().await.expect_err("k3s is not there yet");
    assert!(said.contains("no kubeconfig on this host yet"), "{said}");
    std::fs::write(&kubeconfig, cluster.kubeconfig_as("root", Some("system:masters"))).expect("written");
    assert_eq!(one.read().await, Ok(None));
    let make = Write {
        over: None,
        role: Role::Maker,
    };
    assert_eq!(one.write("box-1", &make).await, Wrote::Done);
    assert_eq!(
        other.write("box-2", &make).await,
        Wrote::Refused,
        "it is made once"
    );
    let seen = other.read().await.expect("read").expect("a lease");
    assert_eq!(seen.holder, "box-1");
    let over = |seen: &LeaseState| Write {
        over: Some(seen.version.clone()),
        role: Role::Member,
    };
    let own = one.read().await.expect("read").expect("a lease");
    assert_eq!(one.write("box-1", &over(&own)).await, Wrote::Done, "renewed");
    assert_eq!(
        other.write("box-2", &over(&seen)).await,
        Wrote::Refused,
        "it was renewed since"
    );
    let seen = other.read().await.expect("read").expect("a lease");
    assert_eq!(other.write("box-2", &over(&seen)).await, Wrote::Done);
    assert_eq!(one.read().await.expect("read").expect("a lease").holder, "box-2");
}
