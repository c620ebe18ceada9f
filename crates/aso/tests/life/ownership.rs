//! Nothing is written to what another owns: another object here, another management cluster, a running Azure Service Operator.

use std::time::Duration;

use http::Method;
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use slipway_kit::core::kinds::foreign;

use super::world::{World, apply, condition, create, manifests, merge, remove};

#[tokio::test(start_paused = true)]
async fn what_carries_another_mark_is_neither_written_nor_deleted() {
    let world = World::new();
    let theirs = json!({"location": "westus3", "tags": {"slipway.dev_owner": "another-management-cluster"}});
    world.ask(Method::PUT, "/resourceGroups/fleet", Some(&theirs));
    let writes = world.count("PUT", "");
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world
        .until("told", |world| {
            condition(&world.infrastructure(), "Ready")["reason"] == "OwnedByAnother"
        })
        .await;
    let infrastructure = world.infrastructure();
    let message = condition(&infrastructure, "Ready")["message"]
        .as_str()
        .expect("a message");
    assert!(message.contains("another-management-cluster"), "{message}");
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(world.count("PUT", ""), writes, "nothing is made in it either");
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!(world.in_azure().len(), 1, "it stays");
}

#[tokio::test(start_paused = true)]
async fn what_was_there_before_and_was_never_written_stays() {
    let world = World::new();
    world.ask(
        Method::PUT,
        "/resourceGroups/fleet",
        Some(&json!({"location": "westus3"})),
    );
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world.until_ready(&["system"]).await;
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    let left = world.in_azure();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// Objects of Azure Service Operator as an installed one has them.
fn operated(kind: &str, annotations: &Value) -> Value {
    json!({"apiVersion": "resources.azure.com/v1api20200601", "kind": kind,
        "metadata": {"name": "fleet", "namespace": "default", "annotations": annotations}, "spec": {}})
}

#[tokio::test(start_paused = true)]
async fn a_running_azure_service_operator_is_left_to_its_resources() {
    let world = World::new();
    // Its definitions are looked for by the one that is always there.
    let definitions = [
        foreign(
            "containerservice.azure.com",
            "v1api20240901storage",
            "ManagedCluster",
        ),
        foreign("resources.azure.com", "v1api20200601", "ResourceGroup"),
    ];
    world.server.install(&definitions, &[], &[]);
    let installed: Api<CustomResourceDefinition> = Api::all(world.server.client());
    for definition in &definitions {
        let made = installed.create(&PostParams::default(), definition).await;
        made.expect("installed");
    }
    create(&world.server, &operated("ResourceGroup", &json!({}))).await;
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world
        .until("told", |world| {
            condition(&world.infrastructure(), "Ready")["reason"] == "ManagedByAzureServiceOperator"
        })
        .await;
    assert_eq!(world.count("PUT", "/resourceGroups/fleet"), 0);
    let quiet = json!({"metadata": {"annotations": {"serviceoperator.azure.com/reconcile-policy": "skip"}}});
    let object = operated("ResourceGroup", &json!({}));
    slipway_kit::objects::merge(&world.server, &object, quiet).await;
    world.until_ready(&["system"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_comes_late_or_is_of_another_namespace() {
    let world = World::new();
    let mut all = manifests(&[("system", "System", 1)]);
    let credential = all.remove(0);
    apply(&world.server, &all).await;
    world
        .until("told", |world| {
            condition(&world.infrastructure(), "Ready")["reason"] == "SecretNotFound"
        })
        .await;
    let infrastructure = world.infrastructure();
    let message = condition(&infrastructure, "Ready")["message"]
        .as_str()
        .expect("a message");
    assert!(message.contains("default/sign-in"), "{message}");
    let mut elsewhere = credential.clone();
    elsewhere["metadata"]["namespace"] = json!("other");
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": "other"}})).expect("a namespace");
    let namespaces: Api<Namespace> = Api::all(world.server.client());
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .expect("created");
    create(&world.server, &elsewhere).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(
        world.count("PUT", ""),
        0,
        "a Secret of another namespace is not used"
    );
    create(&world.server, &credential).await;
    world.until_ready(&["system"]).await;
    // Without a name, the one of the namespace is used.
    let mut common = credential.clone();
    common["metadata"]["name"] = json!("aso-credential");
    create(&world.server, &common).await;
    let unnamed: Vec<Value> = {
        let mut resource = super::world::group();
        resource["metadata"]["annotations"] = json!({});
        vec![resource]
    };
    world
        .replace_resources("AzureASOManagedCluster", "fleet", &unnamed)
        .await;
    let seen = json!({"metadata": {"labels": {"seen": "yes"}}});
    merge(&world.server, "AzureASOManagedCluster", "fleet", seen).await;
    world.until_ready(&["system"]).await;
}
