//! Clusters that nobody touches come to rest: without new pods few nodes are made or given up, and then none.
//! `SLIPWAY_TEST_FULL=1` plays more of them.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_kit::{
    journey::Surroundings,
    objects::{holds, is_deleting, of_kind},
};
use slipway_runtime::{Clock, Context};

use super::cluster::{KEPT, Life, count};
use crate::world::Random;

const OBJECTS: [&str; 4] = ["general", "second", "third", "fourth"];

/// What became of one cluster.
struct Rest {
    /// When it was left alone.
    claims: usize,
    made: usize,
    deleted: usize,
    /// In the last hour of all.
    late: usize,
    objects: Vec<Value>,
}

/// A cluster that filled up at random prices and sizes, lost most of its pods, may have cheaper machines since, and is then left alone for
/// five hours.
async fn left_alone(seed: u64) -> Rest {
    let mut random = Random::new(seed);
    let clock = || Clock::starting_at(Timestamp::UNIX_EPOCH);
    let server = Apiserver::new(clock());
    let life = Arc::new(Life::new(&server, clock()));
    tokio::spawn(life.play());
    life.found(8, "9").await;
    for named in &OBJECTS[1..3] {
        let price = ["0.1", "0.2", "0.3"][random.below(3)];
        let trouble = if seed.is_multiple_of(5) && *named == "third" {
            "failed"
        } else {
            ""
        };
        life.machine_deployment(named, 1 + random.below(8), price, trouble)
            .await;
    }
    let policy = ["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"][random.below(3)];
    let after = ["0s", "30s", "10m"][random.below(3)];
    let nodes = ["10%", "2", "100%"][random.below(3)];
    let disruption =
        json!({"consolidationPolicy": policy, "consolidateAfter": after, "budgets": [{"nodes": nodes}]});
    let packing = ["karpenter", "cost"][random.below(2)];
    life.merge(
        "NodePool",
        "general",
        json!({"metadata": {"annotations": {"slipway.dev/packing": packing}},
        "spec": {"disruption": disruption}}),
    )
    .await;
    let faults = Faults::none();
    let mut context = Context::for_tests(server.client_with(faults.clone()), seed);
    context.clock = clock();
    for registration in life.controllers(&faults) {
        tokio::spawn((registration.run)(context.clone()));
    }
    for cores in 1..=3 {
        life.budget_of(&format!("app-{cores}"), 2 + random.below(3), 1, cores)
            .await;
    }
    tokio::time::sleep(Duration::from_mins(20)).await;
    for cores in 1..=3 {
        let fewer = json!({"metadata": {"annotations": {KEPT: (1 + random.below(2)).to_string()}}});
        life.merge("PodDisruptionBudget", &format!("app-{cores}"), fewer)
            .await;
    }
    if random.below(2) == 0 {
        life.machine_deployment(OBJECTS[3], 1 + random.below(4), "0.05", "")
            .await;
    }
    let claims = server.look(|objects| count(objects, "NodeClaim"));
    let written = |verb: &str, from: usize| {
        let line = format!("{verb} nodeclaims ");
        let log = faults.log();
        let calls = log.iter().skip(from);
        calls.filter(|call| call.line.starts_with(&line)).count()
    };
    let began = faults.log().len();
    tokio::time::sleep(Duration::from_hours(4)).await;
    let (made, deleted, rested) = (
        written("CREATE", began),
        written("DELETE", began),
        faults.log().len(),
    );
    tokio::time::sleep(Duration::from_hours(1)).await;
    let late = written("CREATE", rested) + written("DELETE", rested);
    context.shutdown.cancel();
    Rest {
        claims,
        made,
        deleted,
        late,
        objects: server.look(<[Value]>::to_vec),
    }
}

fn rests(objects: &[Value]) -> bool {
    let claims = count(objects, "NodeClaim");
    of_kind(objects, "NodeClaim").all(|claim| holds(claim, "Ready") && !is_deleting(claim))
        && of_kind(objects, "Node").all(|node| node["spec"]["taints"].as_array().is_none_or(Vec::is_empty))
        && of_kind(objects, "Pod").all(|pod| pod["spec"]["nodeName"].is_string())
        && count(objects, "Machine") == claims
        && count(objects, "Node") == claims
}

#[test]
fn clusters_that_are_left_alone_come_to_rest() {
    let is_full = std::env::var_os("SLIPWAY_TEST_FULL").is_some();
    let seeds = if is_full { 300 } else { 8 };
    let (mut made, mut deleted, mut most) = (0, 0, 0);
    for seed in 0..seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let rest = runtime.block_on(left_alone(seed));
        assert!(rest.claims > 0, "seed {seed}: there is something to give up");
        // Each claim could be replaced by one of every cheaper object, one after the other.
        let bound = rest.claims * OBJECTS.len();
        assert!(
            rest.made <= bound && rest.deleted <= rest.claims + rest.made,
            "seed {seed}: {} claims made and {} deleted, of {}",
            rest.made,
            rest.deleted,
            rest.claims
        );
        assert_eq!(
            rest.late, 0,
            "seed {seed}: something still moves in the fifth hour"
        );
        assert!(rests(&rest.objects), "seed {seed}: {:#?}", rest.objects);
        made += rest.made;
        deleted += rest.deleted;
        most = most.max(rest.made + rest.deleted);
    }
    assert!(made > 0 && deleted > 0, "the clusters test something");
    println!(
        "report: autoscaler: {seeds} clusters that are left alone come to rest: {made} claims made and {deleted} deleted in all, at most {most} in one"
    );
}
