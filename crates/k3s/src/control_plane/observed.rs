//! What is known of one control plane when a decision is made. Data only: every read has happened, and a read that
//! failed is a fact like any other.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::liveness::{Kubelet, Lease, Probe};
use crate::api::RolloutStrategyType;

/// Everything `plan` and `status` decide by.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    pub desired: Desired,
    pub cluster: ClusterFacts,
    /// The control plane itself is being deleted.
    pub deleting: bool,
    /// The first server has answered once.
    pub initialized: bool,
    /// The CAs and the token that joining servers need, by what is wrong with them.
    pub missing_secrets: Vec<String>,
    pub remediation_in_progress: Option<RemediationRecord>,
    /// The servers, those being deleted included.
    pub servers: Vec<Server>,
    /// Control-plane machines that belong to nobody.
    pub adoptable: Vec<Adoptable>,
    /// Control-plane machines that belong to somebody else.
    pub foreign: Vec<String>,
    /// Machines and machine pools of the cluster that are no servers.
    pub workers: usize,
    pub workload: Workload,
    /// What the update extension answered for a server, asked with the present spec.
    pub in_place_answers: BTreeMap<String, InPlaceAnswer>,
    /// What the servers were asked about last.
    pub question: Option<Question>,
}

/// An operation that waits for the servers to be heard from, because nothing but their leases can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub operation: String,
    pub asked_at: Timestamp,
}

/// What the user asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    pub replicas: usize,
    pub version: String,
    pub embedded_etcd: bool,
    pub strategy: RolloutStrategyType,
    pub max_surge: usize,
    pub remediation: RemediationLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemediationLimits {
    pub max_retry: Option<i32>,
    pub retry_period: Duration,
    pub min_healthy_period: Duration,
}

impl Default for RemediationLimits {
    fn default() -> Self {
        Self {
            max_retry: None,
            retry_period: Duration::ZERO,
            min_healthy_period: Duration::from_hours(1),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterFacts {
    pub deleting: bool,
    /// It is not there any more.
    pub gone: bool,
    pub infrastructure_ready: bool,
    pub endpoint_known: bool,
    /// The failure domains servers may be put into.
    pub failure_domains: Vec<String>,
    /// `spec.topology.version`, where the cluster is managed by a ClusterClass.
    pub topology_version: Option<String>,
    /// The step of a chained upgrade the topology controller is at.
    pub upgrade_step: Option<String>,
}

impl ClusterFacts {
    pub fn of_one_that_is_gone() -> Self {
        Self {
            deleting: true,
            gone: true,
            ..Self::default()
        }
    }
}

/// One control-plane machine of ours, with what belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    pub name: String,
    pub created_at: Timestamp,
    pub deleted_at: Option<Timestamp>,
    pub version: Option<String>,
    pub node: Option<String>,
    pub failure_domain: Option<String>,
    /// Core says the machine is ready (its Ready condition).
    pub ready: bool,
    pub available: bool,
    pub health_check: HealthCheck,
    /// `cluster.x-k8s.io/remediate-machine`
    pub remediate_requested: bool,
    /// `cluster.x-k8s.io/delete-machine`
    pub delete_requested: bool,
    pub hooks: Hooks,
    /// Core has drained the node and waits for the pre-terminate hooks.
    pub waiting_for_hook: bool,
    pub in_place: InPlace,
    pub remediation_for: Option<RemediationRecord>,
    /// How the machine differs from what is asked for; empty if it does not.
    pub outdated: Vec<Outdated>,
    /// Where the platform says the machine is.
    pub addresses: Vec<String>,
    /// Its host was given something to boot with; without it k3s never starts there.
    pub has_bootstrap_data: bool,
    /// Its member was asked to leave: once none is listed, it has left.
    pub removal_asked: bool,
    /// Once its member is removed, its k3s does not join again before its host is gone.
    pub stays_out: bool,
    /// What its own API answered, where a decision needed to know.
    pub probe: Probe,
}

impl Server {
    pub fn is_deleting(&self) -> bool {
        self.deleted_at.is_some()
    }

    /// Nothing keeps its host any more, and it may still run.
    pub fn is_going(&self) -> bool {
        self.is_deleting() && !self.hooks.ours && !self.hooks.legacy
    }

    pub fn is_outdated(&self) -> bool {
        !self.outdated.is_empty()
    }
}

/// What a MachineHealthCheck says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthCheck {
    /// `HealthCheckSucceeded` is False.
    pub failed: bool,
    /// `OwnerRemediated` is False: the remediation is ours to do.
    pub ours_to_remediate: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    pub ours: bool,
    /// cluster-api-k3s' key, with its value.
    pub legacy: bool,
    /// Somebody else's pre-terminate hook.
    pub others: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InPlace {
    #[default]
    No,
    /// Decided, but not all objects carry the change yet: it must be carried to the end.
    HalfTriggered,
    /// Core is calling the update extension.
    Updating,
}

/// One way a machine differs from what is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outdated {
    Version { has: String, wants: String },
    Config { fields: Vec<String> },
    InfrastructureTemplate { has: String, wants: String },
    RolloutAfter,
    CertificatesExpire { at: Timestamp },
}

impl Outdated {
    /// Whether an update in place could bring the machine up to date.
    pub fn can_be_in_place(&self) -> bool {
        matches!(
            self,
            Self::Version { .. } | Self::Config { .. } | Self::InfrastructureTemplate { .. }
        )
    }
}

impl Outdated {
    /// Which field changes, from what to what, where it can be said in a word.
    pub fn difference(&self) -> Option<(&'static str, &str, &str)> {
        match self {
            Self::Version { has, wants } => Some(("spec.version", has, wants)),
            Self::InfrastructureTemplate { has, wants } => {
                Some(("spec.machineTemplate.spec.infrastructureRef.name", has, wants))
            }
            Self::Config { .. } | Self::RolloutAfter | Self::CertificatesExpire { .. } => None,
        }
    }
}

impl std::fmt::Display for Outdated {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version { has, wants } => write!(formatter, "version {has}, desired {wants}"),
            Self::Config { fields } => write!(formatter, "configuration differs in {}", fields.join(", ")),
            Self::InfrastructureTemplate { has, wants } => {
                write!(formatter, "made from template {has}, desired {wants}")
            }
            Self::RolloutAfter => formatter.write_str("older than the requested rollout"),
            Self::CertificatesExpire { at } => write!(formatter, "certificates expire at {at}"),
        }
    }
}

