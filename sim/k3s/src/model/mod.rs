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
/// How long it takes a learner to catch up. The leader's next tick after that promotes it.
pub const CATCH_UP: Duration = Duration::from_secs(1);
/// How often a kubelet renews its lease.
pub const LEASE: Duration = Duration::from_secs(10);
/// How long after a node registered k3s writes etcd's label and annotations to it.
pub const ANNOTATIONS: Duration = Duration::from_secs(3);
/// How long a host keeps running after it was told to go.
pub const SHUTDOWN: Duration = Duration::from_secs(30);
/// How long it takes k3s on a host whose member was removed to end, be started again and join again.
pub const REJOIN: Duration = Duration::from_secs(20);
/// How long etcd wants a member to be connected before it counts on it.
const CONNECTED: Duration = Duration::from_secs(5);

/// How long things take. As k3s has them unless a test is in a hurry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub tick: Duration,
    pub learner_stall: Duration,
    pub heartbeat: Duration,
    pub node_grace: Duration,
    pub catch_up: Duration,
    pub lease: Duration,
    pub annotations: Duration,
    pub shutdown: Duration,
    pub rejoin: Duration,
}

impl Timing {
    /// As k3s has them.
    pub const K3S: Self = Self {
        tick: TICK,
        learner_stall: LEARNER_STALL,
        heartbeat: HEARTBEAT,
        node_grace: NODE_GRACE,
        catch_up: CATCH_UP,
        lease: LEASE,
        annotations: ANNOTATIONS,
        shutdown: SHUTDOWN,
        rejoin: REJOIN,
    };
    /// Quicker than k3s, so that nobody waits; slow enough to see things happen.
    pub const SHOWN: Self = Self {
        tick: Duration::from_secs(1),
        learner_stall: Duration::from_mins(1),
        heartbeat: Duration::from_mins(5),
        node_grace: Duration::from_secs(10),
        catch_up: Duration::from_millis(500),
        lease: Duration::from_secs(1),
        annotations: Duration::from_millis(50),
        ..Self::K3S
    };
    /// As quick as goes, so that what a test waits for is whoever manages it.
    pub const HURRIED: Self = Self {
        tick: Duration::from_millis(500),
        node_grace: Duration::from_secs(2),
        catch_up: Duration::ZERO,
        ..Self::SHOWN
    };
}

impl Default for Timing {
    fn default() -> Self {
        Self::K3S
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::ZERO)
}

pub const ETCD_ROLE: &str = "node-role.kubernetes.io/etcd";
pub const MEMBER_ANNOTATION: &str = "etcd.k3s.cattle.io/node-name";
pub const ADDRESS_ANNOTATION: &str = "etcd.k3s.cattle.io/node-address";
pub const REMOVE_ANNOTATION: &str = "etcd.k3s.cattle.io/remove";
pub const REMOVED_ANNOTATION: &str = "etcd.k3s.cattle.io/removed-node-name";

/// How long a start of k3s waits that finds its member removed: a learner, and one that has voted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejoinWait {
    pub learner: Duration,
    pub voter: Duration,
}

/// One host that runs, or ran, k3s.
#[derive(Clone, Debug)]
pub struct Host {
    pub alive: bool,
    pub address: String,
    pub version: String,
    /// Cut off from every other host, and running.
    pub cut: bool,
    pub up_since: Timestamp,
    pub silent_since: Option<Timestamp>,
    /// It was told to go, and is gone then.
    pub leaves_at: Option<Timestamp>,
    /// Its member was removed while it ran: k3s ends, is started again, and joins again then.
    pub rejoins_at: Option<Timestamp>,
    /// How long a start of k3s waits on it that finds its member removed.
    pub rejoin_wait: RejoinWait,
    /// Its k3s has been up: its member voted.
    pub voted: bool,
    /// It started the cluster: its k3s knows no other server to join.
    pub first: bool,
    /// etcd has raised NOSPACE on it.
    pub alarm: bool,
    pub server: bool,
}

impl Host {
    pub fn is_connected(&self) -> bool {
        self.alive && !self.cut
    }
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
    pub joined_at: Timestamp,
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
    /// When its kubelet last renewed its lease, if it ever did.
    pub lease: Option<Timestamp>,
    /// When k3s writes etcd's label and annotations to it; none once they are there.
    pub annotates_at: Option<Timestamp>,
    /// Somebody deleted it, and k3s keeps it until its member is gone.
    pub deleting: bool,
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
        self.hosts.get(&member.host).is_some_and(Host::is_connected)
    }

    /// Voters that etcd's leader has been connected to for long enough to count on them.
    fn active_voters(&self) -> usize {
        self.members
            .iter()
            .filter(|member| !member.learner)
            .filter(|member| {
                self.leader == Some(member.id)
                    || self.hosts.get(&member.host).is_some_and(|host| {
                        host.is_connected() && self.now.duration_since(host.up_since) >= signed(CONNECTED)
                    })
            })
            .count()
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

    /// Somebody takes a label off a node. k3s puts etcd's back; the role comes back only with a start of k3s.
    pub fn remove_label(&mut self, node: &str, key: &str) -> bool {
        let removed = self
            .nodes
            .get_mut(node)
            .is_some_and(|node| node.labels.remove(key).is_some());
        self.touch(node);
        removed
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
            lease: None,
            annotates_at: None,
            deleting: false,
            revision: 0,
        });
        self.touch(name);
        self.run_removals();
    }
}
