//! AzureASOManagedControlPlane: an AKS cluster and what belongs to it as inline Azure resources, with its kubeconfig and where
//! its API server answers.

pub mod act;
pub mod api;
pub mod connect;
pub mod observe;
pub mod plan;
pub mod status;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;
use slipway_azure::reconcile::{Error, Records, step::revisit};
use slipway_capi::{
    condition::Condition,
    frame::{Entry, Frame, Kind, Plan, ProgressOf, Subject},
};
use slipway_runtime::{
    ObjectKey, Outcome,
    controller::{Context, Controller, Registration},
};

use self::{observe::ReconcileContext, plan::Action};
use crate::{
    access::Access,
    api::{AzureASOManagedControlPlane, AzureASOManagedControlPlaneStatus},
    caches::by_secret,
    engine,
    inline::managed,
    resources::changes_azure,
    shared::Shared,
};

/// Holds a control plane until everything it made in Azure is gone.
pub const FINALIZER: &str = "azureasomanagedcontrolplane.infrastructure.cluster.x-k8s.io";

#[derive(Debug)]
struct ControlPlanes(Shared);

pub fn registration(access: Access) -> Registration {
    let shared = Shared::new(access);
    let (caches, secrets) = (shared.caches.clone(), shared.caches.clone());
    let inner = caches
        .watched_by_planes(Controller::new(
            "azureasomanagedcontrolplane",
            Frame::new(ControlPlanes(shared.clone())),
        ))
        .watches_metadata(ApiResource::erase::<Secret>(&()), move |secret, context| {
            by_secret::<AzureASOManagedControlPlane>(&secrets, &context.informers, secret)
        })
        .into_registration();
    caches.prepared(shared.access.started(inner), move |metrics| {
        shared.access.count_held(metrics);
        shared.count_held("aso_control_plane", metrics);
    })
}

impl Kind for ControlPlanes {
    type Object = AzureASOManagedControlPlane;
    type Observed = Box<ReconcileContext>;
    type Action = Action;
    type Error = Error;

    const BLOCKS_MOVE: bool = true;

    fn finalizer(_: &AzureASOManagedControlPlane) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn conditions(status: &mut AzureASOManagedControlPlaneStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    async fn pause(
        &self,
        subject: &Subject<AzureASOManagedControlPlane>,
        context: &Context,
    ) -> Result<(), Error> {
        let (holder, operators) = (&subject.object.metadata, &self.0.operators);
        engine::act::pause(holder, &Records::of(holder), operators, context).await
    }

    async fn observe(
        &self,
        subject: &Subject<AzureASOManagedControlPlane>,
        context: &Context,
    ) -> Result<Box<ReconcileContext>, Error> {
        observe::observe(subject, &self.0, context).await.map(Box::new)
    }

    fn plan(reconcile: &Box<ReconcileContext>, now: Timestamp) -> Plan<Action> {
        let plan = plan::plan(&reconcile.observed, now);
        revisit(plan, &reconcile.observed.plane.metadata)
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<AzureASOManagedControlPlane>,
        reconcile: &mut Box<ReconcileContext>,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, reconcile, context).await
    }

    fn follow_up(reconcile: &Box<ReconcileContext>, progress: &ProgressOf<Self>) -> Plan<Action> {
        plan::follow_up(&reconcile.observed, progress)
    }

    fn unheld(object: &AzureASOManagedControlPlane) -> AzureASOManagedControlPlane {
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
    ) -> AzureASOManagedControlPlaneStatus {
        status::after(&reconcile.observed, progress, &reconcile.engine.steps, now)
    }

    fn forget(&self, key: &ObjectKey, _: &Context) {
        self.0.forget::<AzureASOManagedControlPlane>(key);
    }
}
