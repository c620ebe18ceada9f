//! Every read of a NodeUpgrade: its machine, its host, its node, and how far the others are.

use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Client, ResourceExt};
use slipway_agent_api::{Problem, proto::Operation};
use slipway_capi::{condition, frame::Subject, view::Machine};
use slipway_runtime::{Context, Informer, ObjectKey, Scope};

use super::{
    Upgrades, annotations,
    api::{Distribution, NodeUpgrade, Role},
    facts::{ClusterFacts, Facts, FleetFacts, HostFacts, MachineFacts, NodeFacts, Recorded},
    fleet,
    plan::{Decision, decide},
    reading::{Answers, reached},
    status::SETTLED,
    workload,
};
use crate::{
    api::UpgradePolicy,
    error::Error,
    host::{api::EdgeHost, status as host_status},
    hosts::{HostAddress, Hosts},
    upgrade_policy::api::UpgradePolicySpec,
    version::Version,
};

pub struct Observed {
    pub upgrade: NodeUpgrade,
    pub facts: Facts,
    /// When it was read: plan and status are decided by the same time.
    now: Timestamp,
    decided: OnceLock<Decision>,
    pub machine: Option<Arc<Machine>>,
    /// Where its host is, if there is such a host.
    pub host: Option<HostAddress>,
    /// The host's operations that are this upgrade's.
    pub operations: Vec<Operation>,
    pub node: Option<Node>,
    pub client: Option<Client>,
    /// What could not be looked at, so that nobody knows whether something of the upgrade is left there.
    pub unknown: Option<String>,
    /// Nothing of it is left anywhere, and its status says so.
    pub was_settled: bool,
    /// Why the host did not take an order.
    pub refused: Option<String>,
}

impl Observed {
    /// What follows from the facts, the same for the plan and the status.
    pub fn decision(&self) -> &Decision {
        self.decided.get_or_init(|| decide(&self.facts, self.now))
    }

    /// The upgrade has ended, and nothing of it is left on host, node and machine.
    pub fn is_settled(&self) -> bool {
        let decision = self.decision();
        self.was_settled
            || (decision.phase.is_terminal()
                && decision.plan.actions().next().is_none()
                && self.unknown.is_none())
    }
}

pub async fn observe(
    upgrades: &Upgrades,
    subject: &Subject<NodeUpgrade>,
    context: &Context,
) -> Result<Observed, Error> {
    let upgrade = subject.object.as_ref();
    let facts = Facts {
        spec: upgrade.spec.clone(),
        id: upgrade.uid().unwrap_or_default(),
        created: upgrade.metadata.creation_timestamp.as_ref().map(|time| time.0),
        is_deleting: subject.is_deleting(),
        newer: None,
        recorded: recorded(upgrade),
        machine: None,
        host: HostFacts::Unreachable { why: String::new() },
        node: None,
        cluster: ClusterFacts::default(),
        fleet: None,
    };
    let status = upgrade.status.as_ref();
    let was_settled = status.is_some_and(|status| {
        condition::find(&status.conditions, SETTLED).is_some_and(|found| found.status == "True")
    });
    let mut observed = Observed {
        upgrade: upgrade.clone(),
        facts,
        now: context.clock.now(),
        decided: OnceLock::new(),
        machine: None,
        host: None,
        operations: Vec::new(),
        node: None,
        client: None,
        unknown: None,
        was_settled,
        refused: None,
    };
    if !was_settled {
        read(upgrades, subject, &mut observed, context).await?;
        observed.facts.fleet = fleet(upgrades, &observed, context);
    }
    Ok(observed)
}

fn recorded(upgrade: &NodeUpgrade) -> Recorded {
    let status = upgrade.status.clone().unwrap_or_default();
    Recorded {
        phase: status.phase,
        message: status.message,
        drain_aborted_at: status.drain_aborted_at.map(|time| time.0),
        rollback_reason: status.rollback_reason,
    }
}

