//! The shell of the control plane: finalizer, pause, observe, plan, act, status.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{ResourceExt, api::ApiResource};
use slipway_azure::{
    reconcile::{Error, OperationStatus, ResourceKind, StepResult, StepStatus},
    setup::Clouds,
    takeover::Takeover,
};
use slipway_capi::{
    finalizer, marks, owner, paused,
    view::{Cluster, MachinePool},
};
use slipway_runtime::{
    Next, ObjectKey, Outcome,
    controller::{Context, Controller, Reconciler, Registration},
};

use super::{
    FINALIZER,
    act::{Executor, group},
    observe,
};
use crate::{
    access::Access,
    api::{AzureClusterIdentity, AzureManagedCluster, AzureManagedControlPlane, AzureManagedMachinePool},
    caches::Caches,
    frame::{self, ASK_AGAIN, Framed, OWNER_CHECK, SOON, TAKING_OVER, WithoutAzure},
    plan::{Action, Waiting, control_plane as planning},
    status::{self, worse},
};

/// How long a control plane waits for a system pool before it is given a default one.
pub const POOL_WAIT_FLAG: &str = "aks-default-pool-wait";
const POOL_WAIT: Duration = Duration::from_mins(5);

#[derive(Clone, Debug, Default)]
pub struct ControlPlaneReconciler {
    access: Access,
    caches: Caches,
    takeover: Takeover,
}

/// What the actions of one reconcile came to.
#[derive(Default)]
struct ReconcileResult {
    steps: BTreeMap<ResourceKind, StepStatus>,
    kubeconfig_written: bool,
    next: Option<Next>,
    error: Option<Error>,
    /// Something was not asked, because of a request limit.
    throttled: bool,
    removes_finalizer: bool,
}

impl ReconcileResult {
    fn tell(&mut self, kind: ResourceKind, step: StepStatus) {
        let step = match self.steps.remove(&kind) {
            Some(before) => worse(before, step),
            None => step,
        };
        self.steps.insert(kind, step);
    }

    fn again(&mut self, next: Next) {
        self.next = Some(self.next.map_or(next, |before| before.earlier(next)));
    }

    /// Whether the action is over and well.
    fn take(&mut self, kind: ResourceKind, result: StepResult) -> bool {
        let done = result.is_done();
        self.tell(kind, result.status);
        self.throttled |= matches!(result.outcome, Outcome::Throttled(_));
        self.again(result.outcome.next());
        if let Some(error) = result.error {
            self.fail(error);
        }
        done
    }

    fn fail(&mut self, error: Error) {
        // What passes by itself must not hide what does not.
        let hides = self.error.as_ref().is_none_or(Error::is_passing);
        if hides {
            self.error = Some(error);
        }
    }
}

pub fn registration(access: Access) -> Registration {
    let caches = Caches::default();
    let reconciler = ControlPlaneReconciler {
        access,
        caches: caches.clone(),
        takeover: Takeover::default(),
    };
    let [members, pools, infrastructure, identities] = [(); 4].map(|()| caches.clone());
    let inner = Controller::new("azuremanagedcontrolplane", reconciler)
        .watches::<Cluster>(|cluster, _| Caches::plane_key(cluster).into_iter().collect())
        .watches::<AzureManagedMachinePool>(move |pool, context| {
            let name = owner::cluster_name(&pool.metadata);
            members.plane_of_member(&context.informers, pool.metadata.namespace.as_deref(), name)
        })
        .watches::<MachinePool>(move |pool, context| {
            let name = Some(pool.spec.cluster_name.as_str());
            pools.plane_of_member(&context.informers, pool.metadata.namespace.as_deref(), name)
        })
        .watches::<AzureManagedCluster>(move |object, context| {
            let name = owner::cluster_name(&object.metadata);
            infrastructure.plane_of_member(&context.informers, object.metadata.namespace.as_deref(), name)
        })
        .watches::<AzureClusterIdentity>(move |identity, context| {
            identities.planes_of_identity(&context.informers, &ObjectKey::of(identity))
        })
        .watches_metadata(ApiResource::erase::<Secret>(&()), |secret, _| {
            owner::controller_of(secret)
                .filter(|owner| owner.kind == AzureManagedControlPlane::KIND)
                .map(|owner| ObjectKey::new(secret.namespace.as_deref(), &owner.name))
                .into_iter()
                .collect()
        })
        .into_registration();
    prepared(inner, caches)
}

/// Checks the settings before a controller runs, and tells the caches where to look. Our kinds have many fields and most
/// of them are empty: a fleet's are kept as text, whichever controller asks first.
pub fn prepared(inner: Registration, caches: Caches) -> Registration {
    Registration {
        name: inner.name,
        run: Arc::new(move |context: Context| {
            caches.start(&context.settings);
            context.informers.keep_as_text::<AzureManagedControlPlane>();
            context.informers.keep_as_text::<AzureManagedMachinePool>();
            context.informers.keep_as_text::<AzureManagedCluster>();
            let run = Arc::clone(&inner.run);
            async move {
                Clouds::check(&context.settings)?;
                run(context).await
            }
            .boxed()
        }),
    }
}

