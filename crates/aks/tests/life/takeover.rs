//! A cluster that another installation made, with its operator's objects: taken over without a write in Azure.

use std::time::Duration;

use http::Method;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};
use slipway_azure::ownership;

use super::world::{NAMESPACE, SUBSCRIPTION, World, apply, manifests, merge};

const KINDS: &[(&str, &str, &str)] = &[
    ("resources.azure.com", "resourcegroups", "ResourceGroup"),
    ("containerservice.azure.com", "managedclusters", "ManagedCluster"),
    ("kubernetesconfiguration.azure.com", "extensions", "Extension"),
];

fn definition(group: &str, plural: &str, kind: &str) -> CustomResourceDefinition {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{"name": "v1api20231001storage", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}}}]},
    }))
    .expect("a definition")
}

fn of(world: &World, group: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1api20231001storage", kind));
    Api::namespaced_with(world.server.client(), NAMESPACE, &resource)
}

#[tokio::test(start_paused = true)]
async fn anothers_objects_are_detached_and_azure_is_not_touched() {
    // The other installation: made, and then its manager is gone.
    let mut world = World::new();
    let spec = json!({"extensions": [{"name": "flux", "extensionType": "microsoft.flux"}]});
    apply(&world.server, &manifests(&spec, &[("system", "System", 1)])).await;
    world.until_ready(&["system"]).await;
    world.kill().await;
    for (kind, name) in [
        ("AzureManagedControlPlane", "fleet"),
        ("AzureManagedMachinePool", "system"),
    ] {
        // What is ours alone was never there.
        merge(
            &world.server,
            kind,
            name,
            json!({"metadata": {"annotations": {"slipway.dev/azure-applied": null}}}),
        )
        .await;
    }
    for path in [
        "/resourceGroups/fleet",
        "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet",
    ] {
        let mut body = world.ask(Method::GET, path, None);
        body["tags"].as_object_mut().expect("tags").remove(ownership::TAG);
        world.ask(Method::PUT, path, Some(&body));
    }
    tokio::time::sleep(Duration::from_mins(10)).await;
    let group = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/fleet");
    let aks = format!("{group}/providers/Microsoft.ContainerService/managedClusters/fleet");
    let flux = format!("{aks}/providers/Microsoft.KubernetesConfiguration/extensions/flux");
    let owner = &world.plane()["metadata"];
    for ((domain, plural, kind), id) in KINDS.iter().zip([&group, &aks, &flux]) {
        let crd = definition(domain, plural, kind);
        world.server.install(std::slice::from_ref(&crd), &[], &[]);
        Api::<CustomResourceDefinition>::all(world.server.client())
            .create(&PostParams::default(), &crd)
            .await
            .expect("installed");
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": format!("{domain}/v1api20231001storage"), "kind": kind,
            "metadata": {"name": format!("fleet-{plural}"), "namespace": NAMESPACE,
                "finalizers": ["serviceoperator.azure.com/finalizer"],
                "labels": {"cluster.x-k8s.io/cluster-name": "fleet"},
                "annotations": {"serviceoperator.azure.com/reconcile-policy": "manage",
                    "serviceoperator.azure.com/resource-id": id},
                "ownerReferences": [{"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
                    "kind": "AzureManagedControlPlane", "name": "fleet", "uid": owner["uid"], "controller": true}]},
            "spec": {},
        }))
        .expect("an object");
        of(&world, domain, kind)
            .create(&PostParams::default(), &object)
            .await
            .expect("created");
    }
    let before = (
        world.in_azure(),
        world.count("PUT", ""),
        world.count("DELETE", ""),
    );
    world.start();
    world
        .until("detached", |world| {
            !world.server.objects().iter().any(|object: &Value| {
                object["apiVersion"]
                    .as_str()
                    .is_some_and(|version| version.contains(".azure.com/"))
            })
        })
        .await;
    world.until_ready(&["system"]).await;
    assert_eq!(
        (
            world.in_azure(),
            world.count("PUT", ""),
            world.count("DELETE", "")
        ),
        before,
        "Azure is not touched"
    );
    world.assert_rests().await;
    // What the other made is known: taken out of the spec, it goes.
    merge(
        &world.server,
        "AzureManagedControlPlane",
        "fleet",
        json!({"spec": {"extensions": null}}),
    )
    .await;
    world
        .until("gone", |world| {
            !world.in_azure().iter().any(|id| id.ends_with("/extensions/flux"))
        })
        .await;
}
