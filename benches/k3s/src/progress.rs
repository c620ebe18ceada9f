//! How far a side has come, by a watch of the driver's own.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
};

use futures::StreamExt;
use kube::{
    Api, Client, ResourceExt,
    api::DynamicObject,
    runtime::{WatchStreamExt, watcher},
};
use tokio::task::JoinSet;

use super::{Arguments, fleet};

/// What is ready.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Reached {
    pub servers: usize,
    pub whole_planes: usize,
    pub workers: usize,
    pub whole_pools: usize,
}

impl Reached {
    pub fn is_all(&self, arguments: &Arguments) -> bool {
        self.whole_planes == arguments.clusters && self.whole_pools == arguments.clusters
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} servers and {} workers are ready, {} control planes whole",
            self.servers, self.workers, self.whole_planes
        )
    }
}

/// Ready replicas by the name of a cluster.
type Ready = Arc<Mutex<HashMap<String, usize>>>;

/// Ends with this value.
pub struct Watch {
    planes: Ready,
    pools: Ready,
    desired: (usize, usize),
    _tasks: JoinSet<()>,
}

impl Watch {
    pub fn start(client: &Client, arguments: &Arguments) -> Self {
        let mut tasks = JoinSet::new();
        let (planes, pools) = (Ready::default(), Ready::default());
        tasks.spawn(follow(fleet::control_planes(client), Arc::clone(&planes)));
        tasks.spawn(follow(fleet::machine_deployments(client), Arc::clone(&pools)));
        Self {
            planes,
            pools,
            desired: (arguments.servers, arguments.workers),
            _tasks: tasks,
        }
    }

    pub fn reached(&self) -> Reached {
        let sum = |ready: &Ready, desired: usize| {
            let ready = ready.lock().expect("no panic while held");
            let whole = ready.values().filter(|count| **count >= desired).count();
            (ready.values().sum(), whole)
        };
        let (servers, whole_planes) = sum(&self.planes, self.desired.0);
        let (workers, whole_pools) = sum(&self.pools, self.desired.1);
        Reached {
            servers,
            whole_planes,
            workers,
            whole_pools,
        }
    }
}

async fn follow(api: Api<DynamicObject>, ready: Ready) {
    let mut events = watcher(api, watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    // An error is followed by another try, and shows as a side that gets no further if it never ends.
    while let Some(event) = events.next().await {
        if let Ok(object) = event {
            let count = object.data["status"]["readyReplicas"].as_u64().unwrap_or(0) as usize;
            ready
                .lock()
                .expect("no panic while held")
                .insert(object.name_any(), count);
        }
    }
}
