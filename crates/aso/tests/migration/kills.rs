//! `slipway migrate` killed at every request, refused and cut off at every write, in every direction: given again it goes on, or goes
//! back, and nothing is written in Azure.

use std::time::Duration;

use slipway_apiserver_sim::faults::{Called, Fault, Faults};
use slipway_aso::migrate::plan::Goal;

use super::world::World;

/// So many runs of each direction, unless all are asked for.
const SAMPLE: usize = 2;
/// What may become of a write beside never being sent.
const AT_WRITES: [Fault; 7] = [
    Fault::CrashAfterCommit,
    Fault::LostRequest,
    Fault::LostAnswer,
    Fault::Conflict,
    Fault::Throttled,
    Fault::ServerError,
    Fault::TimeoutAfterCommit,
];

/// The requests of a command that nothing disturbs.
async fn calls(world: &World, goal: Goal) -> Vec<Called> {
    let faults = Faults::none();
    let done = world
        .migrate_over(world.server.client_with(faults.clone()), goal)
        .await;
    done.expect("undisturbed");
    faults.log()
}

/// Gives the command while something goes wrong at this call. Whoever died is given it again; so is who was told to.
async fn disturbed(world: &World, goal: Goal, call: usize, fault: Fault) {
    let faults = Faults::none().at(call, fault);
    let client = world.server.client_with(faults);
    let command = world.migrate_over(client, goal);
    // A process that died answers nothing: what is left of it is dropped.
    if let Ok(Err(error)) = tokio::time::timeout(Duration::from_mins(30), command).await {
        assert!(!error.is_empty(), "it says what went wrong");
    }
}

/// Every request and what goes wrong there, or a sample that is spread over the whole of it.
fn moments(calls: &[Called], offset: usize) -> Vec<(usize, Fault)> {
    let all: Vec<(usize, Fault)> = calls
        .iter()
        .enumerate()
        .flat_map(|(index, call)| {
            let more: &[Fault] = if call.writes { &AT_WRITES } else { &[] };
            let faults = std::iter::once(Fault::CrashBeforeSend).chain(more.iter().copied());
            faults.map(move |fault| (index, fault))
        })
        .collect();
    let is_full = std::env::var_os("SLIPWAY_TEST_FULL").is_some();
    let every = if is_full { 1 } else { all.len().div_ceil(SAMPLE) };
    all.into_iter().skip(offset % every).step_by(every).collect()
}

fn report(what: &str, calls: &[Called], runs: usize) {
    let writes = calls.iter().filter(|call| call.writes).count();
    println!(
        "report: migration: {what} of {} calls ({writes} writes) disturbed {runs} times, 0 divergences",
        calls.len()
    );
}

async fn confirmed(world: &World, when: &str) {
    world
        .migrate(Goal::Confirm)
        .await
        .unwrap_or_else(|error| panic!("{when}: {error}"));
    world.until_inline_ready().await;
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(world.names("AzureManaged"), Vec::<String>::new(), "{when}");
    assert_eq!(world.writes(), Vec::<String>::new(), "{when}: no write in Azure");
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
async fn a_preparation_that_is_disturbed_anywhere_goes_on_or_back() {
    let calls = calls(&World::standing().await, Goal::Prepare).await;
    let moments = moments(&calls, 0);
    for (number, (call, fault)) in moments.iter().enumerate() {
        let world = World::standing().await;
        disturbed(&world, Goal::Prepare, *call, *fault).await;
        let when = format!("call {call}, {fault}");
        if number % 2 == 0 {
            assert_undone(&world, &when).await;
        } else {
            let done = world.migrate(Goal::Prepare).await;
            done.unwrap_or_else(|error| panic!("{when}: {error}"));
            confirmed(&world, &when).await;
        }
    }
    report("a preparation", &calls, moments.len());
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_that_is_disturbed_anywhere_goes_on() {
    let world = World::standing().await;
    world.migrate(Goal::Prepare).await.expect("prepared");
    let calls = calls(&world, Goal::Confirm).await;
    let moments = moments(&calls, 3);
    for (call, fault) in &moments {
        let world = World::standing().await;
        world.migrate(Goal::Prepare).await.expect("prepared");
        disturbed(&world, Goal::Confirm, *call, *fault).await;
        confirmed(&world, &format!("call {call}, {fault}")).await;
    }
    report("a confirmation", &calls, moments.len());
}

#[tokio::test(start_paused = true)]
async fn an_undo_that_is_disturbed_anywhere_goes_on() {
    let world = World::standing().await;
    world.migrate(Goal::Prepare).await.expect("prepared");
    let calls = calls(&world, Goal::Undo).await;
    let moments = moments(&calls, 6);
    for (call, fault) in &moments {
        let world = World::standing().await;
        world.migrate(Goal::Prepare).await.expect("prepared");
        disturbed(&world, Goal::Undo, *call, *fault).await;
        assert_undone(&world, &format!("call {call}, {fault}")).await;
    }
    report("an undo", &calls, moments.len());
}
