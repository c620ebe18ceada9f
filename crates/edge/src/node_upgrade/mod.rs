//! NodeUpgrade: one host brought to one image in place, from the first byte in its cache to the node that is ready again. On the frame:
//! joins `observe`, `plan`, `act` and `status`, and registers the controller.

mod act;
pub mod admit;
pub mod annotations;
pub mod api;
mod disturb;
pub mod drain;
pub mod facts;
pub mod fleet;
pub mod observe;
pub mod plan;
pub mod reading;
pub mod status;
mod trial;
mod undo;
pub mod workload;

use jiff::Timestamp;
use kube::ResourceExt;
use slipway_capi::{
    condition::Condition,
    frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject},
    view::Machine,
};
use slipway_runtime::{
    Context, Controller, Informer, ObjectKey, Outcome, Scope, controller::Registration, informer::Index,
};

pub use self::plan::{Action, Decision, decide};
use self::{
    api::{NodeUpgrade, NodeUpgradeStatus, Phase},
    facts::FleetFacts,
    fleet::Places,
    observe::Observed,
    workload::Workloads,
};
use crate::{
    api::UpgradePolicy, error::Error, host::api::EdgeHost, hosts::Platform, upgrade_policy::PolicyChanges,
};

/// Keeps an upgrade until nothing of it is left on host, node and machine.
pub const FINALIZER: &str = "nodeupgrade.edge.slipway.dev";
/// How many upgrades that wait are looked at when another ends. Whoever else may go finds out by itself.
const MOST_WOKEN: usize = 16;

pub struct Upgrades {
    platform: Platform,
    workloads: Workloads,
    places: Places,
}

pub fn registration(platform: &Platform) -> Registration {
    let kind = Upgrades {
        platform: platform.clone(),
        workloads: Workloads::new(platform.connector.clone()),
        places: Places::default(),
    };
    let policies = PolicyChanges::default();
    Controller::new("nodeupgrade", Frame::new(kind))
        .watches::<Machine>(|machine, context| {
            let key = key(machine.metadata.namespace.as_deref(), &machine.name_any());
            keys(&observe::of_machine(context), &key)
        })
        .watches::<EdgeHost>(|host, context| {
            let by_host = upgrades(context).index("host", |upgrade| {
                vec![key(
                    upgrade.metadata.namespace.as_deref(),
                    &upgrade.spec.host_name,
                )]
            });
            keys(
                &by_host,
                &key(host.metadata.namespace.as_deref(), &host.name_any()),
            )
        })
        .watches::<UpgradePolicy>(move |policy, context| {
            if !policies.is_news(policy, context) {
                return Vec::new();
            }
            let by_policy = upgrades(context).index("policy", |upgrade| {
                let name = upgrade.spec.policy_name.iter();
                name.map(|name| key(upgrade.metadata.namespace.as_deref(), name))
                    .collect()
            });
            keys(
                &by_policy,
                &key(policy.metadata.namespace.as_deref(), &policy.name_any()),
            )
        })
        .watches::<NodeUpgrade>(others)
        .into_registration()
}

fn key(namespace: Option<&str>, name: &str) -> String {
    format!("{}/{name}", namespace.unwrap_or_default())
}

fn machine_key(upgrade: &NodeUpgrade) -> String {
    key(upgrade.metadata.namespace.as_deref(), &upgrade.spec.machine_name)
}

fn image_key(upgrade: &NodeUpgrade) -> String {
    key(upgrade.metadata.namespace.as_deref(), &upgrade.spec.image.digest)
}

fn cluster_key(machine: &Machine) -> String {
    key(machine.metadata.namespace.as_deref(), &machine.spec.cluster_name)
}

fn upgrades(context: &Context) -> Informer<NodeUpgrade> {
    context.informers.get(Scope::of_namespace(&context.settings))
}

/// Upgrades to one image.
fn of_image(context: &Context) -> Index<NodeUpgrade> {
    upgrades(context).index("image", |upgrade| vec![image_key(upgrade)])
}

