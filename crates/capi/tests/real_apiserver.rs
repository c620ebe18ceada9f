//! What only a real kube-apiserver with Cluster API can show: preconditions of patches, field ownership, core's own
//! conditions, and certificates that are accepted.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    runtime::wait::await_condition,
};
use serde_json::{Value, json};
use slipway_capi::{
    Error,
    apply::{self, FieldManagers},
    condition::{self, says},
    finalizer,
    paused::paused,
    reference,
    secret::{
        KeyPair,
        certificate::{DAY, KeyAlgorithm},
        kubeconfig,
    },
    view::{Cluster, Conditions, ObjectReference},
};
use slipway_runtime::{Class, Classified, Outcome};
use slipway_testbed::shared;

const MANAGERS: FieldManagers = FieldManagers {
    spec: "slipway-test",
    metadata: "slipway-test-metadata",
};
/// Core answers within a second; this only keeps a broken one from hanging the run.
const HANG_GUARD: Duration = Duration::from_mins(1);

async fn namespace(prefix: &str) -> (Client, String) {
    let cluster = shared("capi").await.expect("the shared cluster runs");
    let namespace = cluster.namespace(prefix).await.expect("a namespace");
    (cluster.client(), namespace)
}

#[tokio::test]
async fn finalizers_survive_stale_reads_and_go_only_when_all_is_done() {
    const OURS: &str = "slipway.dev/ours";
    let (client, namespace) = namespace("finalizer").await;
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    let stale = maps.create(&PostParams::default(), &map).await.unwrap();

    let theirs = finalizer::ensure(&maps, &stale, "slipway.dev/theirs")
        .await
        .unwrap()
        .unwrap();
    // Made from the object without finalizers, ours would have replaced theirs.
    let conflict = finalizer::ensure(&maps, &stale, OURS).await.unwrap_err();
    assert!(matches!(conflict, Error::Changed { .. }), "{conflict:?}");
    assert_eq!(conflict.class(), Class::Conflict);
    let both = finalizer::ensure(&maps, &theirs, OURS).await.unwrap().unwrap();
    assert_eq!(
        both.metadata.finalizers.as_deref().unwrap(),
        ["slipway.dev/theirs", OURS]
    );
    assert!(
        finalizer::ensure(&maps, &both, OURS).await.unwrap().is_none(),
        "stored once"
    );

    assert!(
        !finalizer::release(&maps, &both, OURS, Outcome::Done)
            .await
            .unwrap(),
        "it is not being deleted"
    );
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    let deleting = maps.get("a").await.unwrap();
    let waiting = Outcome::InProgress(Duration::from_secs(1));
    assert!(!finalizer::release(&maps, &deleting, OURS, waiting).await.unwrap());
    let mut after_theirs = deleting.clone();
    assert!(
        finalizer::release(&maps, &deleting, "slipway.dev/theirs", Outcome::Done)
            .await
            .unwrap()
    );
    // Our entry has moved to another place in the list since this was read.
    let conflict = finalizer::release(&maps, &after_theirs, OURS, Outcome::Done)
        .await
        .unwrap_err();
    assert_eq!(conflict.class(), Class::Conflict, "{conflict}");
    after_theirs = maps.get("a").await.unwrap();
    assert!(
        finalizer::release(&maps, &after_theirs, OURS, Outcome::Done)
            .await
            .unwrap()
    );
    assert!(maps.get_opt("a").await.unwrap().is_none());
    assert!(
        finalizer::release(&maps, &after_theirs, OURS, Outcome::Done)
            .await
            .unwrap(),
        "gone is what was asked for"
    );
}

fn config_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        "bootstrap.cluster.x-k8s.io",
        "v1beta2",
        "KubeadmConfig",
    ))
}

fn config(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KubeadmConfig",
        "metadata": {"name": name, "namespace": namespace,
            "labels": {"cluster.x-k8s.io/cluster-name": "edge", "old": "label"}, "annotations": {"old": "annotation"}},
        "spec": spec,
    })
}

fn labels(object: &DynamicObject) -> Vec<String> {
    object
        .metadata
        .labels
        .iter()
        .flatten()
        .map(|(key, _)| key.clone())
        .collect()
}

