//! What time does: elections, promotion and eviction of learners, and what is written to nodes.

use std::time::Duration;

use jiff::Timestamp;

use super::{ETCD_ROLE, MEMBER_ANNOTATION, Model, VoterCondition, signed};

impl Model {
    /// Time passes. What falls into it happens in order.
    pub fn advance(&mut self, by: Duration) {
        let until = self.now.saturating_add(signed(by)).unwrap_or(self.now);
        while let Some(next) = self.next_due().filter(|next| *next <= until) {
            self.now = next;
            self.renew_leases();
            self.pass_moment();
        }
        self.now = until;
        self.renew_leases();
    }

    /// When something happens next by itself.
    fn next_due(&self) -> Option<Timestamp> {
        let after = |at: Timestamp, by| at.saturating_add(signed(by)).ok();
        let hosts = self
            .hosts
            .values()
            .flat_map(|host| [host.leaves_at, host.rejoins_at]);
        let annotations = self.nodes.values().map(|node| node.annotates_at);
        hosts
            .chain(annotations)
            .flatten()
            .filter(|at| *at > self.now)
            .chain(after(self.last_tick, self.timing.tick))
            .min()
    }

    fn pass_moment(&mut self) {
        let now = self.now;
        self.hosts
            .retain(|_, host| host.leaves_at.is_none_or(|at| at > now));
        let rejoining: Vec<String> = self
            .hosts
            .iter()
            .filter(|(_, host)| host.rejoins_at.is_some_and(|at| at <= now))
            .map(|(name, _)| name.clone())
            .collect();
        for host in rejoining {
            self.rejoin(&host);
        }
        self.write_metadata();
        if now.duration_since(self.last_tick) >= signed(self.timing.tick) {
            self.last_tick = now;
            self.tick();
        }
    }

    /// Learners that have caught up become voters. What their nodes say of them was written just before, and follows with the
    /// next tick.
    fn promote(&mut self) {
        let due = |member: &super::Member| {
            self.now.duration_since(member.joined_at) >= signed(self.timing.catch_up)
        };
        let promoted: Vec<u64> = self
            .members
            .iter()
            .filter(|member| {
                member.learner && !member.name.is_empty() && due(member) && self.is_alive(member)
            })
            .map(|member| member.id)
            .collect();
        for member in &mut self.members {
            if !promoted.contains(&member.id) {
                continue;
            }
            member.learner = false;
            if let Some(host) = self.hosts.get_mut(&member.host) {
                host.voted = true;
            }
        }
    }

    /// Kubelets that reach an apiserver that can write renew their leases.
    fn renew_leases(&mut self) {
        if !self.has_quorum() {
            return;
        }
        let (now, every) = (self.now, signed(self.timing.lease));
        for (name, node) in &mut self.nodes {
            let up = self.hosts.get(name).is_some_and(super::Host::is_connected);
            let due = node
                .lease
                .is_none_or(|renewed| now.duration_since(renewed) >= every);
            if up && due {
                node.lease = Some(now);
            }
        }
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
        let stalled =
            |member: &super::Member| member.learner && now.duration_since(member.last_progress) > stall;
        let evicted: Vec<String> = self
            .members
            .iter()
            .filter(|member| stalled(member))
            .map(|member| member.host.clone())
            .collect();
        for host in evicted {
            // k3s finds out that its member is gone when it is back, and joins again.
            let rejoins = self.rejoins_at(&host);
            if let Some(host) = self.hosts.get_mut(&host) {
                host.rejoins_at = rejoins;
            }
        }
        self.members.retain(|member| !stalled(member));
        self.run_removals();
        self.judge_nodes();
        self.promote();
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
        if !node.labels.contains_key(ETCD_ROLE) {
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
            // The leader asks itself for every member: one that is down is no news, an alarm is everybody's.
            Some(_) if self.hosts.values().any(|host| host.alarm) => (
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
