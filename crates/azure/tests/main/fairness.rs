//! One cluster with very many changes, and another with one: the second is heard at once, takes its turn in the request
//! budget, and is told when that comes. A work queue with ten workers, in virtual time.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::json;
use slipway_azure::{Arm, Desired, Tuning, resource::Put};
use slipway_azure_sim::Settings;
use slipway_runtime::Outcome;
use tokio::{sync::Notify, task::JoinSet, time::Instant};

use crate::world::{World, cluster, converge, group, pool};

const WORKERS: usize = 10;
const POOLS: usize = 120;

/// When an object was heard for the first time, and what it was told; when it was done.
#[derive(Debug, Default)]
struct Heard {
    first: Option<(Duration, Outcome)>,
    done: Option<Duration>,
}

struct Queue {
    start: Instant,
    arms: BTreeMap<&'static str, Arm>,
    ready: Mutex<VecDeque<(&'static str, String)>>,
    work: Notify,
    heard: Mutex<BTreeMap<String, Heard>>,
}

impl Queue {
    fn add(&self, cluster: &'static str, name: String) {
        self.ready.lock().push_back((cluster, name));
        self.work.notify_one();
    }

    fn left(&self) -> usize {
        self.heard
            .lock()
            .values()
            .filter(|heard| heard.done.is_none())
            .count()
    }

    /// One worker: takes an object, makes one step, and hands it back for later if it is not done.
    async fn work(self: Arc<Self>) {
        loop {
            let next = self.ready.lock().pop_front();
            let Some((cluster, name)) = next else {
                self.work.notified().await;
                continue;
            };
            let put: Put = pool(cluster, &name, 1);
            let step = self.arms[cluster].ensure(&Desired::new(&put, None)).await;
            let outcome = step.expect("Azure refuses nothing").outcome;
            let now = self.start.elapsed();
            let mut heard = self.heard.lock();
            let heard = heard.entry(name.clone()).or_default();
            heard.first.get_or_insert((now, outcome));
            match outcome {
                Outcome::Done => heard.done = Some(now),
                Outcome::InProgress(after) | Outcome::Throttled(after) => {
                    let queue = Arc::clone(&self);
                    tokio::spawn(async move {
                        tokio::time::sleep(after).await;
                        queue.add(cluster, name);
                    });
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_pools_of_one_cluster_do_not_keep_another_cluster_waiting() {
    let settings = Settings {
        throttling: false,
        ..Settings::default()
    };
    let world = World::with(settings, Tuning::default());
    let arms: BTreeMap<&'static str, Arm> = ["noisy", "quiet"]
        .into_iter()
        .map(|name| (name, world.arm(name)))
        .collect();
    converge(&arms["noisy"], &group(), None).await.unwrap();
    for (name, arm) in &arms {
        converge(arm, &cluster(name, &json!({})), None).await.unwrap();
    }
    // The budget is whole again.
    tokio::time::sleep(Duration::from_mins(5)).await;
    let queue = Arc::new(Queue {
        start: Instant::now(),
        arms,
        ready: Mutex::default(),
        work: Notify::new(),
        heard: Mutex::default(),
    });
    for number in 0..POOLS {
        let name = format!("n{number}");
        queue.heard.lock().insert(name.clone(), Heard::default());
        queue.add("noisy", name);
    }
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(Arc::clone(&queue).work());
    }
    // All of them have been heard by then, or are about to.
    tokio::time::sleep(Duration::from_secs(10)).await;
    queue.heard.lock().insert("quiet".to_owned(), Heard::default());
    queue.add("quiet", "quiet".to_owned());
    let mut sent = None;
    while queue.left() > 0 && queue.start.elapsed() < Duration::from_hours(1) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        if sent.is_none() && world.count("PUT", "/agentPools/quiet") > 0 {
            sent = Some(queue.start.elapsed());
        }
    }
    workers.shutdown().await;
    let heard = queue.heard.lock();
    let at = |name: &str| heard[name].first.expect("it was heard");
    let (first, told) = at("quiet");
    println!("report: fairness: quiet heard after {first:?} ({told:?}), sent {sent:?}");
    assert!(first <= Duration::from_secs(13), "heard after {first:?}");
    assert!(
        sent.is_some_and(|sent| sent <= Duration::from_secs(16)),
        "sent {sent:?}"
    );
    let slowest = (0..POOLS)
        .map(|number| at(&format!("n{number}")).0)
        .max()
        .unwrap();
    assert!(slowest <= Duration::from_secs(15), "heard after {slowest:?}");
    let throttled = heard
        .values()
        .filter(|heard| matches!(heard.first, Some((_, Outcome::Throttled(_)))))
        .count();
    assert!(
        throttled > POOLS / 3,
        "{throttled} were told when their turn comes"
    );
    assert_eq!(queue_left(&heard), 0, "all of them are made");
    assert_eq!(
        world.count("PUT", "/agentPools/"),
        POOLS + 1,
        "each was written once"
    );
}

fn queue_left(heard: &BTreeMap<String, Heard>) -> usize {
    heard.values().filter(|heard| heard.done.is_none()).count()
}