async fn read(
    upgrades: &Upgrades,
    subject: &Subject<NodeUpgrade>,
    observed: &mut Observed,
    context: &Context,
) -> Result<(), Error> {
    let (spec, key) = (observed.facts.spec.clone(), subject.key());
    let id = observed.facts.id.clone();
    observed.machine = informer::<Machine>(context).get(&key.sibling(&spec.machine_name));
    observed.facts.machine = observed.machine.as_ref().map(|machine| MachineFacts {
        uid: machine.uid().unwrap_or_default(),
        is_deleting: machine.is_deleting(),
        kept_off_since: annotations::kept_off_since(machine, &id),
    });
    // Another Machine of its name has upgrades of its own.
    let machine = observed
        .machine
        .clone()
        .filter(|machine| machine.uid().as_ref() == Some(&spec.machine_uid));
    observed.facts.newer = fleet::newer(
        &observed.upgrade,
        &of_machine(context).get(&super::machine_key(&observed.upgrade)),
    );
    let host = informer::<EdgeHost>(context).get(&key.sibling(&spec.host_name));
    observed.host = host.as_deref().map(HostAddress::of);
    match host.as_deref().ok_or_else(|| missing(&spec.host_name)) {
        Ok(host) => match whose(host, machine.as_deref()) {
            Some(why) => unreachable(observed, why),
            None => ask(upgrades.platform.hosts.as_ref(), host, observed).await,
        },
        Err(why) => observed.facts.host = HostFacts::Unreachable { why },
    }
    let Some(machine) = machine else {
        return Ok(());
    };
    observed.facts.cluster = cluster_facts(&machine, context);
    let is_going = machine.is_deleting() || subject.cluster.is_none();
    if let Err(error) = read_node(upgrades, &machine, observed, context).await {
        tracing::debug!(upgrade = %key, %error, "The node cannot be looked at");
        // A node that goes with its machine or its cluster need not be taken care of.
        if !is_going {
            observed.unknown.get_or_insert(error.to_string());
        }
    }
    Ok(())
}

fn informer<K>(context: &Context) -> Informer<K>
where
    K: slipway_runtime::informer::Object + kube::Resource<DynamicType = ()>,
{
    context.informers.get(Scope::of_namespace(&context.settings))
}

pub fn of_machine(context: &Context) -> slipway_runtime::informer::Index<NodeUpgrade> {
    informer::<NodeUpgrade>(context).index("machine", |upgrade| vec![super::machine_key(upgrade)])
}

fn missing(host: &str) -> String {
    format!("there is no EdgeHost {host}")
}

/// Why the host is not to be given orders for this machine.
fn whose(host: &EdgeHost, machine: Option<&Machine>) -> Option<String> {
    if host_status::is_taken(host) {
        return Some("the host is another EdgeHost's".to_owned());
    }
    // What is taken back when the machine is gone concerns this upgrade alone, whoever has the host by now.
    let machine = machine?;
    let name = &machine.spec.infrastructure_ref.name;
    let has_it = |claim: &crate::host::api::Claim| claim.name == *name;
    (!host.spec.claim.as_ref().is_some_and(has_it))
        .then(|| format!("EdgeMachine {name} does not have the host"))
}

fn unreachable(observed: &mut Observed, why: String) {
    observed.unknown = Some(format!("host {}: {why}", observed.facts.spec.host_name));
    observed.facts.host = HostFacts::Unreachable { why };
}

async fn ask(hosts: &dyn Hosts, host: &EdgeHost, observed: &mut Observed) {
    let place = HostAddress::of(host);
    let answers = async {
        let inventory = hosts.inventory(&place).await?;
        let operations = hosts.operations(&place).await?;
        let images = hosts.images(&place).await?;
        Ok::<_, Problem>((inventory, operations, images))
    };
    match answers.await {
        Err(problem) => unreachable(observed, problem.message),
        Ok((inventory, mut operations, images)) => {
            let answers = Answers {
                host: &inventory,
                operations: &operations,
                images: &images,
                maintenance: host.spec.maintenance.as_deref(),
            };
            let (id, digest) = (&observed.facts.id, &observed.facts.spec.image.digest);
            let facts = reached(answers, id, digest);
            operations.retain(|operation| operation.id.starts_with(id.as_str()));
            observed.facts.host = HostFacts::Reached(Box::new(facts));
            observed.operations = operations;
        }
    }
}