async fn sync_metadata(client: &Client, object: &DynamicObject, label: &str) -> DynamicObject {
    let intent = apply::metadata_intent(
        "bootstrap.cluster.x-k8s.io/v1beta2",
        "KubeadmConfig",
        &object.metadata,
        [("cluster.x-k8s.io/cluster-name", "edge"), (label, "x")],
        [],
    );
    apply::apply(client, &config_resource(), MANAGERS.metadata, &intent, false)
        .await
        .expect("the metadata is applied")
}

#[tokio::test]
async fn two_managers_unset_their_own_fields_and_leave_the_others() {
    let (client, namespace) = namespace("two-managers").await;
    let first = json!({"preKubeadmCommands": ["one"], "postKubeadmCommands": ["two"]});
    let object = config(&namespace, "a", &first);
    apply::create(&client, &config_resource(), MANAGERS, &object)
        .await
        .unwrap();
    // Made again after a crash, it is the same.
    let made = apply::create(&client, &config_resource(), MANAGERS, &object)
        .await
        .unwrap();
    assert_eq!(apply::release_metadata(&made.metadata, MANAGERS), None);

    let synced = sync_metadata(&client, &made, "first").await;
    let synced = sync_metadata(&client, &synced, "second").await;
    let now = labels(&synced);
    assert!(
        now.contains(&"second".to_owned()) && !now.contains(&"first".to_owned()),
        "{now:?}"
    );
    assert_eq!(
        synced.data["spec"], first,
        "a sync of labels leaves the spec alone"
    );

    let mut changed = config(&namespace, "a", &json!({"preKubeadmCommands": ["three"]}));
    changed["metadata"]["labels"] = json!(null);
    changed["metadata"]["annotations"] = json!({"mark": ""});
    let updated = apply::apply(
        &client,
        &config_resource(),
        MANAGERS.spec,
        &apply::spec_intent(&changed),
        false,
    )
    .await
    .unwrap();
    assert_eq!(
        updated.data["spec"],
        json!({"preKubeadmCommands": ["three"]}),
        "the other field is unset"
    );
    assert_eq!(
        labels(&updated),
        now,
        "an update of the spec leaves the labels alone"
    );

    // A dry run changes nothing.
    let dry = apply::apply(
        &client,
        &config_resource(),
        MANAGERS.spec,
        &apply::spec_intent(&object),
        true,
    )
    .await
    .unwrap();
    assert_eq!(dry.data["spec"], first);
    let stored = Api::<DynamicObject>::namespaced_with(client, &namespace, &config_resource())
        .get("a")
        .await
        .unwrap();
    assert_eq!(stored.data["spec"], updated.data["spec"]);
}

#[tokio::test]
async fn an_object_made_with_one_manager_is_brought_over_and_loses_nothing() {
    let (client, namespace) = namespace("migrate").await;
    let object = config(&namespace, "a", &json!({"preKubeadmCommands": ["one"]}));
    let single = apply::apply(&client, &config_resource(), MANAGERS.spec, &object, false)
        .await
        .unwrap();
    let patch = apply::migrate(
        "bootstrap.cluster.x-k8s.io/v1beta2",
        &single.metadata,
        MANAGERS,
        &[],
        Timestamp::now(),
    )
    .expect("it was made with one manager");
    let brought_over = apply::merge(&client, &config_resource(), &namespace, "a", &patch)
        .await
        .unwrap();
    assert_eq!(brought_over.data["spec"], single.data["spec"]);
    assert_eq!(labels(&brought_over), labels(&single));
    let again = apply::migrate(
        "bootstrap.cluster.x-k8s.io/v1beta2",
        &brought_over.metadata,
        MANAGERS,
        &[],
        Timestamp::now(),
    );
    assert_eq!(again, None);
    let synced = sync_metadata(&client, &brought_over, "first").await;
    let synced = sync_metadata(&client, &synced, "second").await;
    assert!(
        !labels(&synced).contains(&"first".to_owned()),
        "the new manager can unset what it set"
    );

    // A stale list of managed fields is refused instead of undoing others' entries.
    let stale = apply::merge(&client, &config_resource(), &namespace, "a", &patch)
        .await
        .unwrap_err();
    assert_eq!(stale.class(), Class::Conflict, "{stale}");
}

