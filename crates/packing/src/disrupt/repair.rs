//! Unhealthy nodes: the most urgent one whose pool is not ill as a whole.

use std::collections::{BTreeMap, BTreeSet};

use super::candidates::Candidate;
use super::command::{Command, Decision, Method, TerminateFirst, Unhealthy};
use super::consolidate::Move;
use super::health::{RepairPolicies, Verdict};
use super::methods::Search;
use crate::labels;
use crate::model::{NodeClaim, RepairAction};
use crate::static_pools::{StaticPool, is_refilled};
use crate::time::{duration_seconds, epoch_seconds};

/// More of a pool's nodes than this, and what ails them is not theirs: replacing them would not help.
const MOST_UNHEALTHY_PERCENT: usize = 20;
/// So often a node is rebooted within the window before it is replaced.
const MOST_REBOOTS: usize = 2;
const REBOOT_WINDOW_SECONDS: i64 = 86_400;

impl<'a> Search<'_, 'a> {
    /// One node to repair. Without the moment of the decision nobody can say how long a condition has lasted.
    pub fn repair(&mut self, found: Vec<Candidate<'a>>) -> Option<Command> {
        let snapshot = self.world.snapshot;
        let policies = RepairPolicies::new(&snapshot.repair_policies).ok()?;
        let now = self.world.options.now.as_deref().and_then(epoch_seconds)?;
        let mut ill: Vec<(Candidate<'a>, Verdict, bool)> = Vec::new();
        for candidate in found {
            let Some(mut verdict) = policies.verdict(candidate.own, candidate.claim, now) else {
                continue;
            };
            let escalated = verdict.action == RepairAction::Reboot
                && self.reboots_lately(candidate.claim, now) >= MOST_REBOOTS;
            if escalated {
                verdict.action = RepairAction::Replace;
            }
            let vetoed = candidate
                .own
                .metadata
                .annotations
                .get(labels::DO_NOT_REPAIR)
                .is_some_and(|value| value == "true");
            let unbounded =
                verdict.grace.is_none() && candidate.claim.spec.termination_grace_period.is_none();
            if vetoed {
                self.block(
                    &candidate,
                    "repair is blocked through the \"karpenter.sh/do-not-repair\" annotation",
                );
            } else if candidate.held_by.is_some() && unbounded {
                self.block(
                    &candidate,
                    "repair requires a termination grace period to bypass blocking pods",
                );
            } else {
                ill.push((candidate, verdict, escalated));
            }
        }
        let effort = |candidate: &Candidate<'_>| candidate.cost * lifetime_left(candidate.claim, now);
        ill.sort_by(|(left, one, _), (right, other, _)| {
            other
                .urgency
                .total_cmp(&one.urgency)
                .then(effort(left).total_cmp(&effort(right)))
                .then_with(|| left.name.cmp(right.name))
        });
        let ill_pools = self.ill_pools(&policies);
        for (candidate, verdict, escalated) in &ill {
            let pool = &candidate.pool.metadata.name;
            if ill_pools.contains(pool) {
                let why = format!(
                    "more than {MOST_UNHEALTHY_PERCENT}% of nodes in nodepool {pool:?} are unhealthy"
                );
                self.block(candidate, &why);
                continue;
            }
            // Budgets are for nodes that came up: one that never did serves nobody.
            if candidate.initialized && !self.has_budget(candidate) {
                continue;
            }
            if let Some(mut command) = self.repaired(candidate, verdict.action) {
                command.termination_grace_seconds = grace(candidate.claim, verdict);
                command.unhealthy = Some(Unhealthy {
                    condition: verdict.condition.clone(),
                    status: verdict.status.clone(),
                    reason: verdict.reason.clone(),
                    escalated: *escalated,
                });
                return Some(command);
            }
        }
        None
    }

    fn repaired(&mut self, candidate: &Candidate<'_>, action: RepairAction) -> Option<Command> {
        if action == RepairAction::Reboot {
            let mut command = self.command(Method::Repair, &[candidate], &Move::default());
            command.decision = Decision::Reboot;
            command.savings = 0.0;
            return Some(command);
        }
        let terminate_first = self.world.options.terminate_first_repair;
        if candidate.is_static() {
            return self.repaired_in_static_pool(candidate, terminate_first);
        }
        match self.without(candidate, terminate_first) {
            Ok(left) => Some(self.going(Method::Repair, candidate, &left)),
            Err(problem) => {
                self.block(candidate, &problem);
                None
            }
        }
    }

    fn repaired_in_static_pool(
        &mut self,
        candidate: &Candidate<'_>,
        terminate_first: bool,
    ) -> Option<Command> {
        let pool = StaticPool::new(self.world.snapshot, candidate.pool);
        if pool.scales_down() {
            return None;
        }
        let full = terminate_first && pool.reservations_are_full();
        if full && !pool.gives_back_a_place(candidate.capacity_type, candidate.reservation) {
            self.block(candidate, super::static_drift::RESERVATIONS_FULL);
            return None;
        }
        if full || pool.room() == 0 {
            if terminate_first && is_refilled(candidate.pool) {
                let reason = if full {
                    TerminateFirst::NoReservedCapacity
                } else {
                    TerminateFirst::StaticAtLimit
                };
                return Some(self.without_replacement(Method::Repair, candidate, reason));
            }
            let why = if full {
                super::static_drift::RESERVATIONS_FULL
            } else {
                super::static_drift::AT_LIMIT
            };
            self.block(candidate, why);
            return None;
        }
        self.replaced_alike(Method::Repair, candidate, &pool)
    }

    fn reboots_lately(&self, claim: &NodeClaim, now: i64) -> usize {
        let reboots = self.world.snapshot.reboots.get(&claim.metadata.name);
        let lately =
            |time: &&String| epoch_seconds(time).is_some_and(|time| time > now - REBOOT_WINDOW_SECONDS);
        reboots.map_or(0, |reboots| reboots.iter().filter(lately).count())
    }

    /// Pools of which too many nodes are unhealthy, whether that is tolerated for the moment or not. Rounded up, so that one
    /// node of a small pool is repaired.
    fn ill_pools(&self, policies: &RepairPolicies) -> BTreeSet<String> {
        let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for node in &self.world.snapshot.nodes {
            let Some(pool) = node.metadata.labels.get(labels::NODE_POOL) else {
                continue;
            };
            let (all, unhealthy) = counts.entry(pool).or_default();
            *all += 1;
            *unhealthy += usize::from(policies.is_unhealthy(node));
        }
        counts
            .into_iter()
            .filter(|(_, (all, unhealthy))| *unhealthy > (all * MOST_UNHEALTHY_PERCENT).div_ceil(100))
            .map(|(pool, _)| pool.to_owned())
            .collect()
    }
}

/// The shorter of what the policies and the claim say, if a policy says anything.
fn grace(claim: &NodeClaim, verdict: &Verdict) -> Option<f64> {
    let own = claim.spec.termination_grace_period.as_deref();
    let own = own.and_then(duration_seconds).unwrap_or(f64::MAX);
    verdict.grace.map(|grace| grace.min(own))
}

/// How much of the time that a claim is given is still ahead of it.
fn lifetime_left(claim: &NodeClaim, now: i64) -> f64 {
    let whole = claim.spec.expire_after.as_deref().and_then(duration_seconds);
    let created = claim
        .metadata
        .creation_timestamp
        .as_deref()
        .and_then(epoch_seconds);
    match (whole.filter(|whole| *whole > 0.0), created) {
        (Some(whole), Some(created)) => (1.0 - (now - created) as f64 / whole).clamp(0.0, 1.0),
        _ => 1.0,
    }
}
