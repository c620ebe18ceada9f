//! Bootstrap: what a host is told at its first boot, and the KThreesConfig that asks for it.
//!
//! KThreesConfig on the frame: joins `observe`, `plan`, `act` and `status`, and registers the controller.

mod act;
pub mod admit;
pub mod api;
mod concern;
pub mod etcd_proxy;
pub mod k3s_config;
mod lock;
mod observe;
mod owner;
pub mod plan;
pub mod rejoin;
pub mod render;
mod status;
pub mod yaml;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;
use slipway_capi::{
    condition::Condition,
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
    owner as contract,
    view::{Cluster, Machine},
};
use slipway_runtime::{
    ObjectKey, Outcome,
    controller::{Context, Controller, Registration},
};

use self::{observe::Observed, owner::find_owner, plan::Action};
use crate::{
    api::{KThreesConfig, KThreesConfigStatus},
    error::Error,
};

#[derive(Debug, Default)]
pub struct Configs;

pub type ConfigReconciler = Frame<Configs>;

pub fn registration() -> Registration {
    let secrets = ApiResource::erase::<Secret>(&());
    Controller::new("kthreesconfig", ConfigReconciler::default())
        .watches::<Machine>(|machine, _| {
            machine
                .spec
                .bootstrap
                .config_ref
                .iter()
                .filter(|reference| reference.kind == "KThreesConfig")
                .map(|reference| ObjectKey::new(machine.metadata.namespace.as_deref(), &reference.name))
                .collect()
        })
        .watches::<Cluster>(concern::by_cluster)
        .watches_metadata(secrets, concern::by_secret)
        .into_registration()
}

impl Kind for Configs {
    type Object = KThreesConfig;
    type Observed = Observed;
    type Action = Action;
    type Error = Error;

    fn conditions(status: &mut KThreesConfigStatus) -> Option<&mut Vec<Condition>> {
        Some(status::v1beta2(status))
    }

    /// To the Cluster of its Machine or MachinePool. Core labels it, too, which saves reading the owner twice.
    async fn membership(&self, config: &KThreesConfig, context: &Context) -> Result<Membership, Error> {
        const UNOWNED: Membership = Membership::LeftAlone("no Machine or MachinePool owns it yet");
        let metadata = &config.metadata;
        let is_owned = contract::owner_machine_name(metadata).is_some()
            || contract::owner_machine_pool_name(metadata).is_some();
        if !is_owned {
            return Ok(UNOWNED);
        }
        if let Some(name) = contract::labelled_cluster_name(metadata) {
            return Ok(Membership::Of(name.to_owned()));
        }
        let owner = find_owner(config, context).await?;
        Ok(owner.map_or(UNOWNED, |owner| Membership::Of(owner.cluster)))
    }

    async fn observe(&self, subject: &Subject<KThreesConfig>, context: &Context) -> Result<Observed, Error> {
        observe::observe(subject, context).await
    }

    fn plan(observed: &Observed, _: Timestamp) -> Plan<Action> {
        plan::plan(observed)
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<KThreesConfig>,
        observed: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, observed, context).await
    }

    fn status(observed: &Observed, progress: &ProgressOf<Self>, now: Timestamp) -> KThreesConfigStatus {
        status::status(observed, progress, now)
    }
}
