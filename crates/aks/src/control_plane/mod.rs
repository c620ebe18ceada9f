//! AzureManagedControlPlane: becomes an AKS cluster with its network, endpoints, fleet membership, extensions and
//! kubeconfigs.

pub mod act;
pub mod admit;
pub mod api;
pub mod observe;
pub mod plan;
pub mod status;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;
use slipway_azure::{
    reconcile::{Error, planning::sends, step::revisit},
    takeover::Takeover,
    workload::stored::StoredSecret,
};
use slipway_capi::{
    condition::Condition,
    frame::{Entry, Frame, Kind, Plan, ProgressOf, Subject},
    owner,
};
use slipway_runtime::{
    ObjectKey, Outcome, SecretFacts,
    controller::{Context, Controller, Registration},
};

use self::{
    observe::{ReconcileContext, Sources},
    plan::Action,
};
use crate::{
    access::Access,
    api::{
        AzureClusterIdentity, AzureManagedControlPlane, AzureManagedControlPlaneStatus, V1Beta2Conditions,
    },
    caches::{Caches, planes_of_identity},
};

/// Holds a control plane until everything it made in Azure is gone.
pub const FINALIZER: &str = "azuremanagedcontrolplane.infrastructure.cluster.x-k8s.io";
/// How long a control plane waits for a system pool before it is given a default one.
pub const POOL_WAIT_FLAG: &str = "aks-default-pool-wait";
const POOL_WAIT: Duration = Duration::from_mins(5);

#[derive(Debug, Default)]
struct ControlPlanes {
    access: Access,
    caches: Caches,
    takeover: Takeover,
    secrets: SecretFacts<StoredSecret>,
}

pub fn registration(access: Access) -> Registration {
    let caches = Caches::default();
    let kind = ControlPlanes {
        access,
        caches: caches.clone(),
        takeover: Takeover::default(),
        secrets: SecretFacts::default(),
    };
    let (access, takeover, secrets) = (kind.access.clone(), kind.takeover.clone(), kind.secrets.clone());
    let identities = caches.clone();
    let inner = caches
        .watched_by_planes(Controller::new("azuremanagedcontrolplane", Frame::new(kind)))
        .watches::<AzureClusterIdentity>(move |identity, context| {
            planes_of_identity(&identities, &context.informers, &ObjectKey::of(identity))
        })
        .watches_metadata(ApiResource::erase::<Secret>(&()), |secret, _| {
            owner::controller_of(secret)
                .filter(|owner| owner.kind == "AzureManagedControlPlane")
                .map(|owner| ObjectKey::new(secret.namespace.as_deref(), &owner.name))
                .into_iter()
                .collect()
        })
        .into_registration();
    caches.prepared(inner, move |metrics| {
        access.count_held(metrics);
        let (takeover, secrets) = (takeover.clone(), secrets.clone());
        metrics.count_held("aks_control_plane_takeovers", move || takeover.len());
        metrics.count_held("aks_control_plane_secrets", move || secrets.len());
    })
}

impl Kind for ControlPlanes {
    type Object = AzureManagedControlPlane;
    type Observed = Box<ReconcileContext>;
    type Action = Action;
    type Error = Error;

    const BLOCKS_MOVE: bool = true;

    fn finalizer(_: &AzureManagedControlPlane) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn conditions(status: &mut AzureManagedControlPlaneStatus) -> Option<&mut Vec<Condition>> {
        let v1beta2 = status.v1beta2.get_or_insert_with(V1Beta2Conditions::default);
        Some(&mut v1beta2.conditions)
    }

    async fn observe(
        &self,
        subject: &Subject<AzureManagedControlPlane>,
        context: &Context,
    ) -> Result<Box<ReconcileContext>, Error> {
        let timeout = context.settings.flags.duration(POOL_WAIT_FLAG);
        let sources = Sources {
            access: &self.access,
            caches: &self.caches,
            takeover: &self.takeover,
            secrets: &self.secrets,
            pool_timeout: timeout.unwrap_or(POOL_WAIT),
        };
        observe::observe(subject, &sources, context).await.map(Box::new)
    }

    fn plan(reconcile: &Box<ReconcileContext>, now: Timestamp) -> Plan<Action> {
        let plan = plan::plan(&reconcile.observed, now);
        revisit(plan, &reconcile.observed.plane.metadata)
    }

    /// A resource group is not deleted before it is known who else is in it.
    fn needs_confirmation(reconcile: &Box<ReconcileContext>, plan: &Plan<Action>) -> bool {
        !plan::unconfirmed_groups(&reconcile.observed, plan).is_empty()
    }

    async fn confirm(
        &self,
        _: &Subject<AzureManagedControlPlane>,
        mut reconcile: Box<ReconcileContext>,
        context: &Context,
    ) -> Result<Box<ReconcileContext>, Error> {
        let plan = plan::plan(&reconcile.observed, context.clock.now());
        for group in plan::unconfirmed_groups(&reconcile.observed, &plan) {
            observe::list_others(&mut reconcile, &group).await?;
        }
        Ok(reconcile)
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<AzureManagedControlPlane>,
        reconcile: &mut Box<ReconcileContext>,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, reconcile, &self.takeover, context).await
    }

    fn follow_up(reconcile: &Box<ReconcileContext>, progress: &ProgressOf<Self>) -> Plan<Action> {
        plan::follow_up(&reconcile.observed, progress)
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
    ) -> AzureManagedControlPlaneStatus {
        status::after(&reconcile.observed, progress, &reconcile.steps, now)
    }

    fn forget(&self, key: &ObjectKey, _: &Context) {
        self.access.forget(key);
        self.takeover.forget(key);
        self.secrets.forget(key);
    }
}
