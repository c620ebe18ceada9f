//! Nodes that are no longer what their pool asks for, one after the other.

use super::candidates::Candidate;
use super::command::{Command, Decision, Method, TerminateFirst};
use super::consolidate::{Move, Probe, Replacement, simulate};
use super::methods::Search;
use crate::labels;

impl<'a> Search<'_, 'a> {
    pub fn drift(&mut self, found: &[Candidate<'a>]) -> Option<Command> {
        let mut drifted: Vec<&Candidate<'_>> = found
            .iter()
            .filter(|candidate| !candidate.is_static() && candidate.drifted_since.is_some())
            .collect();
        drifted.sort_by_key(|candidate| drifted_order(candidate));
        let terminate_first = self.world.options.terminate_first_drift;
        for candidate in drifted {
            if !self.has_budget(candidate) {
                continue;
            }
            match self.without(candidate, terminate_first) {
                Err(problem) => self.block(candidate, &problem),
                Ok(left) => return Some(self.going(Method::Drift, candidate, &left)),
            }
        }
        None
    }

    /// What takes over when this node goes. If nothing does as long as the node has its place in a full reservation, it is
    /// asked once more as if the place were free, where the node may go first.
    pub fn without(&mut self, candidate: &Candidate<'_>, terminate_first: bool) -> Result<Left, String> {
        let simulated = simulate(
            self.world,
            &[candidate],
            self.others,
            Probe::default(),
            self.order,
        );
        let problem = match simulated {
            Ok(simulated) => {
                let claims = simulated.claims.into_iter();
                return Ok(Left {
                    found: Move {
                        replacements: claims.map(|finished| Replacement { finished }).collect(),
                        on_nodes: simulated.on_nodes,
                    },
                    terminate_first: None,
                });
            }
            Err(problem) => problem,
        };
        let reservation = candidate
            .reservation
            .filter(|_| terminate_first && candidate.capacity_type == labels::CAPACITY_RESERVED);
        let index =
            reservation.and_then(|id| self.world.reservations.names.iter().position(|name| name == id));
        let Some(index) = index else {
            return Err(problem);
        };
        let freed = Probe {
            freed_reservation: Some(index),
            ..Probe::default()
        };
        match simulate(self.world, &[candidate], self.others, freed, self.order) {
            // What comes into the free place is decided when the place is free.
            Ok(simulated) => Ok(Left {
                found: Move {
                    replacements: Vec::new(),
                    on_nodes: simulated.on_nodes,
                },
                terminate_first: Some(TerminateFirst::NoReservedCapacity),
            }),
            Err(_) => Err(problem),
        }
    }

    pub fn going(&mut self, method: Method, candidate: &Candidate<'_>, left: &Left) -> Command {
        let mut command = self.command(method, &[candidate], &left.found);
        command.terminate_first = left.terminate_first;
        if left.terminate_first.is_some() {
            command.decision = Decision::TerminateFirst;
        }
        command
    }
}

/// What is left when a node is gone.
pub(super) struct Left {
    pub found: Move,
    pub terminate_first: Option<TerminateFirst>,
}

/// Empty nodes first, because pods that move now might move onto them; then the ones that drifted first.
pub(super) fn drifted_order<'a>(candidate: &Candidate<'a>) -> (bool, Option<i64>, &'a str) {
    (candidate.has_pods, candidate.drifted_since, candidate.name)
}
