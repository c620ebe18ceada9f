//! Drifted nodes of static NodePools. Nothing is simulated: each is replaced by another of the same template.

use std::collections::BTreeMap;

use super::candidates::Candidate;
use super::command::{Command, Decision, Method, TerminateFirst};
use super::consolidate::Move;
use super::drift::drifted_order;
use super::methods::Search;
use crate::static_pools::{StaticPool, is_refilled};

pub(super) const AT_LIMIT: &str = "static NodePool is at its node limit and cannot stage a replacement";
pub(super) const RESERVATIONS_FULL: &str =
    "static NodePool's capacity reservations are full and cannot stage a replacement";

impl<'a> Search<'_, 'a> {
    /// One command for each node that goes, as many as budgets and limits allow.
    pub fn static_drift(&mut self, found: &[Candidate<'a>]) -> Vec<Command> {
        let mut by_pool: BTreeMap<&str, Vec<&Candidate<'a>>> = BTreeMap::new();
        for candidate in found {
            if candidate.is_static() && candidate.drifted_since.is_some() {
                by_pool
                    .entry(&candidate.pool.metadata.name)
                    .or_default()
                    .push(candidate);
            }
        }
        let mut commands = Vec::new();
        for mut own in by_pool.into_values() {
            own.sort_by_key(|candidate| drifted_order(candidate));
            commands.extend(self.drift_of_one_pool(own));
        }
        commands
    }

    fn drift_of_one_pool(&mut self, mut own: Vec<&Candidate<'a>>) -> Vec<Command> {
        let pool = StaticPool::new(self.world.snapshot, own[0].pool);
        let allowed = self.allowed.get(&own[0].pool.metadata.name).copied().unwrap_or(0);
        self.outcome.constrained_by_budgets |= allowed < own.len();
        if allowed == 0 || pool.scales_down() {
            return Vec::new();
        }
        let terminate_first = self.world.options.terminate_first_drift;
        if terminate_first && pool.reservations_are_full() {
            // Only a node that gives its place back makes room for another.
            let gives = |candidate: &Candidate<'_>| {
                pool.gives_back_a_place(candidate.capacity_type, candidate.reservation)
            };
            own.sort_by_key(|candidate| !gives(candidate));
            own.truncate(allowed);
            let (first, rest): (Vec<_>, Vec<_>) = own.into_iter().partition(|candidate| gives(candidate));
            for candidate in rest {
                self.block(candidate, RESERVATIONS_FULL);
            }
            return self.first_to_go(
                &first,
                true,
                TerminateFirst::NoReservedCapacity,
                RESERVATIONS_FULL,
            );
        }
        own.truncate(allowed);
        let room = pool.room();
        if room == 0 {
            return self.first_to_go(&own, terminate_first, TerminateFirst::StaticAtLimit, AT_LIMIT);
        }
        own.truncate(room);
        own.iter()
            .filter_map(|candidate| self.replaced_alike(Method::StaticDrift, candidate, &pool))
            .collect()
    }

    /// Nodes for which nothing can be created before they are gone.
    fn first_to_go(
        &mut self,
        candidates: &[&Candidate<'a>],
        terminate_first: bool,
        reason: TerminateFirst,
        why_not: &str,
    ) -> Vec<Command> {
        let mut commands = Vec::new();
        for candidate in candidates {
            if terminate_first && is_refilled(candidate.pool) {
                commands.push(self.without_replacement(Method::StaticDrift, candidate, reason));
            } else {
                self.block(candidate, why_not);
            }
        }
        commands
    }

    pub fn without_replacement(
        &mut self,
        method: Method,
        candidate: &Candidate<'_>,
        reason: TerminateFirst,
    ) -> Command {
        let mut command = self.command(method, &[candidate], &Move::default());
        command.decision = Decision::TerminateFirst;
        command.terminate_first = Some(reason);
        command
    }

    /// A node of the same template comes before this one goes.
    pub fn replaced_alike(
        &mut self,
        method: Method,
        candidate: &Candidate<'_>,
        pool: &StaticPool<'_>,
    ) -> Option<Command> {
        let Some(claim) = pool.claim() else {
            self.block(
                candidate,
                "no instance type of the static NodePool can be launched now",
            );
            return None;
        };
        let mut command = self.command(method, &[candidate], &Move::default());
        command.decision = Decision::Replace;
        command.savings -= claim.cheapest_price;
        command.replacements = vec![claim];
        Some(command)
    }
}
