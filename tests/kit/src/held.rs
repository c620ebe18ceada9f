//! What a manager in this process holds, counted: tasks, connections, watches, queue and map entries. A test counts before
//! objects come and after they are gone, and nothing may be left of them.

use std::{collections::BTreeMap, time::Duration};

use slipway_runtime::Context;

/// Metrics that count what is held.
const COUNTED: &[&str] = &[
    "slipway_held_entries",
    "slipway_informers",
    "slipway_informer_objects",
    "slipway_workload_clusters",
    "workqueue_depth",
    "controller_runtime_active_workers",
];

/// What is held at one moment, by what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held(pub BTreeMap<String, i64>);

impl Held {
    pub fn now(context: &Context) -> Self {
        let text = context.metrics.encode();
        let mut all: BTreeMap<String, i64> = text
            .lines()
            .filter(|line| COUNTED.iter().any(|name| line.starts_with(name)))
            .filter_map(|line| {
                let (name, value) = line.rsplit_once(' ')?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        all.insert("tasks".to_owned(), count(tasks));
        all.insert("watches".to_owned(), count(context.informers.tasks()));
        all.insert("plans".to_owned(), count(context.plans.len()));
        Self(all)
    }

    /// How many are held whose name contains this.
    pub fn of(&self, name: &str) -> i64 {
        self.0
            .iter()
            .filter(|(known, _)| known.contains(name))
            .map(|(_, count)| count)
            .sum()
    }

    /// What is held now and was not before.
    pub fn beyond(&self, before: &Self) -> Vec<String> {
        self.0
            .iter()
            .filter_map(|(name, count)| {
                let known = before.0.get(name).copied().unwrap_or_default();
                (*count > known).then(|| format!("{name}: {known} -> {count}"))
            })
            .collect()
    }
}

/// Waits until nothing is held beyond `before`; what still is after the given time of the (paused) clock is the failure.
pub async fn until_nothing_beyond(before: &Held, context: &Context, within: Duration) {
    let end = tokio::time::Instant::now() + within;
    loop {
        let left = Held::now(context).beyond(before);
        if left.is_empty() {
            return;
        }
        assert!(tokio::time::Instant::now() < end, "left behind: {left:#?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
