//! The shell of a pool: finalizer, pause, observe, plan, act, status.

use std::{collections::HashMap, sync::Arc};

use kube::ResourceExt;
use parking_lot::Mutex;
use slipway_capi::{
    finalizer, owner, paused,
    view::{Cluster, MachinePool},
};
use slipway_runtime::{
    Next, ObjectKey, Outcome,
    controller::{Context, Controller, Reconciler, Registration},
};
use tokio::time::Instant;

use super::{FINALIZER, act::Hands, observe};
use crate::{
    access::Access,
    api::{AzureClusterIdentity, AzureManagedControlPlane, AzureManagedMachinePool, GROUP},
    caches::Caches,
    control_plane::controller::prepared,
    error::Error,
    frame::{self, ASK_AGAIN, Framed, SOON, TAKING_OVER},
    nodes::Nodes,
    plan::{Action, Waiting, pool as planning},
    seen::{Motion, Taken},
    status::{self, Step},
    takeover::Takeover,
};

/// A listing of a pool's machines.
#[derive(Clone, Debug)]
pub struct Listing {
    /// What the pool was like.
    pub state: String,
    /// The hash of the provider ids that were written.
    pub written: u64,
    pub at: Instant,
}

/// The last listing of each pool's machines.
pub type Machines = Mutex<HashMap<ObjectKey, Listing>>;

#[derive(Debug, Default)]
pub struct PoolReconciler {
    access: Access,
    caches: Caches,
    nodes: Nodes,
    machines: Machines,
    takeover: Takeover,
}

pub fn registration(access: Access, nodes: Nodes) -> Registration {
    let caches = Caches::default();
    let reconciler = PoolReconciler {
        access,
        caches: caches.clone(),
        nodes,
        machines: Machines::default(),
        takeover: Takeover::default(),
    };
    let [clusters, planes, identities] = [(); 3].map(|()| caches.clone());
    let keys = |pools: Vec<Arc<AzureManagedMachinePool>>| {
        pools
            .iter()
            .map(|pool| ObjectKey::of(pool.as_ref()))
            .collect::<Vec<_>>()
    };
    let inner = Controller::new("azuremanagedmachinepool", reconciler)
        .watches::<MachinePool>(|pool, _| {
            let reference = &pool.spec.template.spec.infrastructure_ref;
            (reference.kind == AzureManagedMachinePool::KIND && reference.api_group == GROUP)
                .then(|| ObjectKey::new(pool.metadata.namespace.as_deref(), &reference.name))
                .into_iter()
                .collect()
        })
        .watches::<Cluster>(move |cluster, context| {
            keys(clusters.pools(&context.informers, &ObjectKey::of(cluster)))
        })
        .watches::<AzureManagedControlPlane>(move |plane, context| {
            match owner::cluster_name(&plane.metadata) {
                Some(name) => {
                    let cluster = ObjectKey::new(plane.metadata.namespace.as_deref(), name);
                    keys(planes.pools(&context.informers, &cluster))
                }
                None => Vec::new(),
            }
        })
        // Kept in the caches for whoever signs in; a change of it is waited out by the queue.
        .watches::<AzureClusterIdentity>(move |_, _| {
            let _ = &identities;
            Vec::new()
        })
        .into_registration();
    prepared(inner, caches)
}

impl Reconciler for PoolReconciler {
    type Object = AzureManagedMachinePool;
    type Error = Error;

    async fn reconcile(
        &self,
        object: Arc<AzureManagedMachinePool>,
        context: &Context,
    ) -> Result<Next, Error> {
        let deleting = object.metadata.deletion_timestamp.is_some();
        // Core labels the pool when its MachinePool becomes its owner.
        let Some(name) = owner::cluster_name(&object.metadata) else {
            return Ok(Next::OnChange);
        };
        let key = ObjectKey::new(object.metadata.namespace.as_deref(), name);
        let cluster = self.caches.cluster(&context.informers, &key);
        let others = cluster
            .as_ref()
            .is_some_and(|cluster| Caches::plane_key(cluster).is_none());
        if others || (cluster.is_none() && !deleting) {
            return Ok(Next::OnChange);
        }
        let held = paused::paused(cluster.as_deref(), &object.metadata);
        if held.is_paused() {
            return frame::tell_paused(object.as_ref(), held, context).await;
        }
        if deleting && !finalizer::has(&object.metadata, FINALIZER) {
            return Ok(Next::OnChange);
        }
        if !deleting && frame::hold(object.as_ref(), context).await? {
            return Ok(Next::After(SOON));
        }
        if frame::take_over(&self.takeover, object.as_ref(), name, context).await? {
            return Ok(Next::After(TAKING_OVER));
        }
        Box::pin(self.work(&object, name, cluster.as_deref(), context)).await
    }
}

/// What the actions of one round came to.
struct Round {
    step: Step,
    next: Next,
    error: Option<Error>,
    /// Something was not asked, because of a request limit.
    throttled: bool,
    removes_finalizer: bool,
}

