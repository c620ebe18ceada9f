//! How hosts come and go: servers join etcd, nodes register, hosts die, return, are upgraded and destroyed.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    ADDRESS_ANNOTATION, ETCD_ROLE, Host, MEMBER_ANNOTATION, Member, Model, Node, RejoinWait, signed,
};

impl Model {
    fn add_host(&mut self, name: &str, version: &str, server: bool) -> String {
        let address = format!("10.0.{}.{}", self.next_id / 250, self.next_id % 250 + 1);
        self.hosts.insert(
            name.to_owned(),
            Host {
                alive: true,
                address: address.clone(),
                version: version.to_owned(),
                cut: false,
                up_since: self.now,
                silent_since: None,
                leaves_at: None,
                rejoins_at: None,
                rejoin_wait: RejoinWait::default(),
                voted: false,
                first: false,
                alarm: false,
                server,
            },
        );
        address
    }

    /// The first server comes up: a cluster of one voter.
    pub fn initialize(&mut self, host: &str, version: &str) {
        let address = self.add_host(host, version, true);
        if let Some(host) = self.hosts.get_mut(host) {
            host.first = true;
            host.voted = true;
        }
        self.join_etcd(host, address, false);
        self.register(host, version, true);
    }

    /// Whether etcd lets a learner join: one at a time, and only where a member that never starts costs no quorum.
    pub fn may_join(&self) -> bool {
        self.has_quorum()
            && !self.members.iter().any(|member| member.learner)
            && (!self.strict || self.voters() == 1 || self.active_voters() > self.voters().div_ceil(2))
    }

    /// A further server joins as a learner. k3s tries again where etcd refuses it.
    pub fn join(&mut self, host: &str, version: &str) -> bool {
        if !self.may_join() {
            return false;
        }
        let address = self.add_host(host, version, true);
        self.join_etcd(host, address, true);
        self.register(host, version, true);
        true
    }

