//! The membership model: voters and learners, the leader's tick, promotion and eviction, the removal controller, and
//! failures. Pure; time moves only when it is told to. What k3s does is taken from its source (pkg/etcd).

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

    fn add_host(&mut self, name: &str, version: &str, server: bool) -> String {
        let address = format!("10.0.{}.{}", self.next_id / 250, self.next_id % 250 + 1);
        self.hosts.insert(
            name.to_owned(),
            Host {
                alive: true,
                address: address.clone(),
                version: version.to_owned(),
                silent_since: None,
                alarm: false,
                server,
            },
        );
        address
    }

    /// The first server comes up: a cluster of one voter.
    pub fn initialize(&mut self, host: &str, version: &str) {
        let address = self.add_host(host, version, true);
        self.join_etcd(host, address, false);
        self.register(host, version, true);
    }

    /// A further server joins as a learner. Without quorum it cannot.
    pub fn join(&mut self, host: &str, version: &str) -> bool {
        if !self.has_quorum() || self.members.iter().any(|member| member.learner) {
            return false;
        }
        let address = self.add_host(host, version, true);
        self.join_etcd(host, address, true);
        self.register(host, version, true);
        true
    }

    /// A server's member is added, and the host dies before it starts: a member without a name.
    pub fn join_and_die(&mut self, host: &str, version: &str) -> bool {
        if !self.has_quorum() || self.members.iter().any(|member| member.learner) {
            return false;
        }
        let address = self.add_host(host, version, true);
        self.join_etcd(host, address, true);
        if let Some(member) = self.members.last_mut() {
            member.name = String::new();
        }
        self.kill(host);
        true
    }

    /// A worker joins.
    pub fn join_worker(&mut self, host: &str, version: &str) -> bool {
        if !self.has_quorum() {
            return false;
        }
        self.add_host(host, version, false);
        self.register(host, version, false);
        true
    }

    fn join_etcd(&mut self, host: &str, address: String, learner: bool) {
        let id = self.next_id;
        self.next_id += 1;
        self.members.push(Member {
            id,
            name: format!("{host}-{id:08x}"),
            learner,
            address,
            host: host.to_owned(),
            last_progress: self.now,
        });
        if !learner {
            self.leader = Some(id);
        }
    }

    fn register(&mut self, host: &str, version: &str, server: bool) {
        let mut labels = BTreeMap::from([("kubernetes.io/hostname".to_owned(), host.to_owned())]);
        let mut annotations = BTreeMap::new();
        if server {
            labels.insert("node-role.kubernetes.io/control-plane".into(), "true".into());
            labels.insert("node-role.kubernetes.io/etcd".into(), "true".into());
            // k3s 1.34 dropped the older role.
            if minor(version) < 34 {
                labels.insert("node-role.kubernetes.io/master".into(), "true".into());
            }
            if let Some(member) = self.members.iter().find(|member| member.host == host) {
                annotations.insert(MEMBER_ANNOTATION.into(), member.name.clone());
                annotations.insert(ADDRESS_ANNOTATION.into(), member.address.clone());
            }
        }
        self.nodes.insert(
            host.to_owned(),
            Node {
                created_at: self.now,
                ready: true,
                ready_since: self.now,
                labels,
                annotations,
                provider_id: Some(format!("sim://{host}")),
                kubelet_version: version.to_owned(),
                voter: None,
                unschedulable: false,
                revision: 0,
            },
        );
        self.touch(host);
    }

    pub fn kill(&mut self, host: &str) {
        let now = self.now;
        if let Some(host) = self.hosts.get_mut(host) {
            host.alive = false;
            host.silent_since.get_or_insert(now);
        }
    }

    pub fn revive(&mut self, host: &str) {
        if let Some(host) = self.hosts.get_mut(host) {
            host.alive = true;
            host.silent_since = None;
        }
    }

    /// The host is gone for good.
    pub fn destroy(&mut self, host: &str) {
        self.hosts.remove(host);
    }

    /// k3s is replaced by another version on the same host.
    pub fn upgrade(&mut self, host: &str, version: &str) {
        if let Some(host) = self.hosts.get_mut(host) {
            version.clone_into(&mut host.version);
        }
        if let Some(node) = self.nodes.get_mut(host) {
            version.clone_into(&mut node.kubelet_version);
            if minor(version) >= 34 {
                node.labels.remove("node-role.kubernetes.io/master");
            }
        }
        self.touch(host);
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

    /// A node is deleted; k3s removes its member too, unless it was removed before.
    pub fn delete_node(&mut self, name: &str) {
        self.revision += 1;
        let Some(node) = self.nodes.remove(name) else {
            return;
        };
        let is_etcd = node.labels.contains_key("node-role.kubernetes.io/etcd");
        let removed = node
            .annotations
            .get(REMOVED_ANNOTATION)
            .is_some_and(|name| !name.is_empty());
        if is_etcd
            && !removed
            && self.has_quorum()
            && let (Some(member), Some(address)) = (
                node.annotations.get(MEMBER_ANNOTATION),
                node.annotations.get(ADDRESS_ANNOTATION),
            )
        {
            let _ = self.remove_member(&member.clone(), &address.clone());
        }
    }

    /// The removal controller, which runs where the leader is.
    fn run_removals(&mut self) {
        if !self.has_quorum() {
            return;
        }
        let requested: Vec<(String, String, String)> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.labels.contains_key("node-role.kubernetes.io/etcd"))
            .filter(|(_, node)| {
                node.annotations
                    .get(REMOVE_ANNOTATION)
                    .is_some_and(|value| value == "true")
            })
            .filter(|(_, node)| !node.annotations.contains_key(REMOVED_ANNOTATION))
            .filter_map(|(name, node)| {
                Some((
                    name.clone(),
                    node.annotations.get(MEMBER_ANNOTATION)?.clone(),
                    node.annotations.get(ADDRESS_ANNOTATION)?.clone(),
                ))
            })
            .collect();
        for (name, member, address) in requested {
            let outcome = self.remove_member(&member, &address);
            if let Some(node) = self.nodes.get_mut(&name) {
                match outcome {
                    Removal::NotEnoughStarted => {
                        node.annotations.remove(REMOVE_ANNOTATION);
                    }
                    Removal::Unhealthy => {}
                    Removal::Done => {
                        node.annotations.insert(REMOVED_ANNOTATION.into(), member);
                        node.annotations.remove(REMOVE_ANNOTATION);
                        node.annotations.remove(MEMBER_ANNOTATION);
                        node.annotations.remove(ADDRESS_ANNOTATION);
                    }
                }
            }
            self.touch(&name);
        }
    }

    fn remove_member(&mut self, name: &str, address: &str) -> Removal {
        let Some(index) = self
            .members
            .iter()
            .position(|member| member.name == name && member.address == address && !name.is_empty())
        else {
            return Removal::Done;
        };
        let member = self.members[index].clone();
        if !member.learner && self.voters() == 1 {
            return Removal::NotEnoughStarted;
        }
        if self.strict && !member.learner && self.is_alive(&member) {
            let voters = self.voters() - 1;
            if self.healthy_voters() - 1 < voters / 2 + 1 {
                return Removal::Unhealthy;
            }
        }
        self.members.remove(index);
        if self.leader == Some(member.id) {
            self.elect();
        }
        Removal::Done
    }

    fn elect(&mut self) {
        self.leader = if self.has_quorum() {
            self.members
                .iter()
                .find(|member| !member.learner && self.is_alive(member))
                .map(|member| member.id)
        } else {
            None
        };
    }

    /// Time passes. Ticks that fall into it run in order.
    pub fn advance(&mut self, by: Duration) {
        let until = self.now.saturating_add(signed(by)).unwrap_or(self.now);
        loop {
            let next = self
                .last_tick
                .saturating_add(signed(self.timing.tick))
                .unwrap_or(until);
            if next > until {
                break;
            }
            self.now = next;
            self.last_tick = next;
            self.tick();
        }
        self.now = until;
    }

    /// What the leader, the removal controller and the node controller do every fifteen seconds.
    pub fn tick(&mut self) {
        let leads = self
            .leader
            .and_then(|leader| self.members.iter().find(|member| member.id == leader))
            .is_some_and(|leader| !leader.learner && self.is_alive(leader));
        if !leads || !self.has_quorum() {
            self.elect();
        }
        if !self.has_quorum() {
            // Nobody can write: conditions, readiness and annotations stay as they were.
            return;
        }
        let (now, stall) = (self.now, signed(self.timing.learner_stall));
        for index in 0..self.members.len() {
            let alive = self.is_alive(&self.members[index]);
            let member = &mut self.members[index];
            if member.learner && alive {
                member.learner = false;
            }
        }
        self.members
            .retain(|member| !member.learner || now.duration_since(member.last_progress) <= stall);
        self.run_removals();
        self.judge_nodes();
    }

    fn judge_nodes(&mut self) {
        let now = self.now;
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            let silent = match self.hosts.get(&name) {
                None => true,
                Some(host) => host
                    .silent_since
                    .is_some_and(|since| now.duration_since(since) >= signed(self.timing.node_grace)),
            };
            let condition = self.voter_condition(&name);
            let node = self.nodes.get_mut(&name).expect("the name was just listed");
            let mut changed = false;
            if node.ready == silent {
                node.ready = !silent;
                node.ready_since = now;
                changed = true;
            }
            if let Some((status, reason, message)) = condition {
                let heartbeat = signed(self.timing.heartbeat);
                match &mut node.voter {
                    Some(present)
                        if present.status == status
                            && present.reason == reason
                            && present.message == message =>
                    {
                        if now.duration_since(present.heartbeat) >= heartbeat {
                            present.heartbeat = now;
                            changed = true;
                        }
                    }
                    present => {
                        *present = Some(VoterCondition {
                            status,
                            reason,
                            message,
                            heartbeat: now,
                            transition: now,
                        });
                        changed = true;
                    }
                }
            }
            if changed {
                self.touch(&name);
            }
        }
    }

    fn voter_condition(&self, node_name: &str) -> Option<(bool, &'static str, String)> {
        let node = self.nodes.get(node_name)?;
        if !node.labels.contains_key("node-role.kubernetes.io/etcd") {
            return None;
        }
        let named = node.annotations.get(MEMBER_ANNOTATION);
        let member = self.members.iter().find(|member| Some(&member.name) == named);
        Some(match member {
            None => (
                false,
                "NotAMember",
                "Node is not a member of the etcd cluster".into(),
            ),
            Some(member) if !self.is_alive(member) => (
                false,
                "Unhealthy",
                "failed to check etcd member status: context deadline exceeded".into(),
            ),
            Some(member) if self.hosts.get(&member.host).is_some_and(|host| host.alarm) => (
                false,
                "Unhealthy",
                "etcd member has status errors: memberID:1 alarm:NOSPACE".into(),
            ),
            Some(member) if member.learner => (
                false,
                "MemberIsLearner",
                "Node has not been promoted to voting member of the etcd cluster".into(),
            ),
            Some(_) => (
                true,
                "MemberNotLearner",
                "Node is a voting member of the etcd cluster".into(),
            ),
        })
    }
}

