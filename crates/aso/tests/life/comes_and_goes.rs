//! An operator that is dead, comes to life, dies and lives again: what it has stays with it, and what is not its own does not flip.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    operated::{all_on, ask_for, operated, world},
    operator,
    world::{World, apply, condition, manifests, merge, remove},
};

const TWO_POOLS: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 2)];
const POOLS: &[&str] = &["system", "work"];

fn told(world: &World) -> (Value, Value) {
    let condition = condition(&world.plane(), "AzureServiceOperatorReady").clone();
    (condition["status"].clone(), condition["reason"].clone())
}

async fn scale(world: &World, replicas: i32) {
    let patch = json!({"spec": {"replicas": replicas}});
    merge(&world.server, "MachinePool", "work", patch).await;
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_is_dead_and_lives_again_takes_nothing_by_itself() {
    let world = world();
    // Its kinds are there, and nobody renews the lease.
    operator::install(&world.server).await;
    apply(&world.server, &manifests(TWO_POOLS)).await;
    world.until_ready(POOLS).await;
    assert!(all_on(&world, "native") && operated(&world).is_empty());
    assert_eq!(told(&world), (json!("Unknown"), json!("NotUsed")));
    let message = condition(&world.plane(), "AzureServiceOperatorReady")["message"].to_string();
    assert!(message.contains("written natively"), "{message}");
    // It comes to life: nothing flips.
    operator::run(&world.server, world.clock, true).await;
    world
        .until("noticed", |world| {
            told(world) == (json!("True"), json!("NotUsed"))
        })
        .await;
    scale(&world, 3).await;
    world
        .until("scaled here", |world| {
            world.pool("work")["status"]["replicas"] == 3
        })
        .await;
    assert!(all_on(&world, "native") && operated(&world).is_empty());
    world.assert_rests().await;
    // Given to it, what it has waits for it while it is dead, and goes on when it lives again.
    ask_for(&world, Some("aso"), POOLS).await;
    world
        .until("given", |world| {
            all_on(world, "aso") && operated(world).len() == 4
        })
        .await;
    world.until_ready(POOLS).await;
    operator::run(&world.server, world.clock, false).await;
    world
        .until("told", |world| {
            told(world) == (json!("False"), json!("NotRunning"))
        })
        .await;
    let writes = world.count("PUT", "");
    scale(&world, 4).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(world.count("PUT", ""), writes, "nobody else writes");
    // Without the word it stays where it is.
    ask_for(&world, None, POOLS).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert!(all_on(&world, "aso"));
    operator::run(&world.server, world.clock, true).await;
    world
        .until("at work again", |world| {
            told(world) == (json!("True"), json!("Running")) && world.pool("work")["status"]["replicas"] == 4
        })
        .await;
    assert_eq!(world.count("DELETE", ""), 0);
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert_eq!((world.in_azure(), operated(&world)), (vec![], vec![]));
}
