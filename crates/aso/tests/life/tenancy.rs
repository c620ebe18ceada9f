//! Whose identity signs in: a namespace's own, or the manager's where it did before.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_aso::access::IDENTITIES_FLAG;
use slipway_kit::objects;

use super::world::{World, apply, cluster, condition, create, group, managed_cluster, merge, remove};

/// A cluster whose credential names an identity, and nothing that is secret.
fn unproven() -> Vec<Value> {
    let mut all = cluster(&[group()], &[managed_cluster(&json!({}))]);
    let data = all[0]["data"].as_object_mut().expect("data");
    data.remove("AZURE_CLIENT_SECRET");
    all
}

fn reason(object: &Value) -> String {
    let reason = condition(object, "Ready")["reason"].as_str();
    reason.unwrap_or_default().to_owned()
}

fn is_borrowed(object: &Value) -> bool {
    condition(object, "IdentityBorrowed")["status"] == "True"
}

/// A world whose manager has a namespace, and has not started yet.
async fn before_the_first_start() -> World {
    let mut world = World::new();
    world.kill().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "capz-system"}});
    create(&world.server, &namespace).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_proves_nothing_signs_in_as_itself() {
    let mut world = before_the_first_start().await;
    world.start();
    world
        .until("started", |world| {
            world.object("ConfigMap", "slipway-borrowed-identities").is_some()
        })
        .await;
    apply(&world.server, &unproven()).await;
    world
        .until("told", |world| {
            reason(&world.infrastructure()) == "ServiceAccountTokenFailed"
        })
        .await;
    let infrastructure = world.infrastructure();
    let message = condition(&infrastructure, "Ready")["message"]
        .as_str()
        .expect("words")
        .to_owned();
    assert!(
        message.contains("create ServiceAccount aso-workload in namespace default")
            && message.contains("system:serviceaccount:default:aso-workload"),
        "{message}"
    );
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(world.in_azure(), Vec::<String>::new());
    assert!(!is_borrowed(&world.infrastructure()));
}

#[tokio::test(start_paused = true)]
async fn what_borrowed_at_the_first_start_goes_on_with_a_warning() {
    let mut world = before_the_first_start().await;
    apply(&world.server, &unproven()).await;
    world.start();
    world
        .until("warned", |world| is_borrowed(&world.infrastructure()))
        .await;
    let map = world
        .object("ConfigMap", "slipway-borrowed-identities")
        .expect("a record");
    assert_eq!(map["data"], json!({"default": slipway_kit::azure::CLIENT}));
    let infrastructure = world.infrastructure();
    let message = condition(&infrastructure, "IdentityBorrowed")["message"]
        .as_str()
        .expect("words")
        .to_owned();
    assert!(
        message.contains("Secret default/sign-in") && message.contains("slipway-borrowed-identities"),
        "{message}"
    );
    // Another identity than the one it had is not lent.
    let other = json!({"stringData": null, "data": {"AZURE_CLIENT_ID": "b3RoZXI="}});
    merge(&world.server, "Secret", "sign-in", other).await;
    world
        .until("told", |world| {
            let object = world.infrastructure();
            reason(&object) == "ServiceAccountTokenFailed" && !is_borrowed(&object)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_flag_lets_namespaces_borrow() {
    let mut world = before_the_first_start().await;
    world.start();
    world
        .until("started", |world| {
            world.object("ConfigMap", "slipway-borrowed-identities").is_some()
        })
        .await;
    apply(&world.server, &unproven()).await;
    world
        .until("told", |world| {
            reason(&world.infrastructure()) == "ServiceAccountTokenFailed"
        })
        .await;
    world.kill().await;
    world.start_with(|settings| settings.flags = settings.flags.clone().with(IDENTITIES_FLAG, "relaxed"));
    world
        .until("warned", |world| is_borrowed(&world.infrastructure()))
        .await;
    remove(&world.server, "Secret", "sign-in").await;
}

#[tokio::test(start_paused = true)]
async fn the_operators_settings_decide_policies_and_namespaces() {
    let mut world = before_the_first_start().await;
    world.start();
    let settings = |pairs: Value| {
        json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": "aso-controller-settings", "namespace": "capz-system"}, "stringData": pairs})
    };
    apply(
        &world.server,
        &[settings(json!({"DEFAULT_RECONCILE_POLICY": "detach-on-delete"}))],
    )
    .await;
    apply(
        &world.server,
        &super::world::manifests(&[("system", "System", 1)]),
    )
    .await;
    world.until_ready(&["system"]).await;
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert!(
        world
            .in_azure()
            .iter()
            .any(|id| id.ends_with("/managedclusters/fleet")),
        "what is detached stays: {:?}",
        world.in_azure()
    );
    let secrets = objects::api(&world.server, "capz-system", "v1", "Secret");
    let other = json!({"stringData": {"AZURE_TARGET_NAMESPACES": "elsewhere"}});
    let patch = kube::api::Patch::Merge(other);
    secrets
        .patch(
            "aso-controller-settings",
            &kube::api::PatchParams::default(),
            &patch,
        )
        .await
        .expect("a patch");
    apply(&world.server, &cluster(&[group()], &[])[1..]).await;
    world
        .until("told", |world| {
            reason(&world.infrastructure()) == "NamespaceNotServed"
        })
        .await;
}
