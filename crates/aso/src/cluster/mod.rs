//! AzureASOManagedCluster: the infrastructure of a Cluster beside its AKS cluster, as inline Azure resources; and where the API
//! server answers, copied from the control plane.

pub mod act;
pub mod api;
pub mod observe;
pub mod plan;
pub mod status;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;
use slipway_azure::reconcile::{Error, Records, step::revisit};
use slipway_capi::{
    annotations,
    condition::Condition,
    frame::{Entry, Frame, Kind, Membership, Plan, ProgressOf, Subject},
};
use slipway_runtime::{
    ObjectKey, Outcome,
    controller::{Context, Controller, Registration},
};

use self::{observe::ReconcileContext, plan::Action};
use crate::{
    access::Access,
    api::{AzureASOManagedCluster, AzureASOManagedClusterStatus},
    caches::by_secret,
    engine,
    inline::managed,
    resources::{changes_azure, follow_up},
    shared::Shared,
};

/// Holds a cluster's infrastructure until everything it made in Azure is gone. The name is the one that objects already carry.
pub const FINALIZER: &str = "cluster.cluster.x-k8s.io";

#[derive(Debug)]
struct Clusters(Shared);

pub fn registration(access: Access) -> Registration {
    let shared = Shared::new(access);
    let (caches, secrets) = (shared.caches.clone(), shared.caches.clone());
    let inner = caches
        .watched_by_infrastructure(Controller::new(
            "azureasomanagedcluster",
            Frame::new(Clusters(shared.clone())),
        ))
        .watches_metadata(ApiResource::erase::<Secret>(&()), move |secret, context| {
            by_secret::<AzureASOManagedCluster>(&secrets, &context.informers, secret)
        })
        .into_registration();
    caches.prepared(shared.access.started(inner), move |metrics| {
        shared.count_held("aso_cluster", metrics);
    })
}

impl Kind for Clusters {
    type Object = AzureASOManagedCluster;
    type Observed = Box<ReconcileContext>;
    type Action = Action;
    type Error = Error;

    const BLOCKS_MOVE: bool = true;

    fn finalizer(_: &AzureASOManagedCluster) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn conditions(status: &mut AzureASOManagedClusterStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    async fn membership(&self, object: &AzureASOManagedCluster, _: &Context) -> Result<Membership, Error> {
        if annotations::is_externally_managed(&object.metadata) {
            return Ok(Membership::LeftAlone("somebody else manages it"));
        }
        Ok(Membership::by_owner(&object.metadata))
    }

    async fn pause(&self, subject: &Subject<AzureASOManagedCluster>, context: &Context) -> Result<(), Error> {
        let (holder, operators) = (&subject.object.metadata, &self.0.operators);
        engine::act::pause(holder, &Records::of(holder), operators, context).await
    }

    async fn observe(
        &self,
        subject: &Subject<AzureASOManagedCluster>,
        context: &Context,
    ) -> Result<Box<ReconcileContext>, Error> {
        observe::observe(subject, &self.0, context).await.map(Box::new)
    }

    fn plan(reconcile: &Box<ReconcileContext>, now: Timestamp) -> Plan<Action> {
        let plan = plan::plan(&reconcile.observed, now);
        revisit(plan, &reconcile.observed.object.metadata)
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<AzureASOManagedCluster>,
        reconcile: &mut Box<ReconcileContext>,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, reconcile, context).await
    }

    fn follow_up(reconcile: &Box<ReconcileContext>, progress: &ProgressOf<Self>) -> Plan<Action> {
        follow_up(&reconcile.observed.held, progress)
    }

    fn unheld(object: &AzureASOManagedCluster) -> AzureASOManagedCluster {
        let mut object = object.clone();
        object.spec.resources = managed(&object.spec.resources);
        object
    }

    fn changes_outside(entry: &Entry<Action>) -> bool {
        changes_azure(entry)
    }

    fn status(
        reconcile: &Box<ReconcileContext>,
        progress: &ProgressOf<Self>,
        now: Timestamp,
    ) -> AzureASOManagedClusterStatus {
        status::after(&reconcile.observed, progress, &reconcile.engine.steps, now)
    }

    fn forget(&self, key: &ObjectKey, _: &Context) {
        self.0.forget::<AzureASOManagedCluster>(key);
    }
}