#[tokio::test]
async fn our_paused_condition_is_worded_as_core_words_it() {
    let (client, namespace) = namespace("paused").await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Cluster"));
    let raw: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
    let object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "edge", "annotations": {"cluster.x-k8s.io/paused": ""}},
        "spec": {"paused": true, "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io",
            "kind": "EdgeCluster", "name": "edge"}},
    });
    raw.create(&PostParams::default(), &serde_json::from_value(object).unwrap())
        .await
        .unwrap();
    let clusters: Api<Cluster> = Api::namespaced(client.clone(), &namespace);
    let reported = await_condition(clusters.clone(), "edge", |cluster: Option<&Cluster>| {
        cluster.is_some_and(|cluster| cluster.condition("Paused").is_some())
    });
    tokio::time::timeout(HANG_GUARD, reported)
        .await
        .expect("core reports")
        .unwrap();
    let cluster = clusters.get("edge").await.unwrap();
    let ours = paused(Some(&cluster), &cluster.metadata);
    assert!(ours.by_cluster && ours.by_annotation);
    let theirs = condition::find(cluster.conditions(), "Paused").unwrap();
    assert!(
        says(theirs, &ours.report("Cluster"), theirs.observed_generation),
        "{theirs:?}"
    );

    raw.patch(
        "edge",
        &PatchParams::default(),
        &Patch::Merge(json!({"spec": {"paused": false},
        "metadata": {"annotations": {"cluster.x-k8s.io/paused": null}}})),
    )
    .await
    .unwrap();
    let running = await_condition(
        Api::namespaced(client, &namespace),
        "edge",
        |cluster: Option<&Cluster>| {
            cluster.is_some_and(|cluster| {
                let report = paused(Some(cluster), &cluster.metadata).report("Cluster");
                cluster.condition("Paused").is_some_and(|stored| {
                    stored.status == "False" && says(stored, &report, stored.observed_generation)
                })
            })
        },
    );
    tokio::time::timeout(HANG_GUARD, running)
        .await
        .expect("core reports")
        .unwrap();
}

#[tokio::test]
async fn references_find_the_version_of_the_contract() {
    let (client, namespace) = namespace("reference").await;
    let reference = ObjectReference {
        api_group: "bootstrap.cluster.x-k8s.io".into(),
        kind: "KubeadmConfig".into(),
        name: "absent".into(),
    };
    let (resource, version) = reference::resolve(&client, &reference).await.unwrap();
    assert_eq!(resource.api_version, "bootstrap.cluster.x-k8s.io/v1beta2");
    assert_eq!(version.contract, "v1beta2");
    assert!(
        reference::get(&client, &namespace, &reference)
            .await
            .unwrap()
            .is_none()
    );
    let unknown = ObjectReference {
        kind: "Nothing".into(),
        ..reference
    };
    let error = reference::get(&client, &namespace, &unknown)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("reading CustomResourceDefinition nothings.bootstrap.cluster.x-k8s.io: "),
        "{error}"
    );
}

#[tokio::test]
async fn an_administrators_kubeconfig_is_accepted() {
    let cluster = shared("capi").await.expect("the shared cluster runs");
    let pair = cluster.ca().pair();
    let ca = KeyPair {
        certificate: pair.certificate.clone(),
        key: Some(pair.key.clone().into()),
    };
    let text = kubeconfig::Administrator {
        cluster: "edge",
        server: cluster.server(),
        server_ca: &pair.certificate,
        client_ca: &ca,
        algorithm: KeyAlgorithm::Rsa2048,
        lifetime: DAY,
    }
    .kubeconfig(Timestamp::now())
    .unwrap();
    let secret = kubeconfig::secret(
        "any",
        "edge",
        k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference::default(),
        &text,
    );
    let client = Client::try_from(kubeconfig::access(&secret).unwrap().into_config()).unwrap();
    let namespaces = Api::<Namespace>::all(client)
        .list(&ListParams::default())
        .await
        .unwrap();
    assert!(!namespaces.items.is_empty());
}
