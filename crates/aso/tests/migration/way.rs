//! The whole way: prepared, undone, prepared again, confirmed, used, deleted.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_aso::{
    command::objects::Objects,
    migrate::{command::dry_run, plan::Goal},
};

use super::world::{World, key};

async fn settle() {
    tokio::time::sleep(Duration::from_mins(20)).await;
}

/// Objects by kind and name, without what controllers and time write.
fn lasting(world: &World) -> Vec<Value> {
    let objects = world.server.objects();
    let mut kept: Vec<Value> = objects
        .iter()
        .filter(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            kind.starts_with("AzureManaged") || ["Cluster", "MachinePool"].contains(&kind)
        })
        .cloned()
        .collect();
    for object in &mut kept {
        if let Some(object) = object.as_object_mut() {
            object.remove("status");
        }
        let Some(metadata) = object["metadata"].as_object_mut() else {
            continue;
        };
        for field in ["resourceVersion", "generation", "managedFields"] {
            metadata.remove(field);
        }
        if let Some(spec) = object["spec"].as_object_mut()
            && spec.get("paused") == Some(&json!(false))
        {
            spec.remove("paused");
        }
        if object["metadata"]["annotations"]
            .as_object()
            .is_some_and(serde_json::Map::is_empty)
            && let Some(metadata) = object["metadata"].as_object_mut()
        {
            metadata.remove("annotations");
        }
    }
    kept.sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]["name"]));
    kept
}

#[tokio::test(start_paused = true)]
async fn a_classic_cluster_goes_on_with_inline_resources_without_a_write_in_azure() {
    let world = World::standing().await;
    let (before, in_azure) = (lasting(&world), world.in_azure());

    let objects = Objects::discover(&world.server.client()).await.expect("kinds");
    let text = dry_run(&objects, &key(), Goal::Prepare).await.expect("a plan");
    assert!(
        text.contains("pause the Cluster") && text.contains("Nothing was changed"),
        "{text}"
    );
    assert_eq!(lasting(&world), before, "a dry run changes nothing");

    let told = world.migrate(Goal::Prepare).await.expect("prepared").join("\n");
    assert_eq!(told.matches("no difference").count(), 4, "{told}");
    world.until_inline_ready().await;
    settle().await;
    assert_eq!(world.writes(), Vec::<String>::new());
    assert!(
        world.migrate(Goal::Prepare).await.is_ok(),
        "it may be given again"
    );

    let told = world.migrate(Goal::Undo).await.expect("undone").join("\n");
    assert!(told.contains("is as it was before"), "{told}");
    settle().await;
    assert_eq!(world.names("AzureASO"), Vec::<String>::new());
    assert_eq!(lasting(&world), before, "an undo leaves nothing behind");
    assert_eq!(world.writes(), Vec::<String>::new());
    world.migrate(Goal::Undo).await.expect("it may be given again");

    world.migrate(Goal::Prepare).await.expect("prepared again");
    let told = world.migrate(Goal::Confirm).await.expect("confirmed").join("\n");
    assert!(told.contains("the classic objects are gone"), "{told}");
    settle().await;
    assert_eq!(
        world.writes(),
        Vec::<String>::new(),
        "nothing was asked for, so nothing is written"
    );
    assert_eq!(world.names("AzureManaged"), Vec::<String>::new());
    assert_eq!(world.in_azure(), in_azure);
    world.until_inline_ready().await;
    let kubeconfig = world.object("Secret", "fleet-kubeconfig").expect("a kubeconfig");
    assert_eq!(
        kubeconfig["metadata"]["ownerReferences"][0]["kind"],
        "AzureASOManagedControlPlane"
    );
    let identity = world
        .object("AzureClusterIdentity", "fleet")
        .expect("an identity");
    let held = identity["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
    assert_eq!(held, 0, "nobody keeps the identity any more: {identity}");

    // It is used as any other, and leaves nothing behind.
    world
        .merge("MachinePool", "user", json!({"spec": {"replicas": 3}}))
        .await;
    world
        .until("scaled", |world| {
            world.document("agentPools/user")["properties"]["count"] == 3
        })
        .await;
    assert_eq!(world.writes().len(), 1, "{:?}", world.writes());
    world.delete("Cluster", "fleet").await;
    world
        .until("gone", |world| {
            world.object("Cluster", "fleet").is_none() && world.names("AzureASO").is_empty()
        })
        .await;
    assert_eq!(
        world.in_azure(),
        Vec::<String>::new(),
        "what was made for it went with it"
    );
}
