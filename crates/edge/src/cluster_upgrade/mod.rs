//! ClusterUpgrade: one cluster brought to one version, control plane first. On the frame: joins `observe`, `plan`, `act` and `status`, and
//! registers the controller.

pub mod act;
pub mod admit;
pub mod api;
pub mod facts;
mod halt;
pub mod observe;
pub mod plan;
pub mod status;
mod stop;

use jiff::Timestamp;
use kube::ResourceExt;
use slipway_capi::{
    condition::Condition,
    frame::{Attempt, Frame, Kind, Membership, Plan, ProgressOf, Subject},
    owner,
    view::{Cluster, Machine, MachineDeployment},
};
use slipway_runtime::{
    Class, Classified, Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration,
};

use self::{
    api::{ClusterUpgrade, ClusterUpgradeStatus},
    observe::Observed,
    plan::Action,
};
use crate::{
    api::{EdgeMachine, EdgeMachineTemplate, NodeUpgrade, UpgradePolicy},
    error::Error,
    upgrade_policy::PolicyChanges,
};

struct ClusterUpgrades;

pub fn registration() -> Registration {
    let policies = PolicyChanges::default();
    Controller::new("clusterupgrade", Frame::new(ClusterUpgrades))
        .watches::<Cluster>(|cluster, context| {
            of_cluster(
                cluster.metadata.namespace.as_deref(),
                cluster.metadata.name.as_deref(),
                context,
            )
        })
        .watches::<MachineDeployment>(|deployment, context| {
            let name = Some(deployment.spec.cluster_name.as_str());
            of_cluster(deployment.metadata.namespace.as_deref(), name, context)
        })
        .watches::<Machine>(|machine, context| {
            let name = Some(machine.spec.cluster_name.as_str());
            of_cluster(machine.metadata.namespace.as_deref(), name, context)
        })
        .watches::<EdgeMachine>(|machine, context| {
            let name = owner::cluster_name(&machine.metadata);
            of_cluster(machine.namespace().as_deref(), name, context)
        })
        .watches::<EdgeMachineTemplate>(|template, context| {
            of_namespace(template.namespace().as_deref(), context)
        })
        .watches::<NodeUpgrade>(|upgrade, context| {
            let machines: Informer<Machine> = context.informers.get(Scope::of_namespace(&context.settings));
            let machine = machines.get(&ObjectKey::of(upgrade).sibling(&upgrade.spec.machine_name));
            let name = machine.as_ref().map(|machine| machine.spec.cluster_name.as_str());
            of_cluster(upgrade.namespace().as_deref(), name, context)
        })
        .watches::<UpgradePolicy>(move |policy, context| {
            if policies.is_news(policy, context) {
                of_namespace(policy.namespace().as_deref(), context)
            } else {
                Vec::new()
            }
        })
        .into_registration()
}

fn upgrades(context: &Context) -> Informer<ClusterUpgrade> {
    context.informers.get(Scope::of_namespace(&context.settings))
}

fn of_cluster(namespace: Option<&str>, name: Option<&str>, context: &Context) -> Vec<ObjectKey> {
    let found = upgrades(context)
        .index("cluster", |upgrade| {
            vec![owner::key(
                upgrade.namespace().as_deref(),
                &upgrade.spec.cluster_name,
            )]
        })
        .get(&owner::key(namespace, name.unwrap_or_default()));
    found.iter().map(|one| ObjectKey::of(one.as_ref())).collect()
}

fn of_namespace(namespace: Option<&str>, context: &Context) -> Vec<ObjectKey> {
    let found = upgrades(context)
        .index("namespace", |upgrade| upgrade.namespace().into_iter().collect())
        .get(namespace.unwrap_or_default());
    found.iter().map(|one| ObjectKey::of(one.as_ref())).collect()
}

impl Kind for ClusterUpgrades {
    type Object = ClusterUpgrade;
    type Observed = Observed;
    type Action = Action;
    type Error = Error;

    fn conditions(status: &mut ClusterUpgradeStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    /// It says itself that its Cluster is missing or paused.
    async fn membership(&self, _: &ClusterUpgrade, _: &Context) -> Result<Membership, Error> {
        Ok(Membership::Standalone)
    }

    async fn observe(&self, subject: &Subject<ClusterUpgrade>, context: &Context) -> Result<Observed, Error> {
        observe::observe(subject, context).await
    }

    fn plan(observed: &Observed, _: Timestamp) -> Plan<Action> {
        plan::decide(&observed.facts).plan
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<ClusterUpgrade>,
        observed: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, observed, context).await
    }

    fn status(observed: &Observed, progress: &ProgressOf<Self>, now: Timestamp) -> ClusterUpgradeStatus {
        // What passes by itself is tried again, and not worth a word.
        let failure = progress.actions().find_map(|(_, attempt)| match attempt {
            Attempt::Failed(failure) if !matches!(failure.class(), Class::Conflict | Class::Transient) => {
                Some(failure.to_string())
            }
            _ => None,
        });
        status::status(observed, failure.as_deref(), now)
    }
}
