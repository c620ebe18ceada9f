//! What time does: elections, promotion and eviction of learners, and what is written to nodes.

use std::time::Duration;

use super::{MEMBER_ANNOTATION, Model, VoterCondition, signed};

impl Model {
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

    pub(super) fn elect(&mut self) {
        self.leader = if self.has_quorum() {
            self.members
                .iter()
                .find(|member| !member.learner && self.is_alive(member))
                .map(|member| member.id)
        } else {
            None
        };
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
