//! The shell of a pool: finalizer, pause, observe, plan, act, status.

use std::{collections::HashMap, sync::Arc};

use kube::ResourceExt;
use parking_lot::Mutex;
use slipway_azure::{
    reconcile::{Error, OperationStatus, StepResult, StepStatus},
    takeover::Takeover,
    workload::nodes::Nodes,
};
use slipway_capi::{
    finalizer, owner, paused,
    view::{Cluster, MachinePool},
};
use slipway_runtime::{
    Next, ObjectKey, Outcome,
    controller::{Context, Controller, Reconciler, Registration},
};
use tokio::time::Instant;

use super::{FINALIZER, act::Executor, observe};
use crate::{
    access::Access,
    api::{AzureClusterIdentity, AzureManagedControlPlane, AzureManagedMachinePool, GROUP},
    caches::Caches,
    control_plane::controller::prepared,
    frame::{self, ASK_AGAIN, Framed, SOON, TAKING_OVER},
    plan::{Action, Waiting, pool as planning},
    status,
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

/// What the actions of one reconcile came to.
struct ReconcileResult {
    step: StepStatus,
    next: Next,
    error: Option<Error>,
    /// Something was not asked, because of a request limit.
    throttled: bool,
    removes_finalizer: bool,
}

impl ReconcileResult {
    fn take(&mut self, result: StepResult) -> bool {
        let done = result.is_done();
        self.step = result.status;
        self.throttled |= matches!(result.outcome, Outcome::Throttled(_));
        self.next = self.next.earlier(result.outcome.next());
        self.error = self.error.take().or(result.error);
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
        let mut total = ReconcileResult {
            step: StepStatus::Done,
            next: Next::OnChange,
            error: None,
            throttled: false,
            removes_finalizer: false,
        };
        let reconcile =
            observe::observe(object, cluster, cluster_name, &self.access, &self.caches, context).await;
        let reconcile = match reconcile {
            Ok(reconcile) => reconcile,
            Err(error) => {
                total.take(StepResult::failed(error));
                let observed = planning::Observed {
                    pool: object.clone(),
                    ..planning::Observed::default()
                };
                return finish(&observed, cluster, total, context).await;
            }
        };
        let plan = planning::plan(&reconcile.observed, context.clock.now());
        tracing::debug!(
            pool = %object.name_any(),
            plan = plan.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            "Planned"
        );
        let mut executor = Executor {
            reconcile,
            context,
            nodes: &self.nodes,
            machines: &self.machines,
        };
        if let Some(Action::Ensure(desired)) = plan.first() {
            executor.intend(desired).await?;
        }
        perform(&mut executor, &plan, &mut total).await;
        executor.store_records().await?;
        if total.removes_finalizer {
            let key = ObjectKey::of(object);
            self.machines.lock().remove(&key);
            self.nodes.forget(&key.sibling(cluster_name), &key);
            return frame::release(&executor.reconcile.observed.pool, context).await;
        }
        finish(&executor.reconcile.observed, cluster, total, context).await
    }
}

async fn perform(executor: &mut Executor<'_>, plan: &[Action], total: &mut ReconcileResult) {
    for action in plan {
        match action {
            Action::Ensure(desired) => {
                let result = executor.ensure(desired).await;
                // AKS's count is followed, and its nodes are told, while it works on something else.
                total.take(result);
            }
            Action::Delete { id, .. } => {
                let result = executor.delete(id).await;
                total.removes_finalizer = total.take(result);
            }
            Action::FollowReplicas { count } => total.note(executor.follow_replicas(*count).await),
            Action::StopFollowingReplicas => total.note(executor.stop_following().await),
            Action::ListNodes => total.note(executor.list_nodes().await),
            Action::RemoveFinalizer => total.removes_finalizer = true,
            Action::Wait(waiting) => wait(executor, waiting, total),
            // A control plane's own.
            Action::SetEndpoint { .. } | Action::WriteKubeconfigs => {}
        }
    }
}

fn wait(executor: &mut Executor<'_>, waiting: &Waiting, total: &mut ReconcileResult) {
    let result = match waiting {
        Waiting::ForAzure { id } => match executor.reconcile.observations.take_operation(id) {
            Some(OperationStatus::Failed(error)) => StepResult::failed(error),
            Some(OperationStatus::Busy { progress, outcome }) => StepResult::waiting(
                StepStatus::Waiting {
                    reason: "WaitingForAzure",
                    message: progress.unwrap_or_default(),
                },
                outcome,
            ),
            None => StepResult::waiting(status::waiting(waiting), Outcome::InProgress(ASK_AGAIN)),
        },
        Waiting::ForTheUser(error) => StepResult::failed(error.clone().into()),
        // AKS tells of another system pool only when asked.
        Waiting::ForAnotherSystemPool => {
            StepResult::waiting(status::waiting(waiting), Outcome::InProgress(ASK_AGAIN))
        }
        other => StepResult::done(status::waiting(other)),
    };
    total.take(result);
}

async fn finish(
    observed: &planning::Observed,
    cluster: Option<&Cluster>,
    total: ReconcileResult,
    context: &Context,
) -> Result<Next, Error> {
    let object = &observed.pool;
    let was_ready = object
        .status
        .as_ref()
        .is_some_and(|status| frame::was_ready(status.ready, status.observed_generation, object));
    let passes = total.error.as_ref().is_some_and(Error::is_passing);
    let unanswered = total.throttled || (passes && matches!(total.step, StepStatus::Failed { .. }));
    // One question that Azure did not answer, or was not asked, does not make a working pool unready. A change that does
    // not get through is told.
    if !(unanswered && was_ready) {
        let desired = status::pool::status(observed, &total.step, context.clock.now());
        frame::write_status(object, desired, cluster, context).await?;
    }
    frame::conclude(object, total.next, total.error, context)
}
