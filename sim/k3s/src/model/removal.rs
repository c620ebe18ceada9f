//! How members leave: the removal controller, and the deletion of a node.

use super::{ADDRESS_ANNOTATION, ETCD_ROLE, MEMBER_ANNOTATION, Model, REMOVE_ANNOTATION, REMOVED_ANNOTATION};

enum Removal {
    Done,
    NotEnoughStarted,
    Unhealthy,
}

impl Model {
    /// A node is deleted; k3s removes its member first, unless it was removed before, and keeps the node until it could.
    pub fn delete_node(&mut self, name: &str) {
        self.revision += 1;
        if let Some(node) = self.nodes.get_mut(name) {
            node.deleting = true;
        }
        self.finish_deletions();
    }

    fn finish_deletions(&mut self) {
        if !self.has_quorum() {
            return;
        }
        let deleting: Vec<String> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.deleting)
            .map(|(name, _)| name.clone())
            .collect();
        for name in deleting {
            let node = &self.nodes[&name];
            let is_etcd = node.labels.contains_key(ETCD_ROLE);
            let removed = node
                .annotations
                .get(REMOVED_ANNOTATION)
                .is_some_and(|name| !name.is_empty());
            let member = node.annotations.get(MEMBER_ANNOTATION).cloned();
            let address = node.annotations.get(ADDRESS_ANNOTATION).cloned();
            let done = !is_etcd
                || removed
                || match (member, address) {
                    (Some(member), Some(address)) => {
                        matches!(self.remove_member(&member, &address), Removal::Done)
                    }
                    // k3s cannot tell whose member it is, and asks again until it can.
                    _ => false,
                };
            if done {
                self.nodes.remove(&name);
                self.revision += 1;
            }
        }
    }

    /// The removal controller, which runs where the leader is.
    pub(super) fn run_removals(&mut self) {
        if !self.has_quorum() {
            return;
        }
        self.finish_deletions();
        // A node that carries the name of another member that was removed has joined again since: both marks go, and
        // whoever asked has to ask again.
        for node in self.nodes.values_mut() {
            let removed = node.annotations.get(REMOVED_ANNOTATION);
            let member = node.annotations.get(MEMBER_ANNOTATION);
            if node.annotations.contains_key(REMOVE_ANNOTATION)
                && removed.is_some()
                && member.is_some()
                && removed != member
            {
                node.annotations.remove(REMOVE_ANNOTATION);
                node.annotations.remove(REMOVED_ANNOTATION);
            }
        }
        let requested: Vec<(String, String, String)> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.labels.contains_key(ETCD_ROLE))
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
        if !member.learner {
            let others = || {
                self.members
                    .iter()
                    .filter(|other| !other.learner && other.id != member.id)
            };
            let started = others().filter(|other| !other.name.is_empty()).count();
            if started < others().count() / 2 + 1 {
                return Removal::NotEnoughStarted;
            }
            let leads = self.leader == Some(member.id);
            // Leadership goes to the first of the others first, whether it is there or not.
            if leads && others().next().is_none_or(|other| !self.is_alive(other)) {
                return Removal::Unhealthy;
            }
            // One that is down takes nothing along.
            if self.strict && (leads || self.is_alive(&member)) {
                let active = self.active_voters();
                if active.saturating_sub(1) < others().count() / 2 + 1 {
                    return Removal::Unhealthy;
                }
            }
        }
        self.members.remove(index);
        let rejoins = self.rejoins_at(&member.host);
        if let Some(host) = self.hosts.get_mut(&member.host)
            && !host.first
        {
            host.rejoins_at = rejoins;
        }
        if self.leader == Some(member.id) {
            self.elect();
        }
        Removal::Done
    }
}
