//! What reconciling a control plane and reconciling a pool have in common around their plans: paused objects are left
//! alone, finalizer and move are held, what another installation kept is detached, and the outcome is told.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt, core::object::HasStatus};
use serde::{Serialize, de::DeserializeOwned};
use slipway_azure::{
    reconcile::{Error, Records, StepResult, step::requeue},
    takeover::{Progress, Takeover},
};
use slipway_capi::{condition, finalizer, marks, paused, view::Cluster};
use slipway_runtime::{Class, Classified, Next, Outcome, controller::Context};

use crate::{
    api::{AzureManagedControlPlane, NewerConditions},
    control_plane,
    status::VANISHED,
};

pub use crate::planning::{ASK_AGAIN, ORPHAN, OWNER_CHECK, SOON, TAKING_OVER};

/// A kind that is reconciled so.
pub trait Framed:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + HasStatus<Status: Clone + Default + Serialize>
    + Serialize
    + DeserializeOwned
    + Clone
    + Debug
{
    const KIND: &'static str;
    const FINALIZER: &'static str;

    /// Where its conditions in Kubernetes' own form are.
    fn newer(status: &mut Self::Status) -> &mut Option<NewerConditions>;
}

impl Framed for AzureManagedControlPlane {
    const KIND: &'static str = "AzureManagedControlPlane";
    const FINALIZER: &'static str = control_plane::FINALIZER;

    fn newer(status: &mut Self::Status) -> &mut Option<NewerConditions> {
        &mut status.newer
    }
}

fn api_of<K: Framed>(object: &K, context: &Context) -> Api<K> {
    Api::namespaced(context.client.clone(), &object.namespace().unwrap_or_default())
}

/// A status that also says whether the object is paused.
fn with_paused<K: Framed>(
    object: &K,
    mut status: K::Status,
    held: paused::Paused,
    context: &Context,
) -> K::Status {
    let list = &mut K::newer(&mut status)
        .get_or_insert_with(NewerConditions::default)
        .conditions;
    let generation = object.meta().generation;
    condition::set(list, &held.report(K::KIND), generation, context.clock.now());
    status
}

/// Nothing is touched while paused, and `clusterctl move` may go on.
pub async fn tell_paused<K: Framed>(
    object: &K,
    held: paused::Paused,
    context: &Context,
) -> Result<Next, Error> {
    if let Some(patch) = marks::block_move(object.meta(), false) {
        context
            .patch(object, &patch)
            .await
            .map_err(Error::api("letting the move go on"))?;
        return Ok(Next::After(SOON));
    }
    let status = object.status().cloned().unwrap_or_default();
    let status = with_paused(object, status, held, context);
    context
        .patch_status(object, &status)
        .await
        .map_err(Error::api("writing the Paused condition"))?;
    Ok(Next::OnChange)
}

/// Finalizer and move are held before anything is made. Whether something was written.
pub async fn hold<K: Framed>(object: &K, context: &Context) -> Result<bool, Error> {
    if let Some(stored) = finalizer::ensure(&api_of(object, context), object, K::FINALIZER).await? {
        context.writes().saw(&stored);
        return Ok(true);
    }
    let Some(patch) = marks::block_move(object.meta(), true) else {
        return Ok(false);
    };
    context
        .patch(object, &patch)
        .await
        .map_err(Error::api("holding moves back"))?;
    Ok(true)
}

/// Lets an object go whose clean-up is done.
pub async fn release<K: Framed>(object: &K, context: &Context) -> Result<Next, Error> {
    finalizer::release(&api_of(object, context), object, K::FINALIZER, Outcome::Done).await?;
    Ok(Next::OnChange)
}

/// What becomes of an object that is being deleted and cannot sign in to Azure.
pub enum WithoutAzure {
    /// Nothing of it is there, or the user lets go of what is: the object goes.
    Release,
    /// It stays; this is what its condition says.
    Stay(String),
}

