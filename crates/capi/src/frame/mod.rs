//! The one frame of every controller: owner Cluster, pause, finalizer, observe, plan, act, status. A kind says what is
//! its own ([`Kind`]); [`Frame`] makes a `Reconciler` of it. Everything a reconcile writes is an entry of its [`Plan`].

mod plan;
mod progress;
mod reconcile;
#[cfg(test)]
mod tests;

use std::{fmt, future::Future, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::{Resource, core::object::HasStatus};
use serde::Serialize;
use slipway_runtime::{Classified, Context, ObjectKey, Outcome, controller::Writable, informer};

pub use self::{
    plan::{Announcement, Difference, Entry, Plan, Wait, What, without_credentials},
    progress::{Attempt, Failure, Progress},
    reconcile::Frame,
};
use crate::{owner, view::Cluster};

/// Which Cluster an object belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// To this one, by name, in the object's namespace. While the Cluster is not there, nothing is done but deletion.
    Of(String),
    /// To none: the kind has no Cluster, or the object can do without.
    Standalone,
    /// The object is not for us, or not yet: nothing is done before it changes. The text says why.
    LeftAlone(&'static str),
}

impl Membership {
    /// By owner reference, which core sets on what a Cluster refers to. A deleted object that has lost it is found by
    /// its label, or goes without: a Cluster that is gone keeps no finalizer.
    pub fn by_owner(metadata: &ObjectMeta) -> Self {
        let deleting = metadata.deletion_timestamp.is_some();
        match (owner::owner_cluster_name(metadata), owner::cluster_name(metadata)) {
            (Some(name), _) => Self::Of(name.to_owned()),
            (None, Some(name)) if deleting => Self::Of(name.to_owned()),
            (None, None) if deleting => Self::Standalone,
            _ => Self::LeftAlone("no Cluster has become its owner yet"),
        }
    }

    /// By owner reference or by label, for what belongs to a Cluster through another object.
    pub fn by_owner_or_label(metadata: &ObjectMeta) -> Self {
        owner::cluster_name(metadata)
            .map_or_else(|| Self::by_owner(metadata), |name| Self::Of(name.to_owned()))
    }
}

/// What is reconciled.
#[derive(Clone, Debug)]
pub struct Subject<O> {
    pub object: Arc<O>,
    /// The Cluster it belongs to, if there is one.
    pub cluster: Option<Arc<Cluster>>,
    /// Its name, also when it is gone.
    pub cluster_name: Option<String>,
}

impl<O: Resource> Subject<O> {
    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(self.object.as_ref())
    }

    pub fn is_deleting(&self) -> bool {
        self.object.meta().deletion_timestamp.is_some()
    }
}

/// The status of a kind.
pub type StatusOf<K> = <<K as Kind>::Object as HasStatus>::Status;
/// What a kind's plan came to.
pub type ProgressOf<K> = Progress<<K as Kind>::Action, <K as Kind>::Error>;

/// One kind and how it is reconciled. `plan` and `status` are pure: they are given everything and can reach nothing.
pub trait Kind: Send + Sync + 'static {
    type Object: Writable
        + informer::Object
        + Resource<DynamicType = ()>
        + HasStatus<Status: Clone + Default + Serialize + Send + Sync>;
    /// Everything the plan is made from. What could not be read is a fact in it.
    type Observed: Send;
    /// One idempotent call. It prints what it does, and never a secret.
    type Action: fmt::Display + fmt::Debug + Send + Sync;
    type Error: Classified;

    /// Whether `clusterctl move` waits while the object is worked on. It goes on when the object is paused.
    const BLOCKS_MOVE: bool = false;

    /// The finalizer that is stored before anything is made. `None`: nothing is left behind when the object goes.
    fn finalizer(object: &Self::Object) -> Option<&'static str> {
        let _ = object;
        None
    }

    /// Where the status has its metav1 conditions. `None`: it has none.
    fn conditions(status: &mut StatusOf<Self>) -> Option<&mut Vec<Condition>>;

    /// Which Cluster the object belongs to.
    fn membership(
        &self,
        object: &Self::Object,
        context: &Context,
    ) -> impl Future<Output = Result<Membership, Self::Error>> + Send {
        let _ = context;
        let membership = Membership::by_owner(object.meta());
        async move { Ok(membership) }
    }

    /// The object is paused: what works for it elsewhere is told to stop, before `clusterctl move` may go on.
    fn pause(
        &self,
        subject: &Subject<Self::Object>,
        context: &Context,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send {
        let _ = (subject, context);
        async move { Ok(()) }
    }

    /// Every read. What fails becomes a fact, where the plan or the status can say something about it; an error ends the
    /// reconcile before anything is planned.
    fn observe(
        &self,
        subject: &Subject<Self::Object>,
        context: &Context,
    ) -> impl Future<Output = Result<Self::Observed, Self::Error>> + Send;

    /// What to do. Deletion is a plan too: its last entry releases the finalizer.
    fn plan(observed: &Self::Observed, now: Timestamp) -> Plan<Self::Action>;

    /// Whether the plan rests on reads that are too cheap for what it does; then [`Kind::confirm`] reads closer and the
    /// plan is made again.
    fn needs_confirmation(observed: &Self::Observed, plan: &Plan<Self::Action>) -> bool {
        let _ = (observed, plan);
        false
    }

    /// Reads again, closer.
    fn confirm(
        &self,
        subject: &Subject<Self::Object>,
        observed: Self::Observed,
        context: &Context,
    ) -> impl Future<Output = Result<Self::Observed, Self::Error>> + Send {
        let _ = (subject, context);
        async move { Ok(observed) }
    }

    /// Takes one action: the only place that writes. What it learns goes into `observed`, for the actions after it and
    /// for the status.
    fn act(
        &self,
        action: &Self::Action,
        subject: &Subject<Self::Object>,
        observed: &mut Self::Observed,
        context: &Context,
    ) -> impl Future<Output = Result<Outcome, Self::Error>> + Send;

    /// What an action made, if the plan could not name it: its event does.
    fn made(observed: &Self::Observed, action: &Self::Action) -> Option<String> {
        let _ = (observed, action);
        None
    }

    /// What follows from what the actions came to, e.g. a record of what was sent.
    fn follow_up(observed: &Self::Observed, progress: &ProgressOf<Self>) -> Plan<Self::Action> {
        let _ = (observed, progress);
        Plan::new()
    }

    /// What the status says. The frame adds the `Paused` condition and writes it once, only if it differs.
    fn status(observed: &Self::Observed, progress: &ProgressOf<Self>, now: Timestamp) -> StatusOf<Self>;

    /// The object as it would be if what a user lets go of with a word did not hold it back, as a reconcile policy does. Asked
    /// by who wants to know what would change (`slipway diff`).
    fn unheld(object: &Self::Object) -> Self::Object {
        object.clone()
    }

    /// Whether an entry of the plan changes something outside of Kubernetes.
    fn changes_outside(entry: &Entry<Self::Action>) -> bool {
        let _ = entry;
        false
    }

    /// What outlives the reconcile in memory. It is given up in [`Kind::forget`].
    fn remember(
        &self,
        subject: &Subject<Self::Object>,
        observed: Self::Observed,
        progress: &ProgressOf<Self>,
    ) {
        let _ = (subject, observed, progress);
    }

    /// The object is gone: what is held in memory for it ends here. See `Reconciler::forget`.
    fn forget(&self, key: &ObjectKey, context: &Context) {
        let _ = (key, context);
    }
}
