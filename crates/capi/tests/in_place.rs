//! An update in place, started against the real apiserver: what an extension is asked, and the writes that start it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use slipway_capi::{
    apply::{self, FieldManagers},
    hook::{
        coverage,
        prepare::{Prepared, can_update_machine},
        registry,
        types::{CanUpdateMachineResponse, MachineObjects, Patch},
    },
    in_place::{self, Resources, perform, trigger},
    names::annotation,
    secret::{self, KeyPair, Purpose},
    view::Machine,
};
use slipway_runtime::{Class, Classified};
use slipway_testbed::shared;

const MANAGERS: FieldManagers = FieldManagers {
    spec: "slipway-in-place",
    metadata: "slipway-in-place-metadata",
};

fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta2", kind))
}

/// A Machine whose infrastructure and bootstrap objects are both KubeadmConfigs, the one kind with a free spec here.
fn objects(namespace: &str, version: &str, command: &str, format: &str) -> MachineObjects {
    let config = |name: &str| {
        json!({"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfig",
            "metadata": {"name": name, "namespace": namespace, "labels": {"l": command},
                "annotations": {"cluster.x-k8s.io/cloned-from-name": "template"}},
            "spec": {"preKubeadmCommands": [command], "format": format}})
    };
    MachineObjects {
        machine: json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": "m", "namespace": namespace},
            "spec": {"clusterName": "edge", "version": version,
                "infrastructureRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": "infra"},
                "bootstrap": {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig",
                    "name": "boot"}}}}),
        infrastructure_machine: config("infra"),
        bootstrap_config: Some(config("boot")),
    }
}

#[tokio::test]
async fn an_update_is_asked_for_and_started_again_after_any_step() {
    let cluster = shared("capi").await.expect("the shared cluster runs");
    let (client, namespace) = (cluster.client(), cluster.namespace("in-place").await.unwrap());
    let config = resource("bootstrap.cluster.x-k8s.io", "KubeadmConfig");
    let resources = Resources {
        machine: resource("cluster.x-k8s.io", "Machine"),
        infrastructure_machine: config.clone(),
        bootstrap_config: Some(config.clone()),
    };
    let current = objects(&namespace, "v1.36.1", "one", "cloud-config");
    let desired = objects(&namespace, "v1.36.2", "two", "cloud-config");
    apply::create(&client, &resources.machine, MANAGERS, &current.machine)
        .await
        .unwrap();
    for object in [
        &current.infrastructure_machine,
        current.bootstrap_config.as_ref().unwrap(),
    ] {
        apply::create(&client, &config, MANAGERS, object).await.unwrap();
    }

    // What the apiserver would refuse needs no asking.
    let refused = objects(&namespace, "v1.36.2", "two", "papyrus");
    let Prepared::Cannot(reason) = can_update_machine(&client, MANAGERS, &resources, &current, &refused)
        .await
        .unwrap()
    else {
        panic!("the apiserver refuses that format")
    };
    assert!(
        reason.starts_with("server side apply dry-run for desired InfraMachine failed: ")
            && reason.contains("papyrus"),
        "{reason}"
    );

    let Prepared::Ask(request) = can_update_machine(&client, MANAGERS, &resources, &current, &desired)
        .await
        .unwrap()
    else {
        panic!("the change is valid")
    };
    let uncovered = |response: &CanUpdateMachineResponse| -> Vec<String> {
        let list = coverage::uncovered_of_machine("h", &request, response).unwrap();
        list.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        uncovered(&CanUpdateMachineResponse::default()),
        [
            "KubeadmConfig /spec/preKubeadmCommands",
            "KubeadmConfig /spec/preKubeadmCommands",
            "Machine /spec/version"
        ],
        "the changes and nothing else: no defaults, no labels"
    );
    let covered = Patch::merge(&json!({"spec": {"preKubeadmCommands": ["two"]}}));
    let all = CanUpdateMachineResponse {
        machine_patch: Patch::merge(&json!({"spec": {"version": "v1.36.2"}})),
        infrastructure_machine_patch: covered.clone(),
        bootstrap_config_patch: covered,
        ..Default::default()
    };
    assert!(uncovered(&all).is_empty());

    let machines: Api<Machine> = Api::namespaced(client.clone(), &namespace);
    let configs: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &config);
    // A crash after each number of writes; the next reconcile computes them again from what is stored.
    for done in 1..=4 {
        let machine = machines.get("m").await.unwrap();
        let writes = trigger(&machine.metadata, &desired, MANAGERS);
        perform(
            &client,
            &resources,
            &machine.metadata,
            &writes[..done.min(writes.len() - 1)],
        )
        .await
        .unwrap();
        let half = machines.get("m").await.unwrap();
        assert!(in_place::is_half_triggered(&half.metadata), "after {done} writes");
    }
    let machine = machines.get("m").await.unwrap();
    let writes = trigger(&machine.metadata, &desired, MANAGERS);
    let written = perform(&client, &resources, &machine.metadata, &writes)
        .await
        .unwrap()
        .expect("it was written");
    let machine = machines.get("m").await.unwrap();
    assert_eq!(
        machine.metadata.resource_version,
        written.metadata.resource_version
    );
    assert!(machine.is_updating_in_place() && !in_place::is_half_triggered(&machine.metadata));
    assert_eq!(machine.spec.version, "v1.36.2");
    for name in ["infra", "boot"] {
        let object = configs.get(name).await.unwrap();
        assert_eq!(object.data["spec"]["preKubeadmCommands"], json!(["two"]));
        let annotations = object.metadata.annotations.unwrap();
        assert!(annotations.contains_key(annotation::UPDATE_IN_PROGRESS));
        assert_eq!(annotations[annotation::CLONED_FROM_NAME], "template");
        assert_eq!(
            object.metadata.labels.unwrap()["l"],
            "one",
            "labels are the other manager's"
        );
    }
}

