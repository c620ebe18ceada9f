//! Who waits for a node: pods that kube-scheduler gave up on, and what happened that they may have waited for.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use slipway_capi::condition;
use slipway_runtime::{
    Informer,
    informer::{Delta, Object},
};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    api::{
        CapacityBuffer, ClusterAPINodeClass, NodeClaim, NodeOverlay, NodePool, ProvisioningRequest,
        names::{annotation, condition::INITIALIZED},
    },
    provisioning_request::book::has_ended,
    watched::Watched,
};

/// Who waits for a node.
#[derive(Default)]
struct Waiting {
    /// By uid.
    pods: BTreeSet<String>,
    /// Those that came since they were last asked for.
    came: BTreeSet<String>,
    /// Buffers, and requests that are not over, by uid: as long as there are any, what takes room or gives it back is planned for too.
    keepers: BTreeSet<String>,
    /// Something happened that the others may have waited for.
    is_due: bool,
    due_at: Option<Instant>,
}

impl Waiting {
    /// Something took room or gave it back, if so: it opens a batch, because more may follow. Says whether somebody has to look.
    fn room_changed(&mut self, has_changed: bool) -> bool {
        let is_kept = has_changed && !self.keepers.is_empty();
        if is_kept {
            self.came.insert("room".to_owned());
        }
        is_kept
    }
}

fn is_initialized(claim: &Arc<NodeClaim>) -> bool {
    let conditions = claim.status.as_ref().map(|status| &status.conditions[..]);
    let found = conditions.and_then(|conditions| condition::find(conditions, INITIALIZED));
    found.is_some_and(|condition| condition.status == "True")
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
                    let node = |pod: &Option<Arc<Pod>>| pod.as_ref()?.spec.as_ref()?.node_name.clone();
                    waiting.room_changed(node(&delta.old) != node(&delta.new))
                }
            }
        });
        listen.to(&watched.claims, |delta, waiting| {
            let leaves = |claim: &Arc<NodeClaim>| claim.metadata.deletion_timestamp.is_some();
            let was_leaving = delta.old.as_ref().is_some_and(leaves);
            let is_leaving = delta.new.as_ref().is_none_or(leaves);
            waiting.is_due |= is_leaving && (!was_leaving || delta.new.is_none());
            let is_ready = |claim: &Option<Arc<NodeClaim>>| claim.as_ref().is_some_and(is_initialized);
            waiting.room_changed(is_ready(&delta.old) != is_ready(&delta.new)) || waiting.is_due
        });
        listen.to(&watched.nodes, |delta, waiting| {
            let seen = |node: &Option<Arc<Node>>| {
                let node = node.as_ref()?;
                let allocatable = node.status.as_ref().and_then(|status| status.allocatable.clone());
                Some((node.metadata.labels.clone(), node.spec.clone(), allocatable))
            };
            let has_changed = !waiting.keepers.is_empty() && seen(&delta.old) != seen(&delta.new);
            waiting.room_changed(has_changed)
        });
        if let Some(buffers) = &watched.buffers {
            listen.to(&buffers.buffers, |delta, waiting| {
                let uid = delta
                    .objects()
                    .next()
                    .and_then(|buffer| buffer.uid())
                    .unwrap_or_default();
                let generation = |buffer: &Option<Arc<CapacityBuffer>>| {
                    buffer.as_ref().map(|buffer| buffer.metadata.generation)
                };
                waiting.is_due |= generation(&delta.old) != generation(&delta.new);
                if delta.new.is_some() {
                    waiting.keepers.insert(uid);
                } else {
                    waiting.keepers.remove(&uid);
                }
                waiting.is_due
            });
            listen.to_generations(&buffers.templates);
            listen.to_generations(&buffers.deployments);
            listen.to_generations(&buffers.stateful_sets);
            listen.to_generations(&buffers.replica_sets);
        }
        if let Some(requests) = &watched.requests {
            listen.to(&requests.requests, |delta, waiting| {
                let uid = delta
                    .objects()
                    .next()
                    .and_then(|request| request.uid())
                    .unwrap_or_default();
                let conditions = |request: &Option<Arc<ProvisioningRequest>>| {
                    let status = request.as_ref().map(|request| request.status.clone());
                    status.map(|status| status.unwrap_or_default().conditions)
                };
                waiting.is_due |= conditions(&delta.old) != conditions(&delta.new);
                let is_over = delta.new.as_ref().is_none_or(|request| has_ended(request));
                if is_over {
                    waiting.keepers.remove(&uid);
                } else {
                    waiting.keepers.insert(uid);
                }
                waiting.is_due
            });
            listen.to_generations(&requests.templates);
        }
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
        if let Some(overlays) = &watched.overlays {
            listen.to(overlays, |delta, waiting| {
                let generation = |overlay: &Option<Arc<NodeOverlay>>| {
                    overlay.as_ref().map(|overlay| overlay.metadata.generation)
                };
                waiting.is_due |= generation(&delta.old) != generation(&delta.new);
                waiting.is_due
            });
        }
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

    /// Whoever still waits is planned for again after this, and room that is missing.
    pub fn wake_after(&self, after: Duration, is_short: bool) {
        let mut waiting = self.waiting.lock();
        let somebody_waits = is_short || !waiting.pods.is_empty();
        waiting.due_at = somebody_waits.then(|| Instant::now() + after);
    }
}

/// What pods of a buffer are like is what they were, as long as this is the same.
fn generation<K: Resource>(object: &Option<Arc<K>>) -> Option<Option<i64>> {
    object.as_ref().map(|object| object.meta().generation)
}

struct Listener {
    waiting: Arc<Mutex<Waiting>>,
    changed: Arc<Notify>,
    stop: CancellationToken,
}

impl Listener {
    /// Objects that buffers may refer to.
    fn to_generations<K>(&self, informer: &Informer<K>)
    where
        K: Object + Resource<DynamicType = ()>,
    {
        self.to(informer, |delta, waiting| {
            // Not every apiserver counts the generations of PodTemplates.
            let has_changed = match (&delta.old, &delta.new) {
                (Some(old), Some(new)) if new.meta().generation.is_none() => {
                    old.meta().resource_version != new.meta().resource_version
                }
                _ => generation(&delta.old) != generation(&delta.new),
            };
            waiting.room_changed(has_changed)
        });
    }

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
