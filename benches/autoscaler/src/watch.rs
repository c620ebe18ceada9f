//! How far a side has come, by watches of the driver's own.

use std::{collections::HashMap, fmt, sync::Arc};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::DynamicObject,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::workload::{self, POOL};

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Reached {
    pub claims: usize,
    /// Those that are ready.
    pub nodes: usize,
    /// Pods.
    pub running: usize,
}

impl fmt::Display for Reached {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} claims, {} nodes ready, {} pods running",
            self.claims, self.nodes, self.running
        )
    }
}

/// By name, what counts of an object: none as long as it does not count.
type Tracked = Arc<Mutex<HashMap<String, Option<String>>>>;

/// Ends with this value.
pub struct Watch {
    claims: Tracked,
    nodes: Tracked,
    pods: Tracked,
    _tasks: JoinSet<()>,
}

impl Watch {
    pub fn start(client: &Client) -> Self {
        let mut tasks = JoinSet::new();
        let (claims, nodes, pods) = (Tracked::default(), Tracked::default(), Tracked::default());
        let all_claims: Api<DynamicObject> = workload::api(client, "karpenter.sh/v1", "NodeClaim");
        tasks.spawn(follow(all_claims, Arc::clone(&claims), |_| Some(String::new())));
        tasks.spawn(follow(
            Api::all(client.clone()),
            Arc::clone(&nodes),
            instance_type,
        ));
        let of_workload = Api::default_namespaced(client.clone());
        tasks.spawn(follow(of_workload, Arc::clone(&pods), |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            (phase == Some("Running")).then(String::new)
        }));
        Self {
            claims,
            nodes,
            pods,
            _tasks: tasks,
        }
    }

    pub fn reached(&self) -> Reached {
        let count = |seen: &Tracked| seen.lock().values().flatten().count();
        Reached {
            claims: count(&self.claims),
            nodes: count(&self.nodes),
            running: count(&self.pods),
        }
    }

    /// What the nodes that are ready cost an hour.
    pub fn price(&self) -> f64 {
        let nodes = self.nodes.lock();
        nodes.values().flatten().map(|kind| workload::price(kind)).sum()
    }
}

/// The instance type of a Node of the NodePool that is ready.
fn instance_type(node: &Node) -> Option<String> {
    let is_of_pool = node
        .labels()
        .get("karpenter.sh/nodepool")
        .is_some_and(|pool| pool == POOL);
    let mut conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
    let kind = node.labels().get("node.kubernetes.io/instance-type").cloned();
    (is_of_pool && is_ready).then(|| kind.unwrap_or_default())
}

async fn follow<K>(api: Api<K>, seen: Tracked, counts: impl Fn(&K) -> Option<String>)
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    // An error is followed by another try, and shows as a side that gets no further if it never ends.
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                seen.lock().insert(object.name_any(), counts(&object));
            }
            Ok(watcher::Event::Delete(object)) => {
                seen.lock().remove(&object.name_any());
            }
            Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => {}
        }
    }
}