/// An object that made nothing in Azure needs nobody who signs in to be deleted.
pub fn without_azure<K: Framed>(object: &K, error: &Error, context: &Context) -> WithoutAzure {
    let records = Records::of(object.meta());
    let remaining: Vec<&str> = records.remaining().collect();
    if remaining.is_empty() {
        return WithoutAzure::Release;
    }
    let remaining = remaining.join(", ");
    let annotations = object.meta().annotations.as_ref();
    if annotations.is_some_and(|all| all.get(ORPHAN).is_some_and(|value| value == "true")) {
        let note = format!("{ORPHAN} is set: what remains in Azure is not deleted: {remaining}");
        context.events.warning(object, "Orphaned", "Delete", note);
        return WithoutAzure::Release;
    }
    WithoutAzure::Stay(format!(
        "{error}. In Azure remain {remaining}: mend the sign-in, or annotate the {} with {ORPHAN}: \"true\" to let go of them",
        K::KIND
    ))
}

/// Whether somebody else's objects for the same resources are still there.
pub async fn take_over<K: Framed>(
    takeover: &Takeover,
    object: &K,
    cluster: &str,
    context: &Context,
) -> Result<bool, Error> {
    let mut records = Records::of(object.meta());
    let progress = takeover
        .detach(object.meta(), cluster, &mut records, context)
        .await?;
    if let Some(patch) = records.patch() {
        context
            .patch(object, &patch)
            .await
            .map_err(Error::api("keeping what was made before"))?;
    }
    Ok(progress != Progress::Free)
}

/// Whether the object was told ready for what is asked for now.
pub fn was_ready(ready: Option<bool>, observed_generation: Option<i64>, object: &impl Resource) -> bool {
    ready == Some(true) && observed_generation == object.meta().generation
}

/// Writes the status, if it differs.
pub async fn write_status<K: Framed>(
    object: &K,
    desired: K::Status,
    cluster: Option<&Cluster>,
    context: &Context,
) -> Result<(), Error> {
    let held = paused::paused(cluster, object.meta());
    let desired = with_paused(object, desired, held, context);
    let doing = || format!("writing the status of {} {}", K::KIND, object.name_any());
    context
        .patch_status(object, &desired)
        .await
        .map_err(Error::api(doing()))?;
    Ok(())
}

/// Says when to look again, and tells what a user has to mend.
pub fn conclude<K: Framed>(
    object: &K,
    next: Next,
    error: Option<Error>,
    context: &Context,
) -> Result<Next, Error> {
    let Some(error) = error else {
        return Ok(next.earlier(requeue(object.meta())));
    };
    if matches!(error.class(), Class::Terminal | Class::Denied) {
        context
            .events
            .warning(object, "ReconcileError", "Reconcile", error.to_string());
    }
    Err(error)
}

/// The event for a resource that vanished. The condition holds the reason from then on, so it is sent once.
pub fn report_vanished<K: Framed>(object: &K, condition: &str, id: &str, context: &Context) {
    let mut status = object.status().cloned().unwrap_or_default();
    let reported = K::newer(&mut status).as_ref().is_some_and(|newer| {
        newer
            .conditions
            .iter()
            .any(|one| one.type_ == condition && one.reason == VANISHED)
    });
    if !reported {
        let note = format!("{id} is gone from Azure, and nothing here deleted it");
        context.events.warning(object, VANISHED, "Observe", note);
    }
}

/// Tells what was sent to Azure, if anything was.
pub fn tell_sent<K: Framed>(object: &K, what: &str, id: &str, result: &StepResult, context: &Context) {
    let Some(differences) = &result.sent else { return };
    let reason = if differences.is_empty() {
        "Creating"
    } else {
        "Updating"
    };
    let note = format!("{reason} {what} {id} {differences}");
    context.events.normal(object, reason, "Ensure", note.trim_end());
}
