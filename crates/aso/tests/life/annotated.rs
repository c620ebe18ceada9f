//! Objects of Azure Service Operator become a Cluster by an annotation, as they are.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_kit::objects;

use super::{
    operated::{POLICY, object, operated, running},
    world::{AKS, World, create, credential, group, is_settled, managed_cluster, merge, remove, resource},
};

pub const ADOPT: &str = "sigs.k8s.io/cluster-api-provider-azure-adopt";
const POOLS: [(&str, &str, i32); 2] = [("system", "System", 1), ("user", "User", 2)];

fn pool(name: &str, mode: &str, count: i32) -> Value {
    resource(
        AKS,
        "ManagedClustersAgentPool",
        &format!("fleet-{name}"),
        &json!({"azureName": name, "owner": {"name": "fleet"}, "mode": mode, "count": count,
            "type": "VirtualMachineScaleSets", "vmSize": "Standard_D2s_v3", "orchestratorVersion": "1.33.3"}),
    )
}

/// What somebody who uses the operator alone has.
pub fn theirs() -> Vec<Value> {
    let profile = json!({"name": "system", "mode": "System", "count": 1, "type": "VirtualMachineScaleSets",
        "vmSize": "Standard_D2s_v3", "orchestratorVersion": "1.33.3"});
    let mut all = vec![
        group(),
        managed_cluster(&json!({"kubernetesVersion": "1.33.3", "agentPoolProfiles": [profile]})),
    ];
    all.extend(POOLS.map(|(name, mode, count)| pool(name, mode, count)));
    for one in &mut all {
        one["metadata"]["namespace"] = json!("default");
    }
    all
}

pub fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| {
        all.iter()
            .any(|one| one["type"] == "Ready" && one["status"] == "True")
    })
}

/// A cluster that the operator has made, and nobody here has.
async fn standing() -> World {
    let world = running().await;
    create(&world.server, &credential("sign-in")).await;
    for object in theirs() {
        create(&world.server, &object).await;
    }
    world
        .until("made by the operator", |world| {
            operated(world).len() == 4
                && theirs().iter().all(|one| {
                    let name = one["metadata"]["name"].as_str().unwrap_or_default();
                    is_ready(&object(world, one["kind"].as_str().unwrap_or_default(), name))
                })
        })
        .await;
    world
}

/// The objects of ours are there, and ready.
async fn until_adopted(world: &World) {
    world
        .until("adopted", |world| {
            let is_ready =
                |kind: &str, name: &str| world.object(kind, name).is_some_and(|object| is_settled(&object));
            is_ready("AzureASOManagedCluster", "fleet")
                && is_ready("AzureASOManagedControlPlane", "fleet")
                && is_ready("AzureASOManagedMachinePool", "fleet-system")
                && is_ready("AzureASOManagedMachinePool", "fleet-user")
        })
        .await;
}

async fn annotate(world: &World, one: &Value) {
    let patch = json!({"metadata": {"annotations": {(ADOPT): "true"}}});
    objects::merge(&world.server, one, patch).await;
}

fn events(world: &World) -> String {
    let recorded = world.context().events.recorded();
    let notes = recorded
        .iter()
        .map(|event| format!("{}: {}\n", event.reason, event.note));
    notes.collect()
}

#[tokio::test(start_paused = true)]
async fn what_the_operator_has_is_adopted_as_it_is() {
    let world = standing().await;
    tokio::time::sleep(Duration::from_mins(20)).await;
    world.simulator.azure().forget_requests();
    // A pool does not come before its cluster, in whatever order they are annotated.
    let all = theirs();
    annotate(&world, &all[3]).await;
    world
        .until("told", |world| events(world).contains("annotate that one, too"))
        .await;
    assert!(world.object("MachinePool", "fleet-user").is_none());
    annotate(&world, &all[1]).await;
    annotate(&world, &all[2]).await;
    until_adopted(&world).await;
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(world.count("DELETE", ""), 0);
    // The operator sends the cluster without its pools, and with what hands out its kubeconfig; and the group, whose policy changed.
    assert_eq!(world.count("PUT", "/agentPools/"), 0);
    assert!(world.count("PUT", "") <= 3, "{}", world.count("PUT", ""));
    let plane = world.plane();
    assert_eq!(plane["spec"]["version"], "v1.33.3");
    let resource = &plane["spec"]["resources"][0];
    assert_eq!(
        resource["metadata"]["annotations"]["serviceoperator.azure.com/credential-from"],
        "sign-in"
    );
    assert_eq!(
        resource["spec"]["servicePrincipalProfile"],
        json!({"clientId": "msi"})
    );
    assert!(object(&world, "ManagedCluster", "fleet")["spec"]["agentPoolProfiles"].is_null());
    let group = object(&world, "ResourceGroup", "fleet");
    assert_eq!(group["metadata"]["annotations"][POLICY], "detach-on-delete");
    let machines = world.object("MachinePool", "fleet-user").expect("a MachinePool");
    assert_eq!(machines["spec"]["replicas"], 2);
    assert_eq!(operated(&world).len(), 4, "nothing is made twice");

    // It is as any other now.
    let three = json!({"spec": {"replicas": 3}});
    merge(&world.server, "MachinePool", "fleet-user", three).await;
    world
        .until("scaled", |world| {
            world.document("agentPools/user")["properties"]["count"] == 3
        })
        .await;
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    let left = world.in_azure();
    assert_eq!(left.len(), 1, "the group stays: {left:?}");
    assert_eq!(operated(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_adopted_says_what_to_do() {
    let world = standing().await;
    let all = theirs();
    // A Cluster of that name has another control plane.
    let reference =
        |kind: &str| json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": kind, "name": "other"});
    let other = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "fleet", "namespace": "default"},
        "spec": {"infrastructureRef": reference("AzureASOManagedCluster"),
            "controlPlaneRef": reference("AzureASOManagedControlPlane")}});
    create(&world.server, &other).await;
    annotate(&world, &all[1]).await;
    world
        .until("told", |world| {
            events(world).contains("with another control plane")
        })
        .await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(world.object("AzureASOManagedControlPlane", "fleet").is_none());
    assert!(
        !object(&world, "ManagedCluster", "fleet")["spec"]["agentPoolProfiles"].is_null(),
        "nothing was changed"
    );
    let said = events(&world);
    assert_eq!(
        said.matches("AdoptionWaits").count(),
        1,
        "it is said once: {said}"
    );
    // Out of the way, it is adopted.
    remove(&world.server, "Cluster", "fleet").await;
    world
        .until("adopted", |world| {
            world
                .object("AzureASOManagedControlPlane", "fleet")
                .is_some_and(|plane| is_settled(&plane))
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_adoption_that_is_killed_goes_on() {
    let world = &mut standing().await;
    for one in &theirs()[1..] {
        annotate(world, one).await;
    }
    // Each process lives for a moment longer than the one before.
    for seconds in 1..20 {
        world.kill().await;
        world.start();
        tokio::time::sleep(Duration::from_millis(seconds * 200)).await;
    }
    until_adopted(world).await;
    assert_eq!((world.count("DELETE", ""), operated(world).len()), (0, 4));
}
