//! Killed at every call to the apiserver, in every direction: it goes on, or goes back, and nothing is written in Azure.

use std::time::Duration;

use slipway_apiserver_sim::faults::{Fault, Faults};
use slipway_aso::migrate::plan::Goal;

use super::world::World;

/// The calls by which a command that nothing disturbs writes.
async fn writes(world: &World, goal: Goal) -> Vec<usize> {
    let faults = Faults::none();
    let done = world
        .migrate_over(world.server.client_with(faults.clone()), goal)
        .await;
    done.expect("undisturbed");
    let calls = faults.log();
    let writes = calls.iter().enumerate().filter(|(_, call)| call.writes);
    writes.map(|(index, _)| index).collect()
}

/// Gives the command, and takes the connection away for good at this call.
async fn killed_at(world: &World, goal: Goal, call: usize, fault: Fault) {
    let faults = Faults::none().at(call, fault);
    let client = world.server.client_with(faults);
    let command = world.migrate_over(client, goal);
    // A process that died answers nothing: what is left of it is dropped.
    let _ = tokio::time::timeout(Duration::from_mins(30), command).await;
}

/// Where it is killed: before and after every write, or at a sample of them.
fn moments(writes: &[usize], offset: usize) -> Vec<(usize, Fault)> {
    let faults = [Fault::CrashBeforeSend, Fault::CrashAfterCommit];
    let all = writes.iter().flat_map(|call| faults.map(|fault| (*call, fault)));
    let is_full = std::env::var_os("SLIPWAY_TEST_FULL").is_some();
    let every = if is_full { 1 } else { 12 };
    all.skip(offset % every).step_by(every).collect()
}

async fn confirmed(world: &World) {
    world.migrate(Goal::Confirm).await.expect("confirmed");
    world.until_inline_ready().await;
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(world.names("AzureManaged"), Vec::<String>::new());
    assert_eq!(world.writes(), Vec::<String>::new(), "no write in Azure");
}

/// It is as it was: the classic objects, no others, and no write in Azure.
async fn assert_undone(world: &World, when: &str) {
    world
        .migrate(Goal::Undo)
        .await
        .unwrap_or_else(|error| panic!("{when}: {error}"));
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(world.names("AzureASO"), Vec::<String>::new(), "{when}");
    assert_eq!(world.names("AzureManaged").len(), 4, "{when}");
    assert_eq!(world.writes(), Vec::<String>::new(), "{when}");
}

#[tokio::test(start_paused = true)]
async fn a_preparation_that_is_killed_anywhere_goes_on_or_back() {
    let writes = writes(&World::standing().await, Goal::Prepare).await;
    let moments = moments(&writes, 0);
    for (number, (call, fault)) in moments.iter().enumerate() {
        let world = World::standing().await;
        killed_at(&world, Goal::Prepare, *call, *fault).await;
        let when = format!("call {call}, {fault}");
        if number % 2 == 0 {
            assert_undone(&world, &when).await;
        } else {
            let done = world.migrate(Goal::Prepare).await;
            done.unwrap_or_else(|error| panic!("{when}: {error}"));
            confirmed(&world).await;
        }
    }
    println!(
        "report: migration: a preparation of {} writes killed {} times",
        writes.len(),
        moments.len()
    );
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_that_is_killed_anywhere_goes_on() {
    let world = World::standing().await;
    world.migrate(Goal::Prepare).await.expect("prepared");
    let writes = writes(&world, Goal::Confirm).await;
    let moments = moments(&writes, 3);
    for (call, fault) in &moments {
        let world = World::standing().await;
        world.migrate(Goal::Prepare).await.expect("prepared");
        killed_at(&world, Goal::Confirm, *call, *fault).await;
        confirmed(&world).await;
    }
    println!(
        "report: migration: a confirmation of {} writes killed {} times",
        writes.len(),
        moments.len()
    );
}

#[tokio::test(start_paused = true)]
async fn an_undo_that_is_killed_anywhere_goes_on() {
    let world = World::standing().await;
    world.migrate(Goal::Prepare).await.expect("prepared");
    let writes = writes(&world, Goal::Undo).await;
    let moments = moments(&writes, 6);
    for (call, fault) in &moments {
        let world = World::standing().await;
        world.migrate(Goal::Prepare).await.expect("prepared");
        killed_at(&world, Goal::Undo, *call, *fault).await;
        assert_undone(&world, &format!("call {call}, {fault}")).await;
    }
    println!(
        "report: migration: an undo of {} writes killed {} times",
        writes.len(),
        moments.len()
    );
}