impl Round {
    fn take(&mut self, taken: Taken) -> bool {
        let done = taken.is_done();
        self.step = taken.step;
        self.throttled |= matches!(taken.outcome, Outcome::Throttled(_));
        self.next = self.next.earlier(taken.outcome.next());
        self.error = self.error.take().or(taken.error);
        done
    }

    /// Something besides the pool itself went wrong: the pool is what it is.
    fn note<T>(&mut self, result: Result<T, Error>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }
}

impl PoolReconciler {
    async fn work(
        &self,
        object: &AzureManagedMachinePool,
        cluster_name: &str,
        cluster: Option<&Cluster>,
        context: &Context,
    ) -> Result<Next, Error> {
        let mut round = Round {
            step: Step::Done,
            next: Next::OnChange,
            error: None,
            throttled: false,
            removes_finalizer: false,
        };
        let scene =
            observe::observe(object, cluster, cluster_name, &self.access, &self.caches, context).await;
        let scene = match scene {
            Ok(scene) => scene,
            Err(error) => {
                round.take(Taken::failed(error));
                let observed = planning::Observed {
                    pool: object.clone(),
                    ..planning::Observed::default()
                };
                return finish(&observed, cluster, round, context).await;
            }
        };
        let plan = planning::plan(&scene.observed, context.clock.now());
        tracing::debug!(
            pool = %object.name_any(),
            plan = plan.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            "Planned"
        );
        let mut hands = Hands {
            scene,
            context,
            nodes: &self.nodes,
            machines: &self.machines,
        };
        if let Some(Action::Ensure(wanted)) = plan.first() {
            hands.intend(wanted).await?;
        }
        perform(&mut hands, &plan, &mut round).await;
        hands.store_records().await?;
        if round.removes_finalizer {
            let key = ObjectKey::of(object);
            self.machines.lock().remove(&key);
            self.nodes.forget(&key.sibling(cluster_name), &key);
            return frame::release(&hands.scene.observed.pool, context).await;
        }
        finish(&hands.scene.observed, cluster, round, context).await
    }
}

async fn perform(hands: &mut Hands<'_>, plan: &[Action], round: &mut Round) {
    for action in plan {
        match action {
            Action::Ensure(wanted) => {
                let taken = hands.ensure(wanted).await;
                // AKS's count is followed, and its nodes are told, while it works on something else.
                round.take(taken);
            }
            Action::Delete { id, .. } => {
                let taken = hands.delete(id).await;
                round.removes_finalizer = round.take(taken);
            }
            Action::FollowReplicas { count } => round.note(hands.follow_replicas(*count).await),
            Action::StopFollowingReplicas => round.note(hands.stop_following().await),
            Action::ListNodes => round.note(hands.list_nodes().await),
            Action::RemoveFinalizer => round.removes_finalizer = true,
            Action::Wait(waiting) => wait(hands, waiting, round),
            // A control plane's own.
            Action::SetEndpoint { .. } | Action::WriteKubeconfigs => {}
        }
    }
}

fn wait(hands: &mut Hands<'_>, waiting: &Waiting, round: &mut Round) {
    let taken = match waiting {
        Waiting::ForAzure { id } => match hands.scene.seen.take_motion(id) {
            Some(Motion::Failed(error)) => Taken::failed(error),
            Some(Motion::Busy { progress, outcome }) => Taken::waiting(
                Step::Waiting {
                    reason: "WaitingForAzure",
                    message: progress.unwrap_or_default(),
                },
                outcome,
            ),
            None => Taken::waiting(status::waiting(waiting), Outcome::InProgress(ASK_AGAIN)),
        },
        Waiting::ForTheUser(error) => Taken::failed(error.clone().into()),
        // AKS tells of another system pool only when asked.
        Waiting::ForAnotherSystemPool => {
            Taken::waiting(status::waiting(waiting), Outcome::InProgress(ASK_AGAIN))
        }
        other => Taken::done(status::waiting(other)),
    };
    round.take(taken);
}

async fn finish(
    observed: &planning::Observed,
    cluster: Option<&Cluster>,
    round: Round,
    context: &Context,
) -> Result<Next, Error> {
    let object = &observed.pool;
    let was_ready = object
        .status
        .as_ref()
        .is_some_and(|status| frame::was_ready(status.ready, status.observed_generation, object));
    let passes = round.error.as_ref().is_some_and(Error::is_passing);
    let unanswered = round.throttled || (passes && matches!(round.step, Step::Failed { .. }));
    // One question that Azure did not answer, or was not asked, does not make a working pool unready. A change that does
    // not get through is told.
    if !(unanswered && was_ready) {
        let wanted = status::pool::status(observed, &round.step, context.clock.now());
        frame::write_status(object, wanted, cluster, context).await?;
    }
    frame::conclude(object, round.next, round.error, context)
}