#[tokio::test]
async fn without_an_extension_there_is_no_handler() {
    let cluster = shared("capi").await.expect("the shared cluster runs");
    let client = cluster.client();
    let namespace = cluster.namespace("handlers").await.unwrap();
    let labels: BTreeMap<_, _> = registry::namespace_labels(&client, &namespace).await.unwrap();
    assert_eq!(labels["kubernetes.io/metadata.name"], namespace);
    let registry = registry::load(&client).await.unwrap();
    assert!(registry.handler("UpdateMachine", &labels).unwrap().is_none());
}

#[tokio::test]
async fn the_first_secret_of_a_name_counts() {
    let cluster = shared("capi").await.expect("the shared cluster runs");
    let (client, namespace) = (cluster.client(), cluster.namespace("secrets").await.unwrap());
    let made = |certificate: &str| {
        let pair = KeyPair {
            certificate: certificate.to_owned(),
            key: None,
        };
        secret::key_pair_secret(&namespace, "edge", Purpose::ClusterCa, None, &pair)
    };
    secret::store::create(&client, &made("first")).await.unwrap();
    let stored = secret::store::create(&client, &made("second")).await.unwrap();
    assert_eq!(secret::read_key_pair(&stored).unwrap().certificate, "first");
    let found = secret::store::lookup(&client, &namespace, "edge", Purpose::ALL)
        .await
        .unwrap();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [Purpose::ClusterCa]);
    let as_json: Value = serde_json::to_value(&found[&Purpose::ClusterCa]).unwrap();
    assert_eq!(as_json["type"], "cluster.x-k8s.io/secret");
}

#[tokio::test]
async fn bootstrap_data_is_stored_once_and_never_over_a_secret_of_another() {
    let cluster = shared("capi").await.expect("the shared cluster runs");
    let (client, namespace) = (cluster.client(), cluster.namespace("data").await.unwrap());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let owners: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let owner = async |name: &str| {
        let mut owner = ConfigMap::default();
        owner.metadata.name = Some(name.to_owned());
        owners.create(&PostParams::default(), &owner).await.unwrap()
    };
    let config = owner("edge-0").await;
    let store = async |config: &ConfigMap, data: &str| {
        let data = data.to_owned().into();
        secret::store::bootstrap_data(&client, config, "edge", "cloud-config", &data).await
    };
    let stored = async || {
        let found = secrets.get("edge-0").await.unwrap();
        let text = |key: &str| String::from_utf8(found.data.as_ref().unwrap()[key].0.clone()).unwrap();
        let version = found.metadata.resource_version.clone();
        (text("value"), text("format"), version)
    };
    store(&config, "one").await.unwrap();
    let first = stored().await;
    assert_eq!((first.0.as_str(), first.1.as_str()), ("one", "cloud-config"));
    store(&config, "one").await.unwrap();
    assert_eq!(stored().await, first, "the same again is no write");
    store(&config, "two").await.unwrap();
    assert_eq!(stored().await.0, "two");

    let mut other = owner("other").await;
    other.metadata.name = Some("edge-0".to_owned());
    let refused = store(&other, "hidden").await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "Secret {namespace}/edge-0 cannot be used: bootstrap data is to be stored under its name, and it belongs to \
             another object: delete or rename it"
        )
    );
    assert_eq!(refused.class(), Class::Terminal);
    assert_eq!(stored().await.0, "two");
}
