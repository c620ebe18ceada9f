//! Who owns what in Azure: two objects that name the same resources, in one management cluster and in two; and what
//! vanishes without anybody here having deleted it.

use http::Method;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_azure::{ownership::TAG, reconcile::records};
use slipway_kit::core::kinds::{CORE, INFRASTRUCTURE};

use super::world::{World, apply, condition, holds, manifests, merge, remove};

const POOLS: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 1)];
const CLUSTER: &str = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet";
/// The namespace of the rival.
pub const OTHER: &str = "bad";
/// Whom it signs in to Azure as.
pub const OTHERS_CLIENT: &str = "33333333-3333-3333-3333-333333333333";

fn api_in(server: &Apiserver, kind: &str) -> Api<DynamicObject> {
    let (group, version) = if kind.starts_with("Azure") {
        (INFRASTRUCTURE, "v1beta1")
    } else {
        (CORE, "v1beta2")
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(server.client(), OTHER, &resource)
}

/// Applies a Cluster of the same name and resource group in another namespace, with a pool of the same name and an identity
/// of its own.
pub async fn apply_rival(server: &Apiserver) {
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": OTHER}})).expect("a namespace");
    let _ = Api::<Namespace>::all(server.client())
        .create(&PostParams::default(), &namespace)
        .await;
    let plane = json!({"identityRef": {"namespace": OTHER}});
    for mut manifest in manifests(&plane, &[("system", "System", 1)]) {
        let kind = manifest["kind"].as_str().expect("a kind").to_owned();
        manifest["metadata"]["namespace"] = OTHER.into();
        if kind == "AzureClusterIdentity" {
            manifest["spec"]["clientID"] = OTHERS_CLIENT.into();
        }
        let object = serde_json::from_value(manifest).expect("an object");
        api_in(server, &kind)
            .create(&PostParams::default(), &object)
            .await
            .unwrap_or_else(|error| panic!("creating {kind}: {error}"));
    }
}

pub async fn remove_rival(server: &Apiserver) {
    let _ = api_in(server, "Cluster")
        .delete("fleet", &DeleteParams::default())
        .await;
}

pub fn rival(objects: &[Value]) -> Option<&Value> {
    objects.iter().find(|object| {
        object["kind"] == "AzureManagedControlPlane" && object["metadata"]["namespace"] == OTHER
    })
}

pub fn is_refused(plane: &Value) -> bool {
    condition(plane, "ManagedClusterRunning")["reason"] == "OwnedByAnother"
}

async fn until_refused(world: &World) -> String {
    let found = |world: &World| rival(&world.server.objects()).cloned();
    world
        .until("refused", |world| {
            found(world).is_some_and(|plane| is_refused(&plane))
        })
        .await;
    condition(&found(world).expect("a rival"), "ManagedClusterRunning")["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn writes(world: &World) -> Vec<String> {
    world
        .simulator
        .azure()
        .requests()
        .filter(|request| request.method != "GET" && !request.path.contains("oauth2"))
        .map(|request| format!("{} {}", request.method, request.path))
        .collect()
}

fn mark(world: &World) -> Value {
    let plane = world
        .server
        .objects()
        .into_iter()
        .find(|object| {
            object["kind"] == "AzureManagedControlPlane" && object["metadata"]["namespace"] == "default"
        })
        .expect("a control plane");
    let text = plane["metadata"]["annotations"][records::ANNOTATION]
        .as_str()
        .expect("a record");
    serde_json::from_str::<Value>(text).expect("JSON")["mark"].clone()
}

async fn standing() -> World {
    let world = World::new();
    apply(&world.server, &manifests(&json!({}), POOLS)).await;
    world.until_ready(&["system", "work"]).await;
    world
}

#[tokio::test(start_paused = true)]
async fn of_two_clusters_of_one_name_and_group_the_second_writes_and_deletes_nothing() {
    let world = standing().await;
    let tag = &world.ask(Method::GET, CLUSTER, None)["tags"][TAG];
    assert!(tag.is_string() && *tag == mark(&world), "{tag}");
    world.assert_rests().await;
    let before = world.in_azure();
    world.simulator.azure().forget_requests();
    apply_rival(&world.server).await;
    let message = until_refused(&world).await;
    assert!(
        message.contains("AzureManagedControlPlane default/fleet"),
        "{message}"
    );
    let secrets = world.server.objects();
    assert!(
        !secrets
            .iter()
            .any(|object| object["kind"] == "Secret" && object["metadata"]["namespace"] == OTHER),
        "the other's kubeconfig is not handed out"
    );
    remove_rival(&world.server).await;
    world
        .until("gone", |world| rival(&world.server.objects()).is_none())
        .await;
    assert_eq!(writes(&world), Vec::<String>::new());
    assert_eq!(world.in_azure(), before);
    assert!(holds(&world.plane(), "Ready"));
}

#[tokio::test(start_paused = true)]
async fn when_the_owner_is_deleted_the_other_makes_its_own() {
    let world = standing().await;
    let first = mark(&world);
    apply_rival(&world.server).await;
    until_refused(&world).await;
    remove(&world.server, "Cluster", "fleet").await;
    world
        .until("made by the other", |world| {
            let azure = world.simulator.azure();
            azure
                .state()
                .resources
                .iter()
                .any(|resource| resource.id.to_lowercase().ends_with(&CLUSTER.to_lowercase()))
                && rival(&world.server.objects()).is_some_and(|plane| holds(plane, "ManagedClusterRunning"))
        })
        .await;
    let second = world.ask(Method::GET, CLUSTER, None)["tags"][TAG].clone();
    assert!(second.is_string() && second != first, "{second}");
    remove_rival(&world.server).await;
    world
        .until("gone", |world| rival(&world.server.objects()).is_none())
        .await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn two_management_clusters_do_not_touch_each_others_cluster() {
    let world = standing().await;
    world.assert_rests().await;
    let before = world.in_azure();
    world.simulator.azure().forget_requests();
    let mut second = World::new();
    second.kill().await;
    second.simulator = std::sync::Arc::clone(&world.simulator);
    second.clock = world.clock;
    second.start();
    apply(&second.server, &manifests(&json!({}), POOLS)).await;
    second
        .until("refused", |second| {
            second
                .object("AzureManagedControlPlane", "fleet")
                .is_some_and(|plane| is_refused(&plane))
        })
        .await;
    let plane = second.plane();
    let message = condition(&plane, "ManagedClusterRunning")["message"]
        .as_str()
        .unwrap_or_default();
    assert!(
        message.contains("Cluster fleet") && message.contains("does not have") && message.contains(TAG),
        "{message}"
    );
    remove(&second.server, "Cluster", "fleet").await;
    second.until_gone().await;
    assert_eq!(writes(&world), Vec::<String>::new());
    assert_eq!(world.in_azure(), before);
}

#[tokio::test(start_paused = true)]
async fn without_a_mark_in_azure_the_older_record_wins_and_the_next_write_brings_the_mark() {
    let world = standing().await;
    // As if it had been taken over: nobody's mark is on it.
    let mut body = world.ask(Method::GET, CLUSTER, None);
    body["tags"].as_object_mut().expect("tags").remove(TAG);
    world.ask(Method::PUT, CLUSTER, Some(&body));
    tokio::time::sleep(std::time::Duration::from_mins(30)).await;
    world.until_ready(&["system", "work"]).await;
    assert!(
        world.ask(Method::GET, CLUSTER, None)["tags"][TAG].is_null(),
        "no write is made for the mark alone"
    );
    world.simulator.azure().forget_requests();
    apply_rival(&world.server).await;
    let message = until_refused(&world).await;
    assert!(
        message.contains("default/fleet, which claimed it earlier"),
        "{message}"
    );
    remove_rival(&world.server).await;
    world
        .until("gone", |world| rival(&world.server.objects()).is_none())
        .await;
    assert_eq!(writes(&world), Vec::<String>::new());
    let patch = json!({"spec": {"additionalTags": {"team": "blue"}}});
    merge(&world.server, "AzureManagedControlPlane", "fleet", patch).await;
    world
        .until("marked", |world| {
            world.ask(Method::GET, CLUSTER, None)["tags"][TAG] == mark(world)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_vanished_cluster_is_reported_and_made_again_only_when_asked_to() {
    let world = standing().await;
    world.ask(Method::DELETE, CLUSTER, None);
    world
        .until("reported", |world| {
            condition(&world.plane(), "ManagedClusterRunning")["reason"] == "Vanished"
        })
        .await;
    let message = condition(&world.plane(), "Ready")["message"].clone();
    assert!(
        message
            .as_str()
            .is_some_and(|text| text.contains("slipway.dev/recreate")),
        "{message}"
    );
    world.simulator.azure().forget_requests();
    tokio::time::sleep(std::time::Duration::from_hours(2)).await;
    assert_eq!(writes(&world), Vec::<String>::new());
    assert!(!world.in_azure().iter().any(|id| id.contains("/managedclusters/")));
    let patch = json!({"metadata": {"annotations": {"slipway.dev/recreate": "true"}}});
    merge(&world.server, "AzureManagedControlPlane", "fleet", patch).await;
    world.until_ready(&["system", "work"]).await;
    assert!(world.in_azure().iter().any(|id| id.ends_with("/agentpools/work")));
}

#[tokio::test(start_paused = true)]
async fn a_vanished_cluster_can_be_deleted() {
    let world = standing().await;
    world.ask(Method::DELETE, CLUSTER, None);
    world
        .until("reported", |world| {
            condition(&world.plane(), "ManagedClusterRunning")["reason"] == "Vanished"
        })
        .await;
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
}
