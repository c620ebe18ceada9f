//! `slipway adopt` disturbed anywhere, and beside an operator: given again it goes on, given up it leaves nothing, and nothing is written
//! in Azure before it is confirmed.

use std::time::Duration;

use kube::Client;
use serde_json::json;
use slipway_apiserver_sim::faults::{Called, Fault, Faults};
use slipway_aso::{adopt::command::confirm, command::objects::Objects};
use slipway_kit::{
    asker::asker,
    azure::{NAMESPACE, SUBSCRIPTION},
};

use super::{
    adoption::{AKS, adoption, existing, settle},
    operated::{operated, running},
    world::{World, create, credential, merge, remove},
};

/// So many runs of each, unless all are asked for.
const SAMPLE: usize = 2;
const AT_WRITES: [Fault; 6] = [
    Fault::CrashAfterCommit,
    Fault::LostRequest,
    Fault::LostAnswer,
    Fault::Conflict,
    Fault::Throttled,
    Fault::ServerError,
];

async fn before() -> World {
    let world = World::new();
    existing(&world).await;
    create(&world.server, &credential("sign-in")).await;
    world.simulator.azure().forget_requests();
    world
}

async fn adopt(world: &World, client: Client) -> Result<String, String> {
    let objects = Objects::discover(&client).await?;
    let asker = asker(world.context());
    let ids = [format!("/subscriptions/{SUBSCRIPTION}{AKS}")];
    let read = adoption().read(&objects, &asker, &ids).await?;
    adoption().apply(&objects, &asker, &read).await
}

async fn confirmed(world: &World, client: Client) -> Result<String, String> {
    let objects = Objects::discover(&client).await?;
    confirm(
        &objects,
        &asker(world.context()),
        NAMESPACE,
        &["fleet".to_owned()],
    )
    .await
}

fn moments(calls: &[Called]) -> Vec<(usize, Fault)> {
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
    all.into_iter().step_by(every).collect()
}

/// Whether something of the objects still waits for a confirmation.
fn awaits(world: &World) -> bool {
    let objects = world.server.objects();
    objects
        .iter()
        .any(|object| object["spec"].to_string().contains("slipway.dev/adopted-policy"))
}

#[tokio::test(start_paused = true)]
async fn an_adoption_that_is_disturbed_anywhere_goes_on_or_is_given_up() {
    let faults = Faults::none();
    let world = before().await;
    adopt(&world, world.server.client_with(faults.clone()))
        .await
        .expect("undisturbed");
    let calls = faults.log();
    let moments = moments(&calls);
    for (number, (call, fault)) in moments.iter().enumerate() {
        let when = format!("call {call}, {fault}");
        let world = before().await;
        let client = world.server.client_with(Faults::none().at(*call, *fault));
        let _ = tokio::time::timeout(Duration::from_mins(30), adopt(&world, client)).await;
        if number % 2 == 0 {
            settle().await;
            remove(&world.server, "Cluster", "fleet").await;
            world.until_gone().await;
        } else {
            let done = adopt(&world, world.server.client()).await;
            done.unwrap_or_else(|error| panic!("{when}: {error}"));
            world.until_ready(&["fleet-system", "fleet-user"]).await;
        }
        settle().await;
        assert_eq!(world.writes(), 0, "{when}");
    }
    println!(
        "report: adoption: of {} calls disturbed {} times, 0 divergences",
        calls.len(),
        moments.len()
    );
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_that_is_disturbed_anywhere_goes_on() {
    let adopted = async || {
        let world = before().await;
        adopt(&world, world.server.client()).await.expect("adopted");
        world
    };
    let faults = Faults::none();
    let world = adopted().await;
    let done = confirmed(&world, world.server.client_with(faults.clone())).await;
    done.expect("undisturbed");
    let calls = faults.log();
    let moments = moments(&calls);
    for (call, fault) in &moments {
        let when = format!("call {call}, {fault}");
        let world = adopted().await;
        let client = world.server.client_with(Faults::none().at(*call, *fault));
        let _ = tokio::time::timeout(Duration::from_mins(30), confirmed(&world, client)).await;
        let done = confirmed(&world, world.server.client()).await;
        done.unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(!awaits(&world), "{when}");
        world.until_ready(&["fleet-system", "fleet-user"]).await;
        settle().await;
        assert_eq!(
            world.writes(),
            0,
            "{when}: nothing differs, so nothing is written"
        );
    }
    println!(
        "report: adoption: a confirmation of {} calls disturbed {} times, 0 divergences",
        calls.len(),
        moments.len()
    );
}

/// The operator is given what is adopted to look at, and writes only once that is confirmed.
#[tokio::test(start_paused = true)]
async fn an_operator_writes_nothing_before_an_adoption_is_confirmed() {
    let world = running().await;
    existing(&world).await;
    create(&world.server, &credential("sign-in")).await;
    world.simulator.azure().forget_requests();
    adopt(&world, world.server.client()).await.expect("adopted");
    world.until_ready(&["fleet-system", "fleet-user"]).await;
    settle().await;
    assert_eq!(world.writes(), 0);
    assert!(!operated(&world).is_empty(), "the operator looks at it");
    let done = confirmed(&world, world.server.client()).await;
    done.expect("confirmed");
    let three = json!({"spec": {"replicas": 3}});
    merge(&world.server, "MachinePool", "fleet-user", three).await;
    world
        .until("scaled by the operator", |world| {
            world.document("agentPools/user")["properties"]["count"] == 3
        })
        .await;
    world.until_ready(&["fleet-system", "fleet-user"]).await;
    assert_eq!(world.count("DELETE", ""), 0);
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    let left = world.in_azure();
    let is_left = |end: &str| left.iter().any(|id| id.ends_with(end));
    for stays in ["/resourcegroups/fleet", "/virtualnetworks/net", "/fleets/all"] {
        assert!(is_left(stays), "{stays} may be shared: {left:?}");
    }
    for goes in ["/managedclusters/fleet", "/members/fleet"] {
        assert!(!is_left(goes), "{goes} goes: {left:?}");
    }
}