/// What the update extension says to updating one server in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InPlaceAnswer {
    Can,
    /// Not all of the change is covered; these fields are left over.
    Cannot(Vec<String>),
    /// No extension is registered.
    Nobody,
    /// The extension failed; nothing is decided.
    Failed(String),
}

impl InPlaceAnswer {
    /// For how long it is not asked again: nothing tells when the extension has learnt, answers again, or comes. `None`: for as long as
    /// the same is asked.
    pub fn stands(&self) -> Option<Duration> {
        match self {
            Self::Can => None,
            Self::Cannot(_) => Some(Duration::from_mins(5)),
            Self::Nobody => Some(Duration::from_mins(1)),
            Self::Failed(_) => Some(Duration::from_secs(30)),
        }
    }
}

/// What the annotations keep of a remediation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemediationRecord {
    pub machine: String,
    pub timestamp: Timestamp,
    #[serde(default)]
    pub retry_count: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adoptable {
    pub name: String,
    pub version: Option<String>,
    /// Its bootstrap config is a KThreesConfig.
    pub is_k3s: bool,
}

/// What the workload cluster says.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// Nobody has asked yet, or there is nobody to ask.
    Unknown,
    /// It stopped answering then.
    Unreachable {
        since: Timestamp,
    },
    Reachable(View),
}

impl Workload {
    pub fn view(&self) -> Option<&View> {
        match self {
            Self::Reachable(view) => Some(view),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The nodes that are servers by a label, an annotation or a machine; no label alone decides.
    pub nodes: Vec<Node>,
    /// `None` where the members could not be listed.
    pub members: Option<Vec<Member>>,
}

impl View {
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    pub name: String,
    pub ready: bool,
    pub not_ready_reason: String,
    pub registered_at: Timestamp,
    pub kubelet_version: Option<String>,
    /// The renewals of its lease, if there is one.
    pub lease: Option<Lease>,
    /// What its kubelet answered, where a decision needed to know.
    pub kubelet: Kubelet,
    pub address: Option<String>,
    /// The machine that core says the node belongs to.
    pub machine: Option<String>,
    /// A label or annotation of k3s says that it is a server.
    pub is_server: bool,
    /// k3s removes members only through nodes with this label.
    pub has_etcd_role: bool,
    /// `etcd.k3s.cattle.io/node-name`: the full name of the node's member.
    pub member: Option<String>,
    /// `etcd.k3s.cattle.io/removed-node-name`
    pub removed_member: Option<String>,
    /// `etcd.k3s.cattle.io/remove`
    pub removal_requested: bool,
    /// It was us who requested it.
    pub removal_is_ours: bool,
    pub voter: Option<VoterCondition>,
    /// The node was put there by us to have a member without a node removed.
    pub placeholder: bool,
}

/// The node condition `EtcdIsVoter`, which the etcd leader keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoterCondition {
    pub status: bool,
    pub reason: String,
    pub message: String,
    pub heartbeat: Timestamp,
}

/// One member of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Empty until the member has started.
    pub name: String,
    pub learner: bool,
    /// The host in its peer URL.
    pub address: String,
    /// Since when nobody can be its owner.
    pub orphaned_since: Option<Timestamp>,
    /// Its removal has been announced.
    pub announced: bool,
}
