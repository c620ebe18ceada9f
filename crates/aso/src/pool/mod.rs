//! AzureASOManagedMachinePool: a node pool of an AKS cluster as inline Azure resources, and its nodes as the provider ids that
//! Cluster API looks for.

pub mod act;
pub mod api;
pub mod observe;
pub mod plan;
pub mod status;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;
use slipway_azure::{
    reconcile::{Error, Records, step::revisit},
    workload::{machines::Machines, nodes::Nodes},
};
use slipway_capi::{
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
    api::{AzureASOManagedMachinePool, AzureASOManagedMachinePoolStatus},
    caches::by_secret,
    engine,
    inline::managed,
    resources::{changes_azure, follow_up},
    shared::Shared,
};

/// Holds a pool until AKS has deleted it. The name is the one that objects already carry.
pub const FINALIZER: &str = "cluster.cluster.x-k8s.io";

#[derive(Debug)]
struct MachinePools {
    shared: Shared,
    nodes: Nodes,
    machines: Machines,
}

pub fn registration(access: Access, nodes: Nodes) -> Registration {
    let kind = MachinePools {
        shared: Shared::new(access),
        nodes,
        machines: Machines::default(),
    };
    let (shared, nodes, machines) = (kind.shared.clone(), kind.nodes.clone(), kind.machines.clone());
    let (caches, secrets) = (shared.caches.clone(), shared.caches.clone());
    let inner = caches
        .watched_by_pools(Controller::new("azureasomanagedmachinepool", Frame::new(kind)))
        .watches_metadata(ApiResource::erase::<Secret>(&()), move |secret, context| {
            by_secret::<AzureASOManagedMachinePool>(&secrets, &context.informers, secret)
        })
        .into_registration();
    caches.prepared(shared.access.started(inner), move |metrics| {
        nodes.count_held("aso_nodes", metrics);
        shared.count_held("aso_pool", metrics);
        let machines = machines.clone();
        metrics.count_held("aso_pool_machines", move || machines.len());
    })
}

impl Kind for MachinePools {
    type Object = AzureASOManagedMachinePool;
    type Observed = Box<ReconcileContext>;
    type Action = Action;
    type Error = Error;

    const BLOCKS_MOVE: bool = true;

    fn finalizer(_: &AzureASOManagedMachinePool) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn conditions(status: &mut AzureASOManagedMachinePoolStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    async fn membership(
        &self,
        pool: &AzureASOManagedMachinePool,
        context: &Context,
    ) -> Result<Membership, Error> {
        let caches = &self.shared.caches;
        Ok(caches.membership_of_pool(&context.informers, pool))
    }

    async fn pause(
        &self,
        subject: &Subject<AzureASOManagedMachinePool>,
        context: &Context,
    ) -> Result<(), Error> {
        let (holder, operators) = (&subject.object.metadata, &self.shared.operators);
        engine::act::pause(holder, &Records::of(holder), operators, context).await
    }

    async fn observe(
        &self,
        subject: &Subject<AzureASOManagedMachinePool>,
        context: &Context,
    ) -> Result<Box<ReconcileContext>, Error> {
        let sources = observe::Sources {
            shared: &self.shared,
            nodes: &self.nodes,
            machines: &self.machines,
        };
        observe::observe(subject, &sources, context).await.map(Box::new)
    }

    fn plan(reconcile: &Box<ReconcileContext>, now: Timestamp) -> Plan<Action> {
        let plan = plan::plan(&reconcile.observed, now);
        revisit(plan, &reconcile.observed.pool.metadata)
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<AzureASOManagedMachinePool>,
        reconcile: &mut Box<ReconcileContext>,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, reconcile, &self.nodes, context).await
    }

    fn follow_up(reconcile: &Box<ReconcileContext>, progress: &ProgressOf<Self>) -> Plan<Action> {
        follow_up(&reconcile.observed.held, progress)
    }

    fn unheld(object: &AzureASOManagedMachinePool) -> AzureASOManagedMachinePool {
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
    ) -> AzureASOManagedMachinePoolStatus {
        status::after(&reconcile.observed, progress, &reconcile.engine.steps, now)
    }

    fn forget(&self, key: &ObjectKey, _: &Context) {
        self.shared.forget::<AzureASOManagedMachinePool>(key);
        self.machines.forget(key);
        self.nodes.forget(key);
    }
}