    /// A server's member is added, and the host dies before it starts: a member without a name.
    pub fn join_and_die(&mut self, host: &str, version: &str) -> bool {
        if !self.may_join() {
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
            joined_at: self.now,
            last_progress: self.now,
        });
        if !learner {
            self.leader = Some(id);
        }
    }

    fn register(&mut self, host: &str, version: &str, server: bool) {
        let mut labels = BTreeMap::from([("kubernetes.io/hostname".to_owned(), host.to_owned())]);
        if server {
            labels.insert("node-role.kubernetes.io/control-plane".into(), "true".into());
            // k3s 1.34 dropped the older role.
            if minor(version) < 34 {
                labels.insert("node-role.kubernetes.io/master".into(), "true".into());
            }
        }
        self.nodes.insert(
            host.to_owned(),
            Node {
                created_at: self.now,
                ready: true,
                ready_since: self.now,
                labels,
                annotations: BTreeMap::new(),
                provider_id: Some(format!("sim://{host}")),
                kubelet_version: version.to_owned(),
                voter: None,
                unschedulable: false,
                lease: Some(self.now),
                annotates_at: server
                    .then(|| self.now.saturating_add(signed(self.timing.annotations)).ok())
                    .flatten(),
                deleting: false,
                revision: 0,
            },
        );
        self.write_metadata();
        self.touch(host);
    }

    pub fn kill(&mut self, host: &str) {
        let now = self.now;
        if let Some(host) = self.hosts.get_mut(host) {
            host.alive = false;
            host.silent_since.get_or_insert(now);
        }
        self.keep_leader();
    }

    /// Another member leads within a second of the leader's end.
    fn keep_leader(&mut self) {
        let leads = |member: &&Member| Some(member.id) == self.leader && self.is_alive(member);
        if !self.members.iter().any(|member| leads(&member)) {
            self.elect();
        }
    }

    pub fn revive(&mut self, host: &str) {
        let now = self.now;
        if let Some(entry) = self.hosts.get_mut(host)
            && !entry.alive
        {
            entry.alive = true;
            entry.up_since = now;
            if !entry.cut {
                entry.silent_since = None;
            }
            // A start of k3s puts the role back.
            if entry.server
                && let Some(node) = self.nodes.get_mut(host)
            {
                node.labels
                    .insert("node-role.kubernetes.io/control-plane".into(), "true".into());
                self.touch(host);
            }
        }
    }

    /// The network of a host fails: it runs, and reaches nobody.
    pub fn cut(&mut self, host: &str) {
        let now = self.now;
        if let Some(host) = self.hosts.get_mut(host) {
            host.cut = true;
            host.silent_since.get_or_insert(now);
        }
        self.keep_leader();
    }

    /// The network of a host is back.
    pub fn mend(&mut self, host: &str) {
        let now = self.now;
        if let Some(host) = self.hosts.get_mut(host)
            && host.cut
        {
            host.cut = false;
            host.up_since = now;
            if host.alive {
                host.silent_since = None;
            }
        }
    }

    /// The platform is told to take a host away: it runs on for a while.
    pub fn shut_down(&mut self, host: &str) {
        let at = self.now.saturating_add(signed(self.timing.shutdown)).ok();
        if let Some(host) = self.hosts.get_mut(host) {
            host.leaves_at = host.leaves_at.or(at);
        }
    }

    /// The host is gone for good.
    pub fn destroy(&mut self, host: &str) {
        self.hosts.remove(host);
        self.keep_leader();
    }

    /// The platform makes k3s on a host wait before it joins again.
    pub fn delay_rejoin(&mut self, host: &str, wait: RejoinWait) {
        if let Some(host) = self.hosts.get_mut(host) {
            host.rejoin_wait = wait;
        }
    }

    /// When k3s on a host joins again whose member is removed now.
    pub(super) fn rejoins_at(&self, host: &str) -> Option<Timestamp> {
        let host = self.hosts.get(host)?;
        let wait = if host.voted {
            host.rejoin_wait.voter
        } else {
            host.rejoin_wait.learner
        };
        self.now.saturating_add(signed(self.timing.rejoin + wait)).ok()
    }

    /// k3s on a host whose member was removed has been started again and joins again.
    pub(super) fn rejoin(&mut self, host: &str) {
        let again = self.now.saturating_add(signed(super::CONNECTED)).ok();
        let may = self.may_join();
        let Some(entry) = self.hosts.get_mut(host) else {
            return;
        };
        if !may || !entry.is_connected() {
            entry.rejoins_at = again;
            return;
        }
        entry.rejoins_at = None;
        let address = entry.address.clone();
        self.join_etcd(host, address, true);
        let at = self.now.saturating_add(signed(self.timing.annotations)).ok();
        if let Some(node) = self.nodes.get_mut(host) {
            node.annotates_at = at;
        }
    }

    /// k3s writes etcd's label and annotations to the nodes of its servers, late, and again where they are gone.
    pub(super) fn write_metadata(&mut self) {
        if !self.has_quorum() {
            return;
        }
        let mut written = Vec::new();
        for member in &self.members {
            let up = self.hosts.get(&member.host).is_some_and(Host::is_connected);
            let Some(node) = self.nodes.get_mut(&member.host) else {
                continue;
            };
            let late = node.annotates_at.is_some_and(|at| at > self.now);
            let there = node.annotations.get(MEMBER_ANNOTATION) == Some(&member.name)
                && node.labels.contains_key(ETCD_ROLE);
            if up && !late && !there && !member.name.is_empty() {
                node.annotations
                    .insert(MEMBER_ANNOTATION.into(), member.name.clone());
                node.annotations
                    .insert(ADDRESS_ANNOTATION.into(), member.address.clone());
                node.labels.insert(ETCD_ROLE.into(), "true".into());
                written.push(member.host.clone());
            }
        }
        for node in written {
            if let Some(node) = self.nodes.get_mut(&node) {
                node.annotates_at = None;
            }
            self.touch(&node);
        }
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
}

fn minor(version: &str) -> u32 {
    version
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok())
        .unwrap_or(0)
}
