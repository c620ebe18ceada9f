//! AzureManagedMachinePool: becomes a node pool of its Cluster's AKS cluster, and its nodes become the provider ids that
//! Cluster API looks for.

pub mod act;
pub mod admit;
pub mod api;
pub mod observe;
pub mod plan;
pub mod status;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;
use slipway_azure::{
    machine::{Board, Instances, kind::pool_key},
    reconcile::{Error, planning::sends, step::revisit},
    takeover::Takeover,
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

use self::{
    observe::{Reading, ReconcileContext, Sources},
    plan::Action,
};
use crate::{
    access::Access,
    api::{
        AzureClusterIdentity, AzureManagedMachine, AzureManagedMachinePool, AzureManagedMachinePoolStatus,
        V1Beta2Conditions,
    },
    caches::Caches,
};

/// Holds a pool until AKS has deleted it. The name is the one pools already carry.
pub const FINALIZER: &str = "azurecluster.infrastructure.cluster.x-k8s.io";

#[derive(Debug, Default)]
struct Pools {
    access: Access,
    caches: Caches,
    nodes: Nodes,
    machines: Machines,
    takeover: Takeover,
    instances: Instances,
    board: Board,
}

impl Pools {
    fn sources(&self) -> Sources<'_> {
        Sources {
            access: &self.access,
            caches: &self.caches,
            nodes: &self.nodes,
            machines: &self.machines,
            takeover: &self.takeover,
            instances: &self.instances,
            board: &self.board,
        }
    }
}

pub fn registration(access: Access, nodes: Nodes, board: Board) -> Registration {
    let caches = Caches::default();
    let kind = Pools {
        access,
        caches: caches.clone(),
        nodes,
        machines: Machines::default(),
        takeover: Takeover::default(),
        instances: Instances::default(),
        board,
    };
    let (instances, board) = (kind.instances.clone(), kind.board.clone());
    let (nodes, machines, takeover) = (kind.nodes.clone(), kind.machines.clone(), kind.takeover.clone());
    let inner = caches
        .watched_by_pools(Controller::new("azuremanagedmachinepool", Frame::new(kind)))
        // Kept in the caches for whoever signs in; a change of it is waited out by the queue.
        .watches::<AzureClusterIdentity>(|_, _| Vec::new())
        // A pool deletes the VMs whose machines are deleted.
        .watches::<AzureManagedMachine>(|machine, _| {
            let pool = pool_key::<AzureManagedMachine>(&machine.metadata);
            pool.into_iter().collect()
        })
        // Kept in the caches for whoever reads a kubeconfig: its version tells when to.
        .watches_metadata(ApiResource::erase::<Secret>(&()), |_, _| Vec::new())
        .into_registration();
    caches.prepared(inner, move |metrics| {
        nodes.count_held("aks_nodes", metrics);
        let (machines, takeover) = (machines.clone(), takeover.clone());
        metrics.count_held("aks_pool_machines", move || machines.len());
        metrics.count_held("aks_pool_takeovers", move || takeover.len());
        let (instances, board) = (instances.clone(), board.clone());
        metrics.count_held("aks_pool_instances", move || instances.len());
        metrics.count_held("aks_pool_boards", move || board.len());
    })
}

impl Kind for Pools {
    type Object = AzureManagedMachinePool;
    type Observed = Box<ReconcileContext>;
    type Action = Action;
    type Error = Error;

    const BLOCKS_MOVE: bool = true;

    fn finalizer(_: &AzureManagedMachinePool) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn conditions(status: &mut AzureManagedMachinePoolStatus) -> Option<&mut Vec<Condition>> {
        let v1beta2 = status.v1beta2.get_or_insert_with(V1Beta2Conditions::default);
        Some(&mut v1beta2.conditions)
    }

    async fn membership(
        &self,
        pool: &AzureManagedMachinePool,
        context: &Context,
    ) -> Result<Membership, Error> {
        Ok(self.caches.membership_of_pool(&context.informers, pool))
    }

    async fn observe(
        &self,
        subject: &Subject<AzureManagedMachinePool>,
        context: &Context,
    ) -> Result<Box<ReconcileContext>, Error> {
        let sources = self.sources();
        let observed = observe::observe(subject, &sources, Reading::Usual, context);
        Box::pin(observed).await.map(Box::new)
    }

    /// No VM and no Machine goes because of what was read a while ago.
    fn needs_confirmation(reconcile: &Box<ReconcileContext>, plan: &Plan<Action>) -> bool {
        let takes_away =
            |action: &Action| matches!(action, Action::Machine(action) if action.needs_confirmation());
        !reconcile.observed.fleet.is_fresh && plan.actions().any(takes_away)
    }

    async fn confirm(
        &self,
        subject: &Subject<AzureManagedMachinePool>,
        _: Box<ReconcileContext>,
        context: &Context,
    ) -> Result<Box<ReconcileContext>, Error> {
        let sources = self.sources();
        let observed = observe::observe(subject, &sources, Reading::Now, context);
        Box::pin(observed).await.map(Box::new)
    }

    fn plan(reconcile: &Box<ReconcileContext>, now: Timestamp) -> Plan<Action> {
        let plan = plan::plan(&reconcile.observed, now);
        revisit(plan, &reconcile.observed.pool.metadata)
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<AzureManagedMachinePool>,
        reconcile: &mut Box<ReconcileContext>,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, reconcile, &self.takeover, &self.nodes, context).await
    }

    /// What was applied is kept on the object, also when something else failed.
    fn follow_up(reconcile: &Box<ReconcileContext>, _: &ProgressOf<Self>) -> Plan<Action> {
        let mut plan = Plan::new();
        if reconcile.records.patch().is_some() {
            plan.then(
                Action::StoreRecords,
                "a field that is removed later is found by it",
            );
        }
        plan
    }

    fn changes_outside(entry: &Entry<Action>) -> bool {
        match entry.action() {
            Some(Action::Ensure(_)) => sends(entry),
            Some(Action::Delete { .. } | Action::AcceptVanished { .. }) => true,
            _ => false,
        }
    }

    fn status(
        reconcile: &Box<ReconcileContext>,
        progress: &ProgressOf<Self>,
        now: Timestamp,
    ) -> AzureManagedMachinePoolStatus {
        status::after(&reconcile.observed, progress, reconcile.step.as_ref(), now)
    }

    fn forget(&self, key: &ObjectKey, _: &Context) {
        self.machines.forget(key);
        self.nodes.forget(key);
        self.takeover.forget(key);
        self.instances.forget(key);
        self.board.forget(key);
    }
}
