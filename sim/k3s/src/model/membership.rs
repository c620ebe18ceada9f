//! How hosts come and go: servers join etcd, nodes register, hosts die, return, are upgraded and destroyed.

use std::collections::BTreeMap;

use super::{ADDRESS_ANNOTATION, Host, MEMBER_ANNOTATION, Member, Model, Node};

impl Model {
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
}

fn minor(version: &str) -> u32 {
    version
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok())
        .unwrap_or(0)
}