/// Machines of one Cluster.
fn of_cluster(context: &Context) -> Index<Machine> {
    let machines: Informer<Machine> = context.informers.get(Scope::of_namespace(&context.settings));
    machines.index("edge cluster", |machine| vec![cluster_key(machine)])
}

/// The upgrades under a value of an index that have not been settled yet.
fn keys(index: &Index<NodeUpgrade>, value: &str) -> Vec<ObjectKey> {
    let found = index.get(value);
    found
        .iter()
        .map(|upgrade| ObjectKey::of(upgrade.as_ref()))
        .collect()
}

/// Whom the change of an upgrade concerns: those of the same machine, whose place it takes, and, when it has ended, those that wait in
/// line.
fn others(upgrade: &NodeUpgrade, context: &Context) -> Vec<ObjectKey> {
    let phase = |upgrade: &NodeUpgrade| {
        upgrade
            .status
            .as_ref()
            .map_or(Phase::Pending, |status| status.phase)
    };
    let of_machine = observe::of_machine(context).get(&machine_key(upgrade));
    let mut woken: Vec<ObjectKey> = of_machine
        .iter()
        .filter(|other| !phase(other).is_terminal())
        .map(|other| ObjectKey::of(other.as_ref()))
        .collect();
    if phase(upgrade).is_terminal() {
        let mut waiting = of_image(context).get(&image_key(upgrade));
        waiting.retain(|other| phase(other) == Phase::Prepared);
        waiting.sort_by_key(|other| other.spec.machine_name.clone());
        woken.extend(
            waiting
                .iter()
                .take(MOST_WOKEN)
                .map(|other| ObjectKey::of(other.as_ref())),
        );
    }
    woken.retain(|other| *other != ObjectKey::of(upgrade));
    woken
}

impl Kind for Upgrades {
    type Object = NodeUpgrade;
    type Observed = Observed;
    type Action = Action;
    type Error = Error;

    fn finalizer(_: &NodeUpgrade) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn conditions(status: &mut NodeUpgradeStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    /// To the Cluster of its Machine. One whose Machine is gone still has to be taken back.
    async fn membership(&self, upgrade: &NodeUpgrade, context: &Context) -> Result<Membership, Error> {
        let machines: Informer<Machine> = context.informers.get(Scope::of_namespace(&context.settings));
        let machine = machines.get(&ObjectKey::of(upgrade).sibling(&upgrade.spec.machine_name));
        Ok(machine.map_or(Membership::Standalone, |machine| {
            Membership::Of(machine.spec.cluster_name.clone())
        }))
    }

    async fn observe(&self, subject: &Subject<NodeUpgrade>, context: &Context) -> Result<Observed, Error> {
        observe::observe(self, subject, context).await
    }

    fn plan(observed: &Observed, _: Timestamp) -> Plan<Action> {
        plan::plan(observed)
    }

    /// What the policy wants to be well is looked at when somebody's turn comes, and not while it waits.
    fn needs_confirmation(observed: &Observed, plan: &Plan<Action>) -> bool {
        let fleet = observed.facts.fleet.as_ref();
        plan.actions().any(|action| *action == Action::TakePlace)
            && fleet.is_some_and(FleetFacts::is_to_be_looked_at)
    }

    async fn confirm(
        &self,
        _: &Subject<NodeUpgrade>,
        mut observed: Observed,
        _: &Context,
    ) -> Result<Observed, Error> {
        observe::look_at_health(&mut observed).await;
        Ok(observed)
    }

    async fn act(
        &self,
        action: &Action,
        _: &Subject<NodeUpgrade>,
        observed: &mut Observed,
        context: &Context,
    ) -> Result<Outcome, Error> {
        act::act(action, self, observed, context).await
    }

    fn status(observed: &Observed, _: &ProgressOf<Self>, now: Timestamp) -> NodeUpgradeStatus {
        status::status(observed, now)
    }

    fn remember(&self, subject: &Subject<NodeUpgrade>, observed: Observed, _: &ProgressOf<Self>) {
        if !observed.decision().keeps_place {
            self.places.give_back(&subject.key());
        }
    }

    fn forget(&self, key: &ObjectKey, _: &Context) {
        self.places.give_back(key);
    }
}