impl Reconciler for ControlPlaneReconciler {
    type Object = AzureManagedControlPlane;
    type Error = Error;

    async fn reconcile(
        &self,
        object: Arc<AzureManagedControlPlane>,
        context: &Context,
    ) -> Result<Next, Error> {
        let deleting = object.metadata.deletion_timestamp.is_some();
        // Core makes the Cluster the owner; until then nobody has asked for anything.
        let Some(name) = owner::owner_cluster_name(&object.metadata) else {
            return Ok(Next::OnChange);
        };
        let key = ObjectKey::new(object.metadata.namespace.as_deref(), name);
        let cluster = self.caches.cluster(&context.informers, &key);
        if cluster.is_none() && !deleting {
            return Ok(Next::OnChange);
        }
        let held = paused::paused(cluster.as_deref(), &object.metadata);
        if held.is_paused() {
            return frame::tell_paused(object.as_ref(), held, context).await;
        }
        if deleting && !finalizer::has(&object.metadata, FINALIZER) {
            return Ok(Next::OnChange);
        }
        if !deleting {
            if frame::hold(object.as_ref(), context).await? {
                return Ok(Next::After(SOON));
            }
            Access::hold_identity(&object, context).await?;
        }
        if frame::take_over(&self.takeover, object.as_ref(), name, context).await? {
            return Ok(Next::After(TAKING_OVER));
        }
        Box::pin(self.work(&object, name, cluster.as_deref(), context)).await
    }
}

impl ControlPlaneReconciler {
    async fn work(
        &self,
        object: &AzureManagedControlPlane,
        cluster_name: &str,
        cluster: Option<&Cluster>,
        context: &Context,
    ) -> Result<Next, Error> {
        let pool_timeout = context
            .settings
            .flags
            .duration(POOL_WAIT_FLAG)
            .unwrap_or(POOL_WAIT);
        let seen = match observe::known(object, cluster_name, cluster, pool_timeout, &self.caches, context) {
            Ok(known) => observe::observe(known, &self.access, &self.caches, context).await,
            Err(error) => Err(error),
        };
        let reconcile = match seen {
            Ok(reconcile) => reconcile,
            Err(error) if object.metadata.deletion_timestamp.is_some() => {
                return match frame::without_azure(object, &error, context) {
                    WithoutAzure::Release => release(object, context).await,
                    WithoutAzure::Stay(message) => {
                        let result = StepResult::failed(error).saying(message);
                        tell_unseen(object, cluster_name, result, context).await
                    }
                };
            }
            Err(error) => {
                return tell_unseen(object, cluster_name, StepResult::failed(error), context).await;
            }
        };
        let now = context.clock.now();
        let plan = planning::plan(&reconcile.observed, now);
        tracing::debug!(
            control_plane = %object.name_any(),
            plan = plan.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            "Planned"
        );
        let mut executor = Executor { reconcile, context };
        executor.intend(&plan).await?;
        let mut total = ReconcileResult::default();
        let came_up = executor.reconcile.observed.has_come_up();
        perform(&mut executor, &plan, &mut total, now).await;
        executor.store_records().await?;
        if total.removes_finalizer {
            return release(&executor.reconcile.observed.plane, context).await;
        }
        executor.reconcile.observed.states = executor.reconcile.observations.states.clone();
        if !came_up && executor.reconcile.observed.has_come_up() {
            total.again(Next::After(SOON));
        }
        finish(&executor.reconcile.observed, cluster, total, context).await
    }
}

async fn perform(executor: &mut Executor<'_>, plan: &[Action], total: &mut ReconcileResult, now: Timestamp) {
    // What is not over holds up everything of a later group.
    let mut held_by = None;
    for action in plan {
        let kind = match action {
            Action::Ensure(desired) => Some(desired.kind),
            Action::Delete { kind, .. } | Action::AcceptVanished { kind, .. } => Some(*kind),
            Action::Wait(Waiting::ForAzure { id } | Waiting::OwnedByAnother { id, .. }) => {
                ResourceKind::of(id)
            }
            _ => None,
        };
        if let (Some(held), Some(kind)) = (held_by, kind)
            && held != group(kind)
        {
            return;
        }
        let done = match action {
            Action::Ensure(desired) => {
                let result = executor.ensure(desired).await;
                total.take(desired.kind, result)
            }
            Action::Delete { kind, id } => {
                let result = executor.delete(*kind, id).await;
                let removed = executor
                    .reconcile
                    .observed
                    .plane
                    .metadata
                    .deletion_timestamp
                    .is_none();
                let status = match &result.status {
                    // Deleted because the spec no longer names it: the rest of the kind is what counts.
                    StepStatus::Deleted if removed => StepStatus::Done,
                    other => other.clone(),
                };
                total.take(*kind, StepResult { status, ..result })
            }
            Action::AcceptVanished { kind, id } => {
                let result = executor.accept_vanished(*kind, id);
                total.take(*kind, result)
            }
            Action::SetEndpoint { host, port } => {
                if let Err(error) = executor.set_endpoint(host, *port).await {
                    total.fail(error);
                }
                true
            }
            Action::WriteKubeconfigs => {
                match executor.write_kubeconfigs(now).await {
                    Ok(written) => {
                        total.kubeconfig_written = written.administrator;
                        if let Some(renew) = written.renew {
                            let after = Duration::try_from(renew.duration_since(now)).unwrap_or_default();
                            total.again(Next::After(after.max(SOON)));
                        }
                    }
                    Err(error) => {
                        total.tell(ResourceKind::ManagedCluster, error.status());
                        total.fail(error);
                    }
                }
                true
            }
            Action::Wait(waiting) => {
                wait(executor, waiting, total, now);
                false
            }
            // It follows from everything being gone.
            Action::RemoveFinalizer => true,
        };
        if !done && held_by.is_none() {
            held_by = kind.map(group);
            if held_by.is_none() {
                return;
            }
        }
    }
    let deleting = executor
        .reconcile
        .observed
        .plane
        .metadata
        .deletion_timestamp
        .is_some();
    total.removes_finalizer |= deleting && held_by.is_none() && total.error.is_none();
}