enum Removal {
    Done,
    NotEnoughStarted,
    Unhealthy,
}

fn minor(version: &str) -> u32 {
    version
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Model {
        let mut model = Model::new(Timestamp::UNIX_EPOCH);
        model.initialize("a", "v1.33.1+k3s1");
        for host in ["b", "c"] {
            model.advance(TICK);
            assert!(model.join(host, "v1.34.1+k3s1"));
            assert_eq!(model.nodes[host].voter, None);
            model.advance(TICK);
        }
        model
    }

    #[test]
    fn learners_are_promoted_on_the_leaders_tick() {
        let mut model = three();
        assert_eq!((model.voters(), model.healthy_voters()), (3, 3));
        assert!(model.join("d", "v1.34.1+k3s1"));
        assert_eq!(model.voters(), 3, "a learner does not vote");
        assert!(!model.join("e", "v1.34.1+k3s1"), "one learner at a time");
        model.advance(TICK);
        assert_eq!(model.voters(), 4);
        assert!(model.nodes["d"].voter.as_ref().is_some_and(|voter| voter.status));
    }

    #[test]
    fn a_learner_that_makes_no_progress_is_evicted() {
        let mut model = three();
        assert!(model.join_and_die("d", "v1.34.1+k3s1"));
        model.advance(LEARNER_STALL);
        assert_eq!(model.members.len(), 4);
        model.advance(TICK * 2);
        assert_eq!(model.members.len(), 3);
    }

    #[test]
    fn a_requested_removal_leaves_its_trace_and_the_last_voter_stays() {
        let mut model = three();
        let member = model.nodes["c"].annotations[MEMBER_ANNOTATION].clone();
        model.annotate("c", REMOVE_ANNOTATION, Some("true"));
        let annotations = &model.nodes["c"].annotations;
        assert_eq!(annotations[REMOVED_ANNOTATION], member);
        assert!(!annotations.contains_key(MEMBER_ANNOTATION) && !annotations.contains_key(REMOVE_ANNOTATION));
        model.annotate("b", REMOVE_ANNOTATION, Some("true"));
        assert_eq!(model.voters(), 1);
        model.annotate("a", REMOVE_ANNOTATION, Some("true"));
        assert_eq!(model.voters(), 1);
        assert!(
            !model.nodes["a"].annotations.contains_key(REMOVE_ANNOTATION),
            "the request is taken back"
        );
    }

    #[test]
    fn without_quorum_nothing_is_written() {
        let mut model = three();
        model.kill("a");
        model.kill("b");
        let before: Vec<_> = model
            .nodes
            .values()
            .map(|node| (node.ready, node.voter.clone()))
            .collect();
        model.advance(TICK * 8);
        let after: Vec<_> = model
            .nodes
            .values()
            .map(|node| (node.ready, node.voter.clone()))
            .collect();
        assert_eq!(before, after);
        assert_eq!(model.leader, None);
        model.revive("b");
        model.advance(TICK * 4);
        assert!(!model.nodes["a"].ready);
        assert!(model.leader.is_some());
    }

    #[test]
    fn the_older_role_label_ends_with_1_33() {
        let model = three();
        assert!(
            model.nodes["a"]
                .labels
                .contains_key("node-role.kubernetes.io/master")
        );
        assert!(
            !model.nodes["b"]
                .labels
                .contains_key("node-role.kubernetes.io/master")
        );
    }
}
