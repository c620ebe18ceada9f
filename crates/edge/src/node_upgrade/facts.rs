//! What a NodeUpgrade is decided from. Everything that was read, and nothing else; what could not be read is a fact too.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    api::{NodeUpgradeSpec, Phase},
    drain::Pods,
};
use crate::{
    upgrade_policy::{api::UpgradePolicySpec, judge::Member},
    version::Version,
};

#[derive(Clone, Debug)]
pub struct Facts {
    pub spec: NodeUpgradeSpec,
    /// What the orders' ids begin with: the object's uid.
    pub id: String,
    /// When the upgrade was asked for.
    pub created: Option<Timestamp>,
    pub is_deleting: bool,
    /// The NodeUpgrade that takes its place.
    pub newer: Option<String>,
    pub recorded: Recorded,
    /// `None`: there is no such Machine.
    pub machine: Option<MachineFacts>,
    pub host: HostFacts,
    /// `None`: the node is not there, or its cluster does not answer.
    pub node: Option<NodeFacts>,
    pub cluster: ClusterFacts,
    /// `None`: it is not its turn to ask yet.
    pub fleet: Option<FleetFacts>,
}

/// What the object itself says of earlier reconciles. Losing it costs time and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    pub phase: Phase,
    pub message: String,
    pub drain_aborted_at: Option<Timestamp>,
    /// Why the host was told to go back.
    pub rollback_reason: Option<String>,
}

/// From what it follows whose turn it is.
#[derive(Clone, Debug)]
pub struct FleetFacts {
    /// The name of the UpgradePolicy if there is none of that name.
    pub policy: Result<UpgradePolicySpec, String>,
    /// Everybody on the way to the same image in the same Cluster by the same policy, this machine among them.
    pub members: Vec<Member>,
    /// How many places had been given when this was read.
    pub given: u64,
    /// What the policy wants to be well and is not; `None`: nobody has looked.
    pub unhealthy: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    pub uid: String,
    pub is_deleting: bool,
    /// This upgrade keeps health checks off it, since then.
    pub kept_off_since: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostFacts {
    Unreachable { why: String },
    Reached(Box<ReachedHost>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReachedHost {
    pub booted: Option<SlotFacts>,
    /// A person works on it, or the EdgeHost says so.
    pub maintenance: Option<String>,
    /// The last order of each kind that this upgrade gave.
    pub orders: BTreeMap<Order, OrderFacts>,
    /// Why the host does not take this image, where it says so.
    pub quarantined: Option<String>,
    /// It has begun to write a slot for this upgrade, and has neither booted it nor given it up.
    pub holds_slot: bool,
    /// It has booted the slot of this upgrade and left it again, for this reason.
    pub left_because: Option<String>,
    /// The image is kept in its cache for this upgrade.
    pub is_pinned: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotFacts {
    pub name: String,
    /// Its image: by the digest that the upgrade names if it is that one, as slots call it if it is another.
    pub image: String,
    /// Confirmed: not on trial.
    pub is_good: bool,
}

/// The orders of an upgrade, in the order they are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    Ensure,
    Prepare,
    Snapshot,
    Arm,
    Kubernetes,
    Rollback,
}

impl Order {
    pub const ALL: [Self; 6] = [
        Self::Ensure,
        Self::Prepare,
        Self::Snapshot,
        Self::Arm,
        Self::Kubernetes,
        Self::Rollback,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ensure => "ensure",
            Self::Prepare => "prepare",
            Self::Snapshot => "snapshot",
            Self::Arm => "arm",
            Self::Kubernetes => "kubernetes",
            Self::Rollback => "rollback",
        }
    }

    /// The operation's id on the host: the same for the same try, whoever sends it.
    pub fn id(self, upgrade: &str, attempt: u32) -> String {
        format!("{upgrade}-{}-{attempt}", self.name())
    }

    /// Which order of an upgrade, and which try of it, an operation is.
    pub fn of(operation: &str, upgrade: &str) -> Option<(Self, u32)> {
        let (name, attempt) = operation
            .strip_prefix(upgrade)?
            .strip_prefix('-')?
            .rsplit_once('-')?;
        let order = Self::ALL.into_iter().find(|order| order.name() == name)?;
        Some((order, attempt.parse().ok()?))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderFacts {
    pub attempt: u32,
    pub state: OrderState,
    pub message: String,
    /// Of what is written or fetched.
    pub percent: Option<u32>,
    pub accepted_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderState {
    Running,
    Succeeded,
    /// The same may succeed later.
    FailedForNow,
    /// Something has to change first.
    FailedForGood,
    /// The agent was restarted under it: the same id again goes on.
    Interrupted,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    pub is_ready: bool,
    pub kubelet_version: String,
    pub is_cordoned: bool,
    /// This upgrade has cordoned it, then.
    pub cordoned_by_us: Option<Timestamp>,
    pub pods: Pods,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFacts {
    /// The oldest apiserver.
    pub control_plane: Option<Version>,
    /// The oldest kubelet among the workers.
    pub oldest_worker: Option<Version>,
    /// Members of the etcd that runs on the machines; 0: it runs elsewhere.
    pub etcd_members: usize,
    /// `kubeadm upgrade apply` of the target version was run on some server.
    pub is_applied: bool,
}

impl Facts {
    /// Before this upgrade: what the node reports, or nothing.
    pub fn running_version(&self) -> Option<Version> {
        self.node.as_ref()?.kubelet_version.parse().ok()
    }

    /// The host was told to boot another slot, or may have been: the machine is hidden from health checks just before.
    pub fn may_be_rebooting(&self) -> bool {
        let is_hidden = |machine: &MachineFacts| machine.kept_off_since.is_some();
        self.recorded.phase >= Phase::Rebooting || self.machine.as_ref().is_some_and(is_hidden)
    }

    pub fn reached(&self) -> Option<&ReachedHost> {
        match &self.host {
            HostFacts::Reached(host) => Some(host),
            HostFacts::Unreachable { .. } => None,
        }
    }
}

impl ReachedHost {
    pub fn order(&self, order: Order) -> Option<&OrderFacts> {
        self.orders.get(&order)
    }

    /// It runs this image, confirmed.
    pub fn runs(&self, digest: &str) -> bool {
        self.booted
            .as_ref()
            .is_some_and(|slot| slot.is_good && slot.image == digest)
    }

    /// It has booted this image, on trial or confirmed.
    pub fn has_booted(&self, digest: &str) -> bool {
        self.booted.as_ref().is_some_and(|slot| slot.image == digest)
    }
}