/// From what core says of the cluster's machines: kubelets are never newer than the apiserver beside them.
fn cluster_facts(machine: &Machine, context: &Context) -> ClusterFacts {
    let machines = super::of_cluster(context).get(&super::cluster_key(machine));
    let version = |machine: &Arc<Machine>| machine.status.node_info.kubelet_version.parse::<Version>().ok();
    let (servers, workers): (Vec<_>, Vec<_>) =
        machines.iter().partition(|machine| machine.is_control_plane());
    ClusterFacts {
        control_plane: servers
            .iter()
            .filter_map(|machine| version(machine))
            .min_by(Version::compare),
        oldest_worker: workers
            .iter()
            .filter_map(|machine| version(machine))
            .min_by(Version::compare),
        etcd_members: servers.len(),
        is_applied: false,
    }
}

async fn read_node(
    upgrades: &Upgrades,
    machine: &Machine,
    observed: &mut Observed,
    context: &Context,
) -> Result<(), Error> {
    let Some(name) = machine.node_name() else {
        return Ok(());
    };
    let cluster = ObjectKey::new(machine.metadata.namespace.as_deref(), &machine.spec.cluster_name);
    let client = upgrades.workloads.client(&cluster, context).await?;
    let Some(node) = workload::node(&client, name).await? else {
        return Ok(());
    };
    let facts = &mut observed.facts;
    let node_facts: NodeFacts = workload::node_facts(&client, &node, &facts.spec, &facts.id).await?;
    let is_server = facts.spec.role == Role::ControlPlane;
    if is_server && facts.cluster.etcd_members == 1 {
        let has_etcd = workload::has_etcd(&client, &node, facts.spec.distribution).await?;
        facts.cluster.etcd_members = usize::from(has_etcd);
    }
    if is_server && facts.spec.distribution == Distribution::Kubeadm {
        facts.cluster.is_applied = workload::is_applied(&client, &facts.spec.version).await?;
    }
    facts.node = Some(node_facts);
    observed.node = Some(node);
    observed.client = Some(client);
    Ok(())
}

/// Whom the policy is asked about, once the slot is written: before, it takes no place.
fn fleet(upgrades: &Upgrades, observed: &Observed, context: &Context) -> Option<FleetFacts> {
    let host = observed.facts.reached()?;
    if host.maintenance.is_some() || !host.holds_slot {
        return None;
    }
    let upgrade = &observed.upgrade;
    let policy = match &upgrade.spec.policy_name {
        None => Ok(UpgradePolicySpec::default()),
        Some(name) => {
            let found = informer::<UpgradePolicy>(context).get(&ObjectKey::of(upgrade).sibling(name));
            found
                .map(|policy| policy.spec.clone())
                .ok_or_else(|| name.clone())
        }
    };
    let machines = super::of_cluster(context).get(&super::cluster_key(observed.machine.as_ref()?));
    let all = super::of_image(context).get(&super::image_key(upgrade));
    // Places before statuses: whoever gives one back has written its status.
    let (places, given) = upgrades.places.look();
    Some(FleetFacts {
        policy,
        members: fleet::members(upgrade, &all, &machines, &places),
        given,
        unhealthy: None,
    })
}

/// Looks at what the policy wants to be well. What cannot be looked at is not.
pub async fn look_at_health(observed: &mut Observed) {
    let client = observed.client.clone();
    let Some(fleet) = observed.facts.fleet.as_mut() else {
        return;
    };
    let gates = fleet.policy.as_ref().map(|policy| policy.health_gates.clone());
    let unhealthy = match &client {
        Some(client) => workload::unhealthy(client, &gates.unwrap_or_default(), fleet.disturbed()).await,
        None => Ok(vec!["the cluster does not answer".to_owned()]),
    };
    observed.decided = OnceLock::new();
    fleet.unhealthy = Some(unhealthy.unwrap_or_else(|error| vec![error.to_string()]));
}
