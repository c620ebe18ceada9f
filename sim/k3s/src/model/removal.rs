//! How members leave: the removal controller, and the deletion of a node.

use super::{ADDRESS_ANNOTATION, MEMBER_ANNOTATION, Model, REMOVE_ANNOTATION, REMOVED_ANNOTATION};

enum Removal {
    Done,
    NotEnoughStarted,
    Unhealthy,
}

impl Model {
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
    pub(super) fn run_removals(&mut self) {
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
}
