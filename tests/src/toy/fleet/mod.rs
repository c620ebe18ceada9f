//! Fleet: the infrastructure of a Cluster. Keeps as many vessels as are desired, and tells Cluster API when they are all
//! afloat.

mod act;
pub mod admit;
pub mod api;
mod charter;
pub mod convert;
mod observe;
mod plan;
mod status;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use slipway_capi::{
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
    owner,
    view::Cluster,
};
use slipway_runtime::{Class, Classified, Context, Controller, ObjectKey, Outcome, controller::Registration};

use self::{
    api::{Fleet, FleetStatus, GROUP},
    observe::Observed,
    plan::Action,
};
use super::vessel::api::Vessel;

pub const FINALIZER: &str = "fleet.toy.slipway.dev";
/// Misbehaviour on demand: what harms nobody else (`panic`, `hang`), and what the tests' helpers must notice
/// (`careless` has no finalizer, `restless` writes without need, `leak` says what is in its charter).
pub const MISBEHAVE: &str = "toy.slipway.dev/misbehave";
/// Names the Secret a fleet sails under.
pub const CHARTER: &str = "toy.slipway.dev/charter";

#[derive(Debug, thiserror::Error)]
#[error("{doing}: {source}")]
pub struct FleetError {
    doing: String,
    source: kube::Error,
}

impl Classified for FleetError {
    fn class(&self) -> Class {
        self.source.class()
    }
}

struct Fleets;

impl Kind for Fleets {
    type Object = Fleet;
    type Observed = Observed;
    type Action = Action;
    type Error = FleetError;

    const BLOCKS_MOVE: bool = true;

    fn finalizer(fleet: &Fleet) -> Option<&'static str> {
        (misbehaviour(fleet) != Some("careless")).then_some(FINALIZER)
    }

    fn conditions(status: &mut FleetStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    /// A fleet can do without a Cluster.
    async fn membership(&self, fleet: &Fleet, _: &Context) -> Result<Membership, FleetError> {
        Ok(owner::owner_cluster_name(&fleet.metadata)
            .map_or(Membership::Standalone, |name| Membership::Of(name.to_owned())))
    }

    async fn observe(&self, subject: &Subject<Fleet>, context: &Context) -> Result<Observed, FleetError> {
        Ok(observe::observe(subject, context).await)
    }

    fn plan(observed: &Observed, _: Timestamp) -> Plan<Action> {
        plan::plan(observed)
    }

    async fn act(
        &self,
        action: &Action,
        subject: &Subject<Fleet>,
        _: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, FleetError> {
        act::act(action, &subject.object, context).await
    }

    fn status(observed: &Observed, _: &ProgressOf<Self>, now: Timestamp) -> FleetStatus {
        status::status(observed, now)
    }
}

fn misbehaviour(fleet: &Fleet) -> Option<&str> {
    fleet.annotations().get(MISBEHAVE).map(String::as_str)
}

/// The fleet that a Cluster refers to.
fn of_cluster(cluster: &Cluster, _: &Context) -> Vec<ObjectKey> {
    cluster
        .spec
        .infrastructure_ref
        .iter()
        .filter(|reference| reference.kind == "Fleet" && reference.api_group == GROUP)
        .map(|reference| ObjectKey::new(cluster.metadata.namespace.as_deref(), &reference.name))
        .collect()
}

pub fn registration() -> Registration {
    Controller::new("fleet", Frame::new(Fleets))
        .owns::<Vessel>()
        .watches(of_cluster)
        // Short, because a story waits for a reconcile that hangs.
        .reconcile_timeout(Duration::from_secs(2))
        .backoff(Duration::from_millis(50), Duration::from_secs(1))
        .into_registration()
}
