//! What only a real kube-apiserver can show: that it takes our definitions as structural, fills in their defaults and
//! refuses what they refuse.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
    runtime::{conditions::is_crd_established, wait::await_condition},
};
use serde_json::{Value, json};
use slipway_aks::api::crd::crds;
use slipway_testbed::shared;

/// Definitions are established within a second; this only keeps a broken apiserver from hanging the run.
const HANG_GUARD: Duration = Duration::from_mins(1);

async fn with_definitions() -> (Client, String) {
    let cluster = shared("plain").await.expect("the shared cluster runs");
    let namespace = cluster.namespace("aks").await.expect("a namespace");
    let client = cluster.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds() {
        let name = crd.metadata.name.clone().expect("a name");
        let apply = PatchParams::apply("slipway-test").force();
        let stored = definitions.patch(&name, &apply, &Patch::Apply(&crd)).await;
        stored.unwrap_or_else(|error| panic!("{name} is refused: {error}"));
        tokio::time::timeout(
            HANG_GUARD,
            await_condition(definitions.clone(), &name, is_crd_established()),
        )
        .await
        .unwrap_or_else(|_| panic!("{name} is not established"))
        .expect("the watch lives");
        let conditions = definitions
            .get(&name)
            .await
            .expect(&name)
            .status
            .and_then(|status| status.conditions);
        let flawed = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "NonStructuralSchema" && condition.status == "True");
        assert!(flawed.is_none(), "{name}: {flawed:?}");
    }
    (client, namespace)
}

async fn create(client: &Client, namespace: &str, kind: &str, spec: Value) -> Result<Value, kube::Error> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "infrastructure.cluster.x-k8s.io",
        "v1beta1",
        kind,
    ));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let object = serde_json::from_value(json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": kind,
        "metadata": {"generateName": "a-"}, "spec": spec
    }));
    let stored = api
        .create(&PostParams::default(), &object.expect("an object"))
        .await?;
    Ok(json!(stored)["spec"].clone())
}

#[tokio::test]
async fn the_definitions_default_and_refuse_as_they_say() {
    let (client, namespace) = with_definitions().await;
    let plane = json!({
        "version": "v1.31.0", "location": "westus", "resourceGroupName": "group", "identityRef": {"name": "i"},
        "sku": {"tier": "Premium"}, "networkPlugin": null, "autoscalerProfile": {}, "oidcIssuerProfile": {},
        "virtualNetwork": {"name": "n", "subnet": {"name": "s"}},
        "extensions": [{"name": "e", "extensionType": "t"}]
    });
    let stored = create(&client, &namespace, "AzureManagedControlPlane", plane.clone())
        .await
        .expect("a control plane");
    for (pointer, expected) in [
        ("/networkPlugin", json!("azure")),
        ("/loadBalancerSKU", json!("Standard")),
        ("/enablePreviewFeatures", json!(false)),
        ("/autoscalerProfile/expander", json!("random")),
        ("/autoscalerProfile/scanInterval", json!("10s")),
        ("/oidcIssuerProfile/enabled", json!(false)),
        ("/virtualNetwork/cidrBlock", json!("10.0.0.0/8")),
        ("/virtualNetwork/subnet/cidrBlock", json!("10.240.0.0/16")),
        ("/extensions/0/autoUpgradeMinorVersion", json!(true)),
        ("/sku/tier", json!("Premium")),
    ] {
        assert_eq!(stored.pointer(pointer), Some(&expected), "{pointer}");
    }
    for (patch, says) in [
        (
            json!({"sku": {"tier": "Gold"}}),
            "spec.sku.tier: Unsupported value: \"Gold\"",
        ),
        (json!({"location": null}), "spec.location: Required value"),
        (
            json!({"securityProfile": {"imageCleaner": {"enabled": true, "intervalHours": 1}}}),
            "should be greater than or equal to 24",
        ),
    ] {
        let mut broken = plane.clone();
        json_patch::merge(&mut broken, &patch);
        let error = create(&client, &namespace, "AzureManagedControlPlane", broken)
            .await
            .expect_err("a refusal");
        assert!(error.to_string().contains(says), "{error}");
    }
    for price in [json!(1), json!("-1"), json!("0.5")] {
        let pool = json!({"mode": "User", "sku": "s", "scaleSetPriority": "Spot", "spotMaxPrice": price});
        let stored = create(&client, &namespace, "AzureManagedMachinePool", pool)
            .await
            .expect("a pool");
        assert_eq!(stored["spotMaxPrice"], price);
        assert_eq!(
            (&stored["osDiskType"], &stored["osType"], &stored["scaleDownMode"]),
            (&json!("Managed"), &json!("Linux"), &json!("Delete"))
        );
    }
    let identity = json!({"type": "WorkloadIdentity", "clientID": "c", "tenantID": "t", "allowedNamespaces": {"list": null}});
    let stored = create(&client, &namespace, "AzureClusterIdentity", identity)
        .await
        .expect("an identity");
    assert_eq!(
        stored["allowedNamespaces"],
        json!({"list": null}),
        "an explicit null means something here"
    );
}
