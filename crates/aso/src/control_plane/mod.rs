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
use slipway_azure::reconcile::{Error, step::read_age};
use slipway_capi::{
    condition::Condition,
    frame::{Frame, Kind, Plan, ProgressOf, Subject},
    owner,
    view::{Cluster, MachinePool},
};
use slipway_runtime::{
    ObjectKey, Outcome,
    controller::{Context, Controller, Registration},
};

use self::{observe::ReconcileContext, plan::Action};
use crate::{
    access::Access,
    api::{
        AzureASOManagedCluster, AzureASOManagedControlPlane, AzureASOManagedControlPlaneStatus,
        AzureASOManagedMachinePool,
    },
    caches::{Caches, prepared},
    shared::Shared,
};

/// Holds a control plane until everything it made in Azure is gone.
pub const FINALIZER: &str = "azureasomanagedcontrolplane.infrastructure.cluster.x-k8s.io";

#[derive(Debug)]
struct ControlPlanes(Shared);

pub fn registration(access: Access) -> Registration {
    let shared = Shared::new(access);
    let caches = shared.caches.clone();
    let [members, pools, infrastructure, secrets] = [(); 4].map(|()| caches.clone());
    let counted = shared.clone();
    let inner = Controller::new("azureasomanagedcontrolplane", Frame::new(ControlPlanes(shared)))
        .watches::<Cluster>(|cluster, _| Caches::plane_key(cluster).into_iter().collect())
        .watches::<AzureASOManagedMachinePool>(move |pool, context| {
            let name = owner::cluster_name(&pool.metadata);
            let namespace = pool.metadata.namespace.as_deref();
            let found = members.plane_of_member(&context.informers, namespace, name);
            found.into_iter().collect()
        })
        .watches::<MachinePool>(move |pool, context| {
            let name = Some(pool.spec.cluster_name.as_str());
            let namespace = pool.metadata.namespace.as_deref();
            let found = pools.plane_of_member(&context.informers, namespace, name);
            found.into_iter().collect()
        })
        .watches::<AzureASOManagedCluster>(move |object, context| {
            let name = owner::cluster_name(&object.metadata);
            let namespace = object.metadata.namespace.as_deref();
            let found = infrastructure.plane_of_member(&context.informers, namespace, name);
            found.into_iter().collect()
        })
        .watches_metadata(ApiResource::erase::<Secret>(&()), move |secret, context| {
            secrets.by_secret::<AzureASOManagedControlPlane>(&context.informers, secret)
        })
        .into_registration();
    prepared(inner, counted.clone(), move |metrics| {
        counted.access.count_held(metrics);
        counted.count_held("aso_control_plane", metrics);
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

    async fn observe(
        &self,
        subject: &Subject<AzureASOManagedControlPlane>,
        context: &Context,
    ) -> Result<Box<ReconcileContext>, Error> {
        observe::observe(subject, &self.0, context).await.map(Box::new)
    }

    fn plan(reconcile: &Box<ReconcileContext>, now: Timestamp) -> Plan<Action> {
        let mut plan = plan::plan(&reconcile.observed, now);
        if let Some(age) = read_age(&reconcile.observed.plane.metadata) {
            let after = age.max(std::time::Duration::from_secs(1));
            plan.revisit(after, "the object asks for reads as fresh as this");
        }
        plan
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
