//! AzureManagedCluster: the infrastructure of a Cluster is provisioned when its control plane's API server has an address.
//! It makes nothing in Azure, so it holds nothing back when it is deleted.

mod act;
pub mod admit;
pub mod api;
mod observe;
mod plan;
mod status;

use jiff::Timestamp;
use slipway_azure::reconcile::Error;
use slipway_capi::{
    annotations,
    condition::Condition,
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
};
use slipway_runtime::{
    Outcome,
    controller::{Context, Controller, Registration},
};

use self::{observe::Observed, plan::Action};
use crate::{
    api::{AzureManagedCluster, AzureManagedClusterStatus, V1Beta2Conditions},
    caches::Caches,
};

#[derive(Clone, Debug, Default)]
struct Clusters {
    caches: Caches,
}

pub fn registration() -> Registration {
    let caches = Caches::default();
    let kind = Clusters {
        caches: caches.clone(),
    };
    let inner = caches
        .watched_by_infrastructure(Controller::new("azuremanagedcluster", Frame::new(kind)))
        .into_registration();
    caches.prepared(inner, |_| ())
}

impl Kind for Clusters {
    type Object = AzureManagedCluster;
    type Observed = Observed;
    type Action = Action;
    type Error = Error;

    fn conditions(status: &mut AzureManagedClusterStatus) -> Option<&mut Vec<Condition>> {
        let v1beta2 = status.v1beta2.get_or_insert_with(V1Beta2Conditions::default);
        Some(&mut v1beta2.conditions)
    }

    async fn membership(&self, object: &AzureManagedCluster, _: &Context) -> Result<Membership, Error> {
        if annotations::is_externally_managed(&object.metadata) {
            return Ok(Membership::LeftAlone("somebody else manages it"));
        }
        Ok(Membership::by_owner(&object.metadata))
    }

    async fn observe(
        &self,
        subject: &Subject<AzureManagedCluster>,
        context: &Context,
    ) -> Result<Observed, Error> {
        Ok(observe::observe(subject, &self.caches, context))
    }

    fn plan(observed: &Observed, _: Timestamp) -> Plan<Action> {
        plan::plan(observed)
    }

    async fn act(
        &self,
        action: &Action,
        subject: &Subject<AzureManagedCluster>,
        _: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, &subject.object, context).await
    }

    fn status(observed: &Observed, _: &ProgressOf<Self>, now: Timestamp) -> AzureManagedClusterStatus {
        status::status(observed, now)
    }
}
