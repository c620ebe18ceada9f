//! The shell of the control plane: finalizer, pause, observe, plan, act, status.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{ResourceExt, api::ApiResource};
use slipway_azure::setup::Clouds;
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
    act::{Hands, group},
    observe,
};
use crate::{
    access::Access,
    api::{AzureClusterIdentity, AzureManagedCluster, AzureManagedControlPlane, AzureManagedMachinePool},
    caches::Caches,
    error::Error,
    frame::{self, ASK_AGAIN, Framed, SOON, TAKING_OVER},
    plan::{Action, Part, Waiting, control_plane as planning},
    seen::{Motion, Taken, part_of},
    status::{self, Step, worse},
    takeover::Takeover,
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

/// What the actions of one round came to.
#[derive(Default)]
struct Round {
    steps: BTreeMap<Part, Step>,
    kubeconfig_written: bool,
    next: Option<Next>,
    error: Option<Error>,
    /// Something was not asked, because of a request limit.
    throttled: bool,
    removes_finalizer: bool,
}

impl Round {
    fn tell(&mut self, part: Part, step: Step) {
        let step = match self.steps.remove(&part) {
            Some(before) => worse(before, step),
            None => step,
        };
        self.steps.insert(part, step);
    }

    fn again(&mut self, next: Next) {
        self.next = Some(self.next.map_or(next, |before| before.earlier(next)));
    }

    /// Whether the action is over and well.
    fn take(&mut self, part: Part, taken: Taken) -> bool {
        let done = taken.is_done();
        self.tell(part, taken.step);
        self.throttled |= matches!(taken.outcome, Outcome::Throttled(_));
        self.again(taken.outcome.next());
        if let Some(error) = taken.error {
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
        let patience = context
            .settings
            .flags
            .duration(POOL_WAIT_FLAG)
            .unwrap_or(POOL_WAIT);
        let seen = match observe::known(object, cluster_name, cluster, patience, &self.caches, context) {
            Ok(known) => observe::observe(known, &self.access, context).await,
            Err(error) => Err(error),
        };
        let scene = match seen {
            Ok(scene) => scene,
            Err(error) => return tell_unseen(object, cluster_name, error, context).await,
        };
        let now = context.clock.now();
        let plan = planning::plan(&scene.observed, now);
        tracing::debug!(
            control_plane = %object.name_any(),
            plan = plan.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            "Planned"
        );
        let mut hands = Hands { scene, context };
        hands.intend(&plan).await?;
        let mut round = Round::default();
        let came_up = hands.scene.observed.has_come_up();
        perform(&mut hands, &plan, &mut round, now).await;
        hands.store_records().await?;
        if round.removes_finalizer {
            return release(&hands.scene.observed.plane, context).await;
        }
        hands.scene.observed.sights = hands.scene.seen.sights.clone();
        if !came_up && hands.scene.observed.has_come_up() {
            round.again(Next::After(SOON));
        }
        finish(&hands.scene.observed, cluster, round, context).await
    }
}

async fn perform(hands: &mut Hands<'_>, plan: &[Action], round: &mut Round, now: Timestamp) {
    // What is not over holds up everything of a later group.
    let mut held_by = None;
    for action in plan {
        let part = match action {
            Action::Ensure(wanted) => Some(wanted.part),
            Action::Delete { part, .. } => Some(*part),
            Action::Wait(Waiting::ForAzure { id }) => part_of(id),
            _ => None,
        };
        if let (Some(held), Some(part)) = (held_by, part)
            && held != group(part)
        {
            return;
        }
        let done = match action {
            Action::Ensure(wanted) => {
                let taken = hands.ensure(wanted).await;
                round.take(wanted.part, taken)
            }
            Action::Delete { part, id } => {
                let taken = hands.delete(*part, id).await;
                let removed = hands.scene.observed.plane.metadata.deletion_timestamp.is_none();
                let step = match &taken.step {
                    // Taken away because the spec no longer names it: the rest of the part is what counts.
                    Step::Deleted if removed => Step::Done,
                    other => other.clone(),
                };
                round.take(*part, Taken { step, ..taken })
            }
            Action::SetEndpoint { host, port } => {
                if let Err(error) = hands.set_endpoint(host, *port).await {
                    round.fail(error);
                }
                true
            }
            Action::WriteKubeconfigs => {
                match hands.write_kubeconfigs(now).await {
                    Ok(written) => {
                        round.kubeconfig_written = written.administrator;
                        if let Some(renew) = written.renew {
                            let after = Duration::try_from(renew.duration_since(now)).unwrap_or_default();
                            round.again(Next::After(after.max(SOON)));
                        }
                    }
                    Err(error) => {
                        round.tell(Part::ManagedCluster, error.step());
                        round.fail(error);
                    }
                }
                true
            }
            Action::Wait(waiting) => {
                wait(hands, waiting, round, now);
                false
            }
            // The first follows from everything being gone, the others are a pool's own.
            Action::RemoveFinalizer
            | Action::FollowReplicas { .. }
            | Action::StopFollowingReplicas
            | Action::ListNodes => true,
        };
        if !done && held_by.is_none() {
            held_by = part.map(group);
            if held_by.is_none() {
                return;
            }
        }
    }
    let deleting = hands.scene.observed.plane.metadata.deletion_timestamp.is_some();
    round.removes_finalizer |= deleting && held_by.is_none() && round.error.is_none();
}

fn wait(hands: &mut Hands<'_>, waiting: &Waiting, round: &mut Round, now: Timestamp) {
    match waiting {
        Waiting::ForAzure { id } => {
            let part = part_of(id).unwrap_or(Part::ManagedCluster);
            let taken = match hands.scene.seen.take_motion(id) {
                Some(Motion::Failed(error)) => Taken::failed(error),
                Some(Motion::Busy { progress, outcome }) => Taken::waiting(
                    Step::Waiting {
                        reason: "WaitingForAzure",
                        message: progress.unwrap_or_default(),
                    },
                    outcome,
                ),
                None => Taken::waiting(status::waiting(waiting), Outcome::InProgress(ASK_AGAIN)),
            };
            round.take(part, taken);
        }
        Waiting::ForSystemPool { until } => {
            round.tell(Part::ManagedCluster, status::waiting(waiting));
            let after = Duration::try_from(until.duration_since(now)).unwrap_or_default();
            round.again(Next::After(after.max(SOON)));
        }
        Waiting::ForTheUser(error) => {
            let error = Error::from(error.clone());
            round.take(Part::ManagedCluster, Taken::failed(error));
        }
        other => round.tell(Part::ManagedCluster, status::waiting(other)),
    }
}

/// Azure could not even be asked: the identity, its secret or the settings are not right.
async fn tell_unseen(
    object: &AzureManagedControlPlane,
    cluster_name: &str,
    error: Error,
    context: &Context,
) -> Result<Next, Error> {
    let mut round = Round::default();
    round.take(Part::ResourceGroup, Taken::failed(error));
    let observed = planning::Observed {
        plane: object.clone(),
        cluster_name: cluster_name.to_owned(),
        ..planning::Observed::default()
    };
    finish(&observed, None, round, context).await
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
    round: Round,
    context: &Context,
) -> Result<Next, Error> {
    let object = &observed.plane;
    let was_ready = object
        .status
        .as_ref()
        .is_some_and(|status| frame::was_ready(status.ready, status.observed_generation, object));
    let passes = round.throttled || round.error.as_ref().is_some_and(Error::is_passing);
    // One question that Azure did not answer, or was not asked, does not make a working cluster unready. A change that
    // does not get through is told.
    if !(passes && was_ready) {
        let progress = status::control_plane::Progress {
            steps: round.steps,
            kubeconfig_written: round.kubeconfig_written,
        };
        let wanted = status::control_plane::status(observed, &progress, context.clock.now());
        frame::write_status(object, wanted, cluster, context).await?;
    }
    frame::conclude(object, round.next.unwrap_or(Next::OnChange), round.error, context)
}
