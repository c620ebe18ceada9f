//! UpgradePolicy: in which order, when and how many hosts are upgraded, and when it stops. The controller says whether upgrades can go
//! by it and which do; who is disturbed when is decided by `judge`, for each NodeUpgrade.

pub mod admit;
pub mod api;
pub mod health;
pub mod judge;
pub mod path;
pub mod plan;
pub mod status;

use std::{collections::HashMap, convert::Infallible, sync::Arc};

use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use slipway_capi::{
    condition::Condition,
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
    owner,
};
use slipway_runtime::{
    Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration, informer,
};

use self::{
    api::{UpgradePolicy, UpgradePolicyStatus},
    plan::Observed,
};
use crate::{
    api::{ClusterUpgrade, NodeUpgrade},
    cluster_upgrade::api::ClusterUpgradePhase,
    error::Error,
};

struct UpgradePolicies;

pub fn registration() -> Registration {
    Controller::new("upgradepolicy", Frame::new(UpgradePolicies))
        .watches::<ClusterUpgrade>(|upgrade, _| {
            named(
                upgrade.namespace().as_deref(),
                upgrade.spec.policy_name.as_deref(),
            )
        })
        .watches::<NodeUpgrade>(|upgrade, _| {
            named(
                upgrade.namespace().as_deref(),
                upgrade.spec.policy_name.as_deref(),
            )
        })
        .into_registration()
}

/// A policy's uid and the generation of its spec.
type Asked = (Option<String>, Option<i64>);

/// Whether what a policy asks for is another than it was. What it says of itself changes with every upgrade that ends, and must not wake
/// the others.
#[derive(Clone, Default)]
pub struct PolicyChanges(Arc<Mutex<HashMap<ObjectKey, Asked>>>);

impl PolicyChanges {
    pub fn is_news(&self, policy: &UpgradePolicy, context: &Context) -> bool {
        let key = ObjectKey::of(policy);
        let is_there = informer::<UpgradePolicy>(context).get(&key).is_some();
        let mut seen = self.0.lock();
        if !is_there {
            seen.remove(&key);
            return true;
        }
        let asked = (policy.uid(), policy.metadata.generation);
        seen.insert(key, asked.clone()) != Some(asked)
    }
}

fn named(namespace: Option<&str>, policy: Option<&str>) -> Vec<ObjectKey> {
    policy
        .map(|name| ObjectKey::new(namespace, name))
        .into_iter()
        .collect()
}

fn informer<K: informer::Object<DynamicType = ()>>(context: &Context) -> Informer<K> {
    context.informers.get(Scope::of_namespace(&context.settings))
}

/// By what objects are found that name a policy.
fn by_policy(namespace: Option<&str>, policy: Option<&String>) -> Vec<String> {
    policy
        .map(|name| owner::key(namespace, name))
        .into_iter()
        .collect()
}

impl Kind for UpgradePolicies {
    type Object = UpgradePolicy;
    type Observed = Observed;
    type Action = Infallible;
    type Error = Error;

    fn conditions(status: &mut UpgradePolicyStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    /// It is for clusters by the dozen, and there before any of them.
    async fn membership(&self, _: &UpgradePolicy, _: &Context) -> Result<Membership, Error> {
        Ok(Membership::Standalone)
    }

    async fn observe(&self, subject: &Subject<UpgradePolicy>, context: &Context) -> Result<Observed, Error> {
        let object = subject.object.as_ref();
        let key = owner::key(object.namespace().as_deref(), &object.name_any());
        let clusters = informer::<ClusterUpgrade>(context)
            .index("policy", |upgrade| {
                by_policy(upgrade.namespace().as_deref(), upgrade.spec.policy_name.as_ref())
            })
            .get(&key);
        let nodes = informer::<NodeUpgrade>(context)
            .index("policy", |upgrade| {
                by_policy(upgrade.namespace().as_deref(), upgrade.spec.policy_name.as_ref())
            })
            .get(&key);
        let mut cluster_upgrades: Vec<String> = clusters
            .iter()
            .filter(|upgrade| {
                let phase = upgrade.status.as_ref().map(|status| status.phase);
                phase != Some(ClusterUpgradePhase::Done)
            })
            .map(|upgrade| upgrade.name_any())
            .collect();
        cluster_upgrades.sort();
        let has_ended = |upgrade: &NodeUpgrade| {
            let status = upgrade.status.as_ref();
            status.is_some_and(|status| status.phase.is_terminal())
        };
        Ok(Observed {
            object: object.clone(),
            cluster_upgrades,
            node_upgrades: nodes.iter().filter(|upgrade| !has_ended(upgrade)).count(),
        })
    }

    fn plan(observed: &Observed, _: Timestamp) -> Plan<Infallible> {
        plan::plan(observed)
    }

    async fn act(
        &self,
        action: &Infallible,
        _: &Subject<UpgradePolicy>,
        _: &mut Observed,
        _: &Context,
    ) -> Result<Outcome, Error> {
        match *action {}
    }

    fn status(observed: &Observed, progress: &ProgressOf<Self>, now: Timestamp) -> UpgradePolicyStatus {
        status::status(observed, progress.plan(), now)
    }
}
