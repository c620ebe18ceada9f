//! The membership model: voters and learners, the leader's tick, promotion and eviction, the removal controller, and
//! failures. Pure; time moves only when it is told to. What k3s does is taken from its source (pkg/etcd).

mod membership;
mod removal;
#[cfg(test)]
mod tests;
mod tick;

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

/// How often the etcd leader looks after its members.
pub const TICK: Duration = Duration::from_secs(15);
/// How long a learner may make no progress before it is evicted.
pub const LEARNER_STALL: Duration = Duration::from_mins(5);
/// How often an unchanged condition is written again.
pub const HEARTBEAT: Duration = Duration::from_mins(5);
/// How long a silent kubelet stays ready.
pub const NODE_GRACE: Duration = Duration::from_secs(40);

/// How long things take. As k3s has them unless a test is in a hurry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub tick: Duration,
    pub learner_stall: Duration,
    pub heartbeat: Duration,
    pub node_grace: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            tick: TICK,
            learner_stall: LEARNER_STALL,
            heartbeat: HEARTBEAT,
            node_grace: NODE_GRACE,
        }
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::ZERO)
}

pub const MEMBER_ANNOTATION: &str = "etcd.k3s.cattle.io/node-name";
pub const ADDRESS_ANNOTATION: &str = "etcd.k3s.cattle.io/node-address";
pub const REMOVE_ANNOTATION: &str = "etcd.k3s.cattle.io/remove";
pub const REMOVED_ANNOTATION: &str = "etcd.k3s.cattle.io/removed-node-name";

/// One host that runs, or ran, k3s.
#[derive(Clone, Debug)]
pub struct Host {
    pub alive: bool,
    pub address: String,
    pub version: String,
    pub silent_since: Option<Timestamp>,
    /// etcd has raised NOSPACE on it.
    pub alarm: bool,
    pub server: bool,
}

/// One member of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    /// Empty until it has started.
    pub name: String,
    pub learner: bool,
    pub address: String,
    pub host: String,
    pub last_progress: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoterCondition {
    pub status: bool,
    pub reason: &'static str,
    pub message: String,
    pub heartbeat: Timestamp,
    pub transition: Timestamp,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub created_at: Timestamp,
    pub ready: bool,
    pub ready_since: Timestamp,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub provider_id: Option<String>,
    pub kubelet_version: String,
    pub voter: Option<VoterCondition>,
    pub unschedulable: bool,
    /// Counts writes, for watches.
    pub revision: u64,
}

/// One cluster.
#[derive(Clone, Debug)]
pub struct Model {
    pub now: Timestamp,
    pub hosts: BTreeMap<String, Host>,
    pub members: Vec<Member>,
    pub nodes: BTreeMap<String, Node>,
    pub leader: Option<u64>,
    /// Whether etcd itself refuses to lose quorum; off, a controller's mistake shows.
    pub strict: bool,
    pub timing: Timing,
    pub revision: u64,
    next_id: u64,
    last_tick: Timestamp,
}

impl Model {
    pub fn new(now: Timestamp) -> Self {
        Self {
            now,
            hosts: BTreeMap::new(),
            members: Vec::new(),
            nodes: BTreeMap::new(),
            leader: None,
            strict: true,
            timing: Timing::default(),
            revision: 1,
            next_id: 1,
            last_tick: now,
        }
    }

    pub fn voters(&self) -> usize {
        self.members.iter().filter(|member| !member.learner).count()
    }

    /// Voters whose host is alive.
    pub fn healthy_voters(&self) -> usize {
        self.members
            .iter()
            .filter(|member| !member.learner && self.is_alive(member))
            .count()
    }

    pub fn quorum(&self) -> usize {
        self.voters() / 2 + 1
    }

    pub fn has_quorum(&self) -> bool {
        self.voters() > 0 && self.healthy_voters() >= self.quorum()
    }

    fn is_alive(&self, member: &Member) -> bool {
        self.hosts.get(&member.host).is_some_and(|host| host.alive)
    }

    fn touch(&mut self, node: &str) {
        self.revision += 1;
        let revision = self.revision;
        if let Some(node) = self.nodes.get_mut(node) {
            node.revision = revision;
        }
    }

    /// Sets or removes an annotation of a node, as a merge patch does, and lets the removal controller see it.
    pub fn annotate(&mut self, node: &str, key: &str, value: Option<&str>) -> bool {
        let Some(entry) = self.nodes.get_mut(node) else {
            return false;
        };
        match value {
            Some(value) => {
                entry.annotations.insert(key.to_owned(), value.to_owned());
            }
            None => {
                entry.annotations.remove(key);
            }
        }
        self.touch(node);
        self.run_removals();
        true
    }

    /// A node object somebody creates by hand.
    pub fn create_node(
        &mut self,
        name: &str,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
    ) {
        let now = self.now;
        self.nodes.entry(name.to_owned()).or_insert(Node {
            created_at: now,
            ready: false,
            ready_since: now,
            labels,
            annotations,
            provider_id: None,
            kubelet_version: String::new(),
            voter: None,
            unschedulable: true,
            revision: 0,
        });
        self.touch(name);
        self.run_removals();
    }
}
