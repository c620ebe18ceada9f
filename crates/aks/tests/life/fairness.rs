//! One cluster gets very many node pools at once, another one: every pool is told within seconds how it stands, whatever the
//! request limit, and the second cluster takes its turn. Virtual time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    at_rest::{apply_named, named},
    world::{SUBSCRIPTION, World, condition, create, holds, quick, unreachable},
};

const POOLS: usize = 120;
/// How often pools are read at first, and once all of them have a condition.
const STEP: Duration = Duration::from_millis(250);
const LATER: Duration = Duration::from_secs(5);

/// Makes a node pool of a cluster, as a user would.
async fn add_pool(world: &World, cluster: &str, name: &str) {
    let text = json!(named(cluster, SUBSCRIPTION)).to_string();
    let all: Vec<Value> = serde_json::from_str(
        &text
            .replace("\"work\"", &format!("\"{name}\""))
            .replace(&format!("\"{cluster}-work\""), &format!("\"{cluster}-{name}\"")),
    )
    .expect("manifests");
    let is_new = |object: &&Value| object["metadata"]["name"] == format!("{cluster}-{name}");
    for manifest in all.iter().filter(is_new) {
        create(&world.server, manifest).await;
    }
}

/// When each pool was told for the first time, and became ready.
#[derive(Default)]
struct Heard {
    told: BTreeMap<String, Duration>,
    ready: BTreeMap<String, Duration>,
    /// Those that were told of the request limit, with the time.
    throttled: BTreeSet<String>,
}

impl Heard {
    fn note(&mut self, world: &World, since: Instant) {
        for object in world.server.objects() {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            if object["kind"] != "AzureManagedMachinePool" {
                continue;
            }
            let condition = condition(&object, "AgentPoolsReady");
            if condition.is_null() {
                continue;
            }
            let first = |times: &mut BTreeMap<String, Duration>| {
                times.entry(name.to_owned()).or_insert(since.elapsed());
            };
            first(&mut self.told);
            if holds(&object, "Ready") {
                first(&mut self.ready);
            }
            let message = condition["message"].as_str().unwrap_or_default();
            if condition["reason"] == "Throttled" && message.contains(" is sent by 2026-") {
                self.throttled.insert(name.to_owned());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_new_pools_of_one_cluster_keep_no_other_pool_without_a_condition() {
    let world = World::with(quick(), unreachable());
    for cluster in ["noisy", "quiet"] {
        apply_named(&world, cluster, SUBSCRIPTION).await;
    }
    let count = |world: &World| {
        let objects = world.server.objects();
        let ready = |object: &&Value| object["kind"] == "AzureManagedMachinePool" && holds(object, "Ready");
        objects.iter().filter(ready).count()
    };
    world.until("ready", |world| count(world) == 4).await;
    // The budget is whole again.
    tokio::time::sleep(Duration::from_mins(30)).await;

    let start = Instant::now();
    let mut heard = Heard::default();
    for number in 0..POOLS {
        add_pool(&world, "noisy", &format!("n{number}")).await;
    }
    while start.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(STEP).await;
        heard.note(&world, start);
    }
    let came = start.elapsed();
    add_pool(&world, "quiet", "one").await;
    while heard.ready.len() < POOLS + 5 && start.elapsed() < Duration::from_hours(1) {
        let all_told = heard.told.len() == POOLS + 5;
        tokio::time::sleep(if all_told { LATER } else { STEP }).await;
        heard.note(&world, start);
    }

    let of = |times: &BTreeMap<String, Duration>, name: &str| times.get(name).copied();
    let slowest = (0..POOLS)
        .map(|number| of(&heard.told, &format!("noisy-n{number}")).expect("told"))
        .max();
    let told = of(&heard.told, "quiet-one").expect("told").saturating_sub(came);
    let ready = of(&heard.ready, "quiet-one").expect("ready");
    let before = (0..POOLS)
        .filter(|number| of(&heard.ready, &format!("noisy-n{number}")).is_some_and(|at| at < ready))
        .count();
    println!(
        "report: aks fairness: {POOLS} pools told within {slowest:?}, {} of the request limit; another cluster's pool told after \
         {told:?}, ready after {:?}, when {before} of them were; all ready after {:?}",
        heard.throttled.len(),
        ready.saturating_sub(came),
        heard.ready.values().max()
    );
    assert!(slowest <= Some(Duration::from_secs(5)), "{slowest:?}");
    assert!(told <= Duration::from_secs(5), "{told:?}");
    assert!(heard.throttled.len() > POOLS / 2, "{}", heard.throttled.len());
    assert!(before < POOLS / 2, "{before}");
    assert_eq!(heard.ready.len(), POOLS + 5, "all of them are made");
    let puts = world.count("PUT", "/agentPools/n");
    assert_eq!(puts, POOLS, "each was written once");
}
