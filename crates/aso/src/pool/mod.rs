//! AzureASOManagedMachinePool: a node pool of an AKS cluster as inline Azure resources, and its nodes as the provider ids that
//! Cluster API looks for.

pub mod act;
pub mod api;
pub mod observe;
pub mod plan;
pub mod status;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;
use slipway_azure::{
    reconcile::{Error, step::read_age},
    workload::{machines::Machines, nodes::Nodes},
};
use slipway_capi::{
    condition::Condition,
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
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
    api::{AzureASOManagedControlPlane, AzureASOManagedMachinePool, AzureASOManagedMachinePoolStatus, GROUP},
    caches::{Caches, prepared},
    resources::follow_up,
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
    let caches = shared.caches.clone();
    let [clusters, planes, secrets] = [(); 3].map(|()| caches.clone());
    let keys = |pools: Vec<Arc<AzureASOManagedMachinePool>>| {
        pools
            .iter()
            .map(|pool| ObjectKey::of(pool.as_ref()))
            .collect::<Vec<_>>()
    };
    let inner = Controller::new("azureasomanagedmachinepool", Frame::new(kind))
        .watches::<MachinePool>(|pool, _| {
            let reference = &pool.spec.template.spec.infrastructure_ref;
            (reference.kind == "AzureASOManagedMachinePool" && reference.api_group == GROUP)
                .then(|| ObjectKey::new(pool.metadata.namespace.as_deref(), &reference.name))
                .into_iter()
                .collect()
        })
        .watches::<Cluster>(move |cluster, context| {
            keys(clusters.pools(&context.informers, &ObjectKey::of(cluster)))
        })
        .watches::<AzureASOManagedControlPlane>(move |plane, context| {
            match owner::cluster_name(&plane.metadata) {
                Some(name) => {
                    let cluster = ObjectKey::new(plane.metadata.namespace.as_deref(), name);
                    keys(planes.pools(&context.informers, &cluster))
                }
                None => Vec::new(),
            }
        })
        .watches_metadata(ApiResource::erase::<Secret>(&()), move |secret, context| {
            secrets.by_secret::<AzureASOManagedMachinePool>(&context.informers, secret)
        })
        .into_registration();
    prepared(inner, shared.clone(), move |metrics| {
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

    /// Core labels the pool when its MachinePool becomes its owner. Pools of other control planes are not ours.
    async fn membership(
        &self,
        pool: &AzureASOManagedMachinePool,
        context: &Context,
    ) -> Result<Membership, Error> {
        let membership = Membership::by_owner_or_label(&pool.metadata);
        if let Membership::Of(name) = &membership {
            let key = ObjectKey::new(pool.metadata.namespace.as_deref(), name);
            let cluster = self.shared.caches.cluster(&context.informers, &key);
            if cluster.is_some_and(|cluster| Caches::plane_key(&cluster).is_none()) {
                return Ok(Membership::LeftAlone("its Cluster has another control plane"));
            }
        }
        Ok(membership)
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
        let mut plan = plan::plan(&reconcile.observed, now);
        if let Some(age) = read_age(&reconcile.observed.pool.metadata) {
            let after = age.max(std::time::Duration::from_secs(1));
            plan.revisit(after, "the object asks for reads as fresh as this");
        }
        plan
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