fn wait(executor: &mut Executor<'_>, waiting: &Waiting, total: &mut ReconcileResult, now: Timestamp) {
    match waiting {
        Waiting::ForAzure { id } => {
            let kind = ResourceKind::of(id).unwrap_or(ResourceKind::ManagedCluster);
            let result = match executor.reconcile.observations.take_operation(id) {
                Some(OperationStatus::Failed(error)) => StepResult::failed(error),
                Some(OperationStatus::Busy { progress, outcome }) => StepResult::waiting(
                    StepStatus::Waiting {
                        reason: "WaitingForAzure".into(),
                        message: progress.unwrap_or_default(),
                    },
                    outcome,
                ),
                None => StepResult::waiting(status::waiting(waiting), Outcome::InProgress(ASK_AGAIN)),
            };
            total.take(kind, result);
        }
        Waiting::ForSystemPool { until } => {
            total.tell(ResourceKind::ManagedCluster, status::waiting(waiting));
            let after = Duration::try_from(until.duration_since(now)).unwrap_or_default();
            total.again(Next::After(after.max(SOON)));
        }
        Waiting::OwnedByAnother { id, .. } => {
            let kind = ResourceKind::of(id).unwrap_or(ResourceKind::ManagedCluster);
            let result = StepResult::waiting(status::waiting(waiting), Outcome::InProgress(OWNER_CHECK));
            total.take(kind, result);
        }
        Waiting::Vanished { id } => {
            executor.report_vanished(ResourceKind::ManagedCluster, id);
            let result = StepResult::waiting(status::waiting(waiting), Outcome::InProgress(OWNER_CHECK));
            total.take(ResourceKind::ManagedCluster, result);
        }
        Waiting::ForTheUser(error) => {
            let error = Error::from(error.clone());
            total.take(ResourceKind::ManagedCluster, StepResult::failed(error));
        }
        other => total.tell(ResourceKind::ManagedCluster, status::waiting(other)),
    }
}

/// Azure could not even be asked: the identity, its secret or the settings are not right.
async fn tell_unseen(
    object: &AzureManagedControlPlane,
    cluster_name: &str,
    result: StepResult,
    context: &Context,
) -> Result<Next, Error> {
    let mut total = ReconcileResult::default();
    total.take(ResourceKind::ResourceGroup, result);
    let observed = planning::Observed {
        plane: object.clone(),
        cluster_name: cluster_name.to_owned(),
        ..planning::Observed::default()
    };
    finish(&observed, None, total, context).await
}

/// Nothing is left in Azure: identity and object may go.
async fn release(object: &AzureManagedControlPlane, context: &Context) -> Result<Next, Error> {
    if !marks::is_deleted_for_move(&object.metadata) {
        Access::release_identity(object, context).await?;
    }
    frame::release(object, context).await
}

/// Writes the status, tells what went wrong, and says when to look again.
async fn finish(
    observed: &planning::Observed,
    cluster: Option<&Cluster>,
    total: ReconcileResult,
    context: &Context,
) -> Result<Next, Error> {
    let object = &observed.plane;
    let was_ready = object
        .status
        .as_ref()
        .is_some_and(|status| frame::was_ready(status.ready, status.observed_generation, object));
    let passes = total.throttled || total.error.as_ref().is_some_and(Error::is_passing);
    // One question that Azure did not answer, or was not asked, does not make a working cluster unready. A change that
    // does not get through is told.
    if !(passes && was_ready) {
        let progress = status::control_plane::Progress {
            steps: total.steps,
            kubeconfig_written: total.kubeconfig_written,
        };
        let desired = status::control_plane::status(observed, &progress, context.clock.now());
        frame::write_status(object, desired, cluster, context).await?;
    }
    frame::conclude(object, total.next.unwrap_or(Next::OnChange), total.error, context)
}
