//! One resource has one writer, whichever API names it first: the second claim is told whose the first is.

use std::time::Duration;

use kube::Api;
use serde_json::{Value, json};
use slipway_aso::migrate::plan::Goal;
use slipway_kit::{
    azure::{self, NAMESPACE},
    objects::{self, condition},
};

use super::{
    table::{ByHand, NEW, standing},
    world::{Surroundings, World, manifests},
};

fn in_namespace(world: &World, namespace: &str, kind: &str, name: &str) -> Option<Value> {
    world.server.objects().into_iter().find(|object| {
        let metadata = &object["metadata"];
        object["kind"] == kind && metadata["namespace"] == namespace && metadata["name"] == name
    })
}

async fn scale(world: &World, namespace: &str, pool: &str, replicas: i32) {
    let api: Api<kube::api::DynamicObject> = objects::api(
        &world.server,
        namespace,
        "cluster.x-k8s.io/v1beta2",
        "MachinePool",
    );
    let patch = kube::api::Patch::Merge(json!({"spec": {"replicas": replicas}}));
    api.patch(pool, &kube::api::PatchParams::default(), &patch)
        .await
        .expect("scaled");
}

fn count(world: &World) -> Value {
    world.document("agentPools/user")["properties"]["count"].clone()
}

/// What the first object that is not ready says.
fn told(world: &World, namespace: &str, kind: &str, name: &str) -> String {
    in_namespace(world, namespace, kind, name).map_or_else(String::new, |object| {
        let ready = condition(&object, "Ready").clone();
        let newer = object["status"]["v1beta2"]["conditions"].as_array().cloned();
        let newer = newer.into_iter().flatten().find(|one| one["type"] == "Ready");
        let ready = newer.unwrap_or(ready);
        format!("{} {}", ready["reason"], ready["message"])
    })
}

async fn settle() {
    tokio::time::sleep(Duration::from_mins(30)).await;
}

/// Adopted and confirmed while the classic objects are at work: those go on, and the others wait for them.
#[tokio::test(start_paused = true)]
async fn what_is_confirmed_too_early_waits_for_the_classic_objects() {
    for surroundings in [Surroundings::Alone, Surroundings::Operator] {
        let mut hands = standing(surroundings).await;
        hands.adopt(NEW, None).await;
        hands.confirm().await;
        assert_eq!(hands.refused, Vec::<String>::new());
        scale(&hands.world, NEW, "fleet-user", 5).await;
        settle().await;
        let world = &hands.world;
        assert_eq!(
            world.writes(),
            Vec::<String>::new(),
            "{surroundings:?}: two write"
        );
        for (kind, name, first) in [
            (
                "AzureASOManagedControlPlane",
                "fleet",
                "AzureManagedControlPlane default/fleet",
            ),
            (
                "AzureASOManagedMachinePool",
                "fleet-user",
                "AzureManagedMachinePool default/user",
            ),
        ] {
            let told = told(world, NEW, kind, name);
            assert!(
                told.contains("OwnedByAnother") && told.contains(first),
                "{kind}: {told}"
            );
        }
        // The classic ones are at work as before.
        scale(world, NAMESPACE, "user", 3).await;
        settle().await;
        assert_eq!(
            (count(world), world.writes().len()),
            (json!(3), 1),
            "{:?}",
            world.writes()
        );
        // Once they are gone, as the document says, the others go on.
        leave(&mut hands).await;
        let world = &hands.world;
        world.until("five nodes", |world| count(world) == 5).await;
        let deletions: Vec<String> = world
            .writes()
            .into_iter()
            .filter(|one| one.starts_with("DELETE"))
            .collect();
        assert_eq!(deletions, Vec::<String>::new());
    }
}

/// The document's way to take the classic objects away.
async fn leave(hands: &mut ByHand) {
    hands.pause(true).await;
    hands.wait().await;
    for kind in [
        "Cluster",
        "AzureManagedCluster",
        "AzureManagedControlPlane",
        "MachinePool",
        "AzureManagedMachinePool",
    ] {
        hands.delete(kind).await;
    }
    for kind in [
        "AzureManagedMachinePool",
        "MachinePool",
        "AzureManagedControlPlane",
        "AzureManagedCluster",
        "Cluster",
    ] {
        hands.free(kind).await;
    }
}

/// A repository of old manifests brings the classic objects back after a migration: they get nothing, and take nothing along.
#[tokio::test(start_paused = true)]
async fn classic_objects_that_come_back_are_told_whose_it_is() {
    let hands = standing(Surroundings::Alone).await;
    let world = &hands.world;
    world.migrate(Goal::Prepare).await.expect("prepared");
    world.migrate(Goal::Confirm).await.expect("confirmed");
    settle().await;
    let in_azure = world.in_azure();
    let mut again = manifests();
    for object in &mut again {
        object["metadata"]["namespace"] = json!(NEW);
        let identity = &mut object["spec"]["identityRef"];
        if identity.is_object() {
            identity["namespace"] = json!(NAMESPACE);
        }
    }
    azure::apply(&world.server, &again).await;
    world
        .until("told", |world| {
            let told = told(world, NEW, "AzureManagedControlPlane", "fleet");
            told.contains("AzureASOManagedControlPlane default/fleet")
        })
        .await;
    settle().await;
    assert_eq!(world.writes(), Vec::<String>::new());
    let api = objects::api(&world.server, NEW, "cluster.x-k8s.io/v1beta2", "Cluster");
    api.delete("fleet", &kube::api::DeleteParams::default())
        .await
        .expect("deleted");
    world
        .until("gone", |world| {
            in_namespace(world, NEW, "Cluster", "fleet").is_none()
        })
        .await;
    settle().await;
    assert_eq!((world.writes(), world.in_azure()), (Vec::new(), in_azure));
}

/// What was written here goes on being written here: an operator that runs is given nothing, so it sends nothing.
#[tokio::test(start_paused = true)]
async fn a_migration_beside_an_operator_writes_nothing_in_azure() {
    let world = World::standing_in(Surroundings::Operator).await;
    world.migrate(Goal::Prepare).await.expect("prepared");
    world.until_inline_ready().await;
    settle().await;
    world.migrate(Goal::Confirm).await.expect("confirmed");
    settle().await;
    world.until_inline_ready().await;
    assert_eq!(world.writes(), Vec::<String>::new());
    let operated = world.server.objects().into_iter().filter(|object| {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        version.contains(".azure.com/")
    });
    assert_eq!(operated.count(), 0);
}
