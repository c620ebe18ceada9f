//! Who waits for a node: pods that kube-scheduler gave up on, and what happened that they may have waited for.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use slipway_runtime::{
    Informer,
    informer::{Delta, Object},
};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    api::{ClusterAPINodeClass, NodeClaim, NodePool, names::annotation},
    watched::Watched,
};

/// Who waits for a node.
#[derive(Default)]
struct Waiting {
    /// By uid.
    pods: BTreeSet<String>,
    /// Those that came since they were last asked for.
    came: BTreeSet<String>,
    /// Something happened that the others may have waited for.
    is_due: bool,
    due_at: Option<Instant>,
}

/// Whether kube-scheduler has given up on a pod.
fn waits(pod: &Pod) -> bool {
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut conditions = conditions.filter(|condition| condition.type_ == "PodScheduled");
    !is_bound
        && pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
}

/// Keeps that up as long as it is held.
pub struct Queue {
    waiting: Arc<Mutex<Waiting>>,
    /// Ends the tasks that listen.
    _stop: DropGuard,
}

impl Queue {
    /// `changed` is told when somebody has to look.
    pub fn start(watched: &Watched, changed: &Arc<Notify>) -> Self {
        let stop = CancellationToken::new();
        let waiting: Arc<Mutex<Waiting>> = Arc::default();
        let queue = Queue {
            waiting: Arc::clone(&waiting),
            _stop: stop.clone().drop_guard(),
        };
        let listen = Listener {
            waiting,
            changed: Arc::clone(changed),
            stop,
        };
        listen.to(&watched.pods, |delta, waiting| {
            let uid = delta
                .objects()
                .next()
                .and_then(|pod| pod.uid())
                .unwrap_or_default();
            match &delta.new {
                Some(pod) if waits(pod) => {
                    waiting.came.insert(uid.clone());
                    waiting.pods.insert(uid)
                }
                _ => {
                    waiting.came.remove(&uid);
                    waiting.pods.remove(&uid);
                    false
                }
            }
        });
        listen.to(&watched.claims, |delta, waiting| {
            let leaves = |claim: &Arc<NodeClaim>| claim.metadata.deletion_timestamp.is_some();
            let was_leaving = delta.old.as_ref().is_some_and(leaves);
            let is_leaving = delta.new.as_ref().is_none_or(leaves);
            waiting.is_due |= is_leaving && (!was_leaving || delta.new.is_none());
            waiting.is_due
        });
        listen.to(&watched.pools, |delta, waiting| {
            let generation = |pool: &Option<Arc<NodePool>>| {
                pool.as_ref().map(|pool| {
                    let is_frozen = pool.annotations().contains_key(annotation::FROZEN);
                    (pool.metadata.generation, is_frozen)
                })
            };
            waiting.is_due |= generation(&delta.old) != generation(&delta.new);
            waiting.is_due
        });
        listen.to(&watched.classes, |delta, waiting| {
            let generation = |class: &Option<Arc<ClusterAPINodeClass>>| {
                class.as_ref().map(|class| class.metadata.generation)
            };
            waiting.is_due |= generation(&delta.old) != generation(&delta.new);
            waiting.is_due
        });
        queue
    }

    /// Those who came to wait; everybody, where something happened that they may have waited for.
    pub fn take_waiting(&self) -> Vec<String> {
        let mut waiting = self.waiting.lock();
        let is_time = waiting.due_at.is_some_and(|at| at <= Instant::now());
        let is_due = std::mem::take(&mut waiting.is_due) || is_time;
        let mut came: Vec<String> = std::mem::take(&mut waiting.came).into_iter().collect();
        if is_due {
            waiting.due_at = None;
            came = waiting.pods.iter().cloned().collect();
            // Pods that will have to move wait for nobody to say so.
            came.push("moving".to_owned());
        }
        came
    }

    /// How long until everybody is planned for again, if somebody waits.
    pub fn due_in(&self) -> Option<Duration> {
        let waiting = self.waiting.lock();
        let at = waiting.due_at?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Whoever still waits is planned for again after this.
    pub fn wake_after(&self, after: Duration) {
        let mut waiting = self.waiting.lock();
        waiting.due_at = (!waiting.pods.is_empty()).then(|| Instant::now() + after);
    }
}

struct Listener {
    waiting: Arc<Mutex<Waiting>>,
    changed: Arc<Notify>,
    stop: CancellationToken,
}

impl Listener {
    /// Notes what a change means for who waits; it says whether somebody has to look.
    fn to<K>(&self, informer: &Informer<K>, note: fn(&Delta<K>, &mut Waiting) -> bool)
    where
        K: Object + Resource<DynamicType = ()>,
    {
        let mut subscription = informer.subscribe();
        let (waiting, changed) = (Arc::clone(&self.waiting), Arc::clone(&self.changed));
        let stop = self.stop.clone();
        tokio::spawn(async move {
            loop {
                let delta = tokio::select! {
                    () = stop.cancelled() => return,
                    delta = subscription.next() => delta,
                };
                let Some(delta) = delta else { return };
                if note(&delta, &mut waiting.lock()) {
                    changed.notify_one();
                }
            }
        });
    }
}
