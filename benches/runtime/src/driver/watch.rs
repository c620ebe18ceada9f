//! A third party's view of the race: which objects have a status that is true of their generation, and how long each
//! change took from its event to the event of its status, both on the same watch.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::TryStreamExt;
use kube::{
    Api, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use slipway_bench_runtime::Buoy;
use tokio::{sync::Notify, task::JoinHandle, time::Instant};

#[derive(Default)]
struct State {
    /// By name, what is not reconciled yet: the generation and when it was first seen.
    pending: HashMap<String, (i64, Instant)>,
    ready: HashMap<String, i64>,
    latencies: Vec<Duration>,
    listed: bool,
}

pub struct Watch {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watch {
    pub fn start(api: Api<Buoy>) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let changed = Arc::new(Notify::new());
        let task = tokio::spawn({
            let (state, changed) = (Arc::clone(&state), Arc::clone(&changed));
            async move {
                let events = watcher::watcher(api, watcher::Config::default()).default_backoff();
                let mut events = Box::pin(events);
                loop {
                    match events.try_next().await {
                        Ok(Some(event)) => {
                            state.lock().take(event);
                            changed.notify_one();
                        }
                        Ok(None) => return,
                        Err(error) => eprintln!("the driver's watch was interrupted: {error}"),
                    }
                }
            }
        });
        Self { state, changed, task }
    }

    /// Waits until the first list is in.
    pub async fn listed(&self) {
        self.until(|state| state.listed).await;
    }

    /// Waits until so many objects are reconciled and none is waiting.
    pub async fn all_ready(&self, objects: usize) {
        self.until(|state| state.ready.len() >= objects && state.pending.is_empty())
            .await;
    }

    /// The latencies since the last call.
    pub fn take_latencies(&self) -> Vec<Duration> {
        std::mem::take(&mut self.state.lock().latencies)
    }

    async fn until(&self, reached: impl Fn(&State) -> bool) {
        while !reached(&self.state.lock()) {
            self.changed.notified().await;
        }
    }
}

impl State {
    fn take(&mut self, event: watcher::Event<Buoy>) {
        match event {
            watcher::Event::Apply(buoy) | watcher::Event::InitApply(buoy) => self.see(&buoy),
            watcher::Event::Delete(buoy) => {
                self.pending.remove(&buoy.name_any());
                self.ready.remove(&buoy.name_any());
            }
            watcher::Event::InitDone => self.listed = true,
            watcher::Event::Init => {}
        }
    }

    fn see(&mut self, buoy: &Buoy) {
        let name = buoy.name_any();
        let generation = buoy.metadata.generation.unwrap_or_default();
        let observed = buoy.status.as_ref().and_then(|status| status.observed_generation);
        if observed == Some(generation) {
            if let Some((_, since)) = self.pending.remove(&name) {
                self.latencies.push(since.elapsed());
            }
            self.ready.insert(name, generation);
        } else {
            let now = Instant::now();
            let entry = self.pending.entry(name).or_insert((generation, now));
            if entry.0 != generation {
                *entry = (generation, now);
            }
        }
    }
}
