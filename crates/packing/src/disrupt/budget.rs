//! How many nodes of a pool may be taken away at once.

use super::cron::Cron;
use crate::model::{Budget, NodePool};
use crate::time::{duration_seconds, epoch_seconds};

/// Why a node is taken away; budgets may be for some reasons only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Reason {
    Underutilized,
    Empty,
    Drifted,
    Unhealthy,
}

impl Reason {
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Underutilized => "Underutilized",
            Reason::Empty => "Empty",
            Reason::Drifted => "Drifted",
            Reason::Unhealthy => "Unhealthy",
        }
    }
}

/// The least that the budgets active now allow. A budget that cannot be read allows nothing.
pub fn allowed_disruptions(pool: &NodePool, nodes: usize, reason: Reason, now: Option<&str>) -> usize {
    let default = [Budget {
        nodes: "10%".to_owned(),
        ..Budget::default()
    }];
    pool.spec
        .disruption
        .budgets
        .as_deref()
        .unwrap_or(&default)
        .iter()
        .filter(|budget| {
            budget
                .reasons
                .as_ref()
                .is_none_or(|reasons| reasons.iter().any(|own| own == reason.name()))
        })
        .map(|budget| allowed(budget, nodes, now))
        .min()
        .unwrap_or(usize::MAX)
}

fn allowed(budget: &Budget, nodes: usize, now: Option<&str>) -> usize {
    match is_active(budget, now) {
        None => 0,
        Some(false) => usize::MAX,
        Some(true) => match budget.nodes.strip_suffix('%') {
            // Rounded up, as Kubernetes rounds what may be unavailable.
            Some(percent) => percent
                .parse::<usize>()
                .map_or(0, |percent| (nodes * percent).div_ceil(100)),
            None => budget.nodes.parse().unwrap_or(0),
        },
    }
}

fn is_active(budget: &Budget, now: Option<&str>) -> Option<bool> {
    let (Some(schedule), duration) = (&budget.schedule, budget.duration.as_deref()) else {
        return Some(budget.duration.is_none());
    };
    let cron = Cron::parse(schedule)?;
    let now = now.and_then(epoch_seconds)?;
    let seconds = duration.map_or(Some(0.0), duration_seconds)?;
    Some(cron.hit_within(now, seconds as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(budgets: Vec<Budget>) -> NodePool {
        let mut pool = NodePool::default();
        pool.spec.disruption.budgets = Some(budgets);
        pool
    }

    fn budget(nodes: &str, reasons: Option<&[&str]>, window: Option<(&str, &str)>) -> Budget {
        Budget {
            nodes: nodes.to_owned(),
            reasons: reasons.map(|reasons| reasons.iter().map(|reason| (*reason).to_owned()).collect()),
            schedule: window.map(|(schedule, _)| schedule.to_owned()),
            duration: window.map(|(_, duration)| duration.to_owned()),
        }
    }

    #[test]
    fn the_tightest_active_budget_counts() {
        let now = Some("2026-01-05T09:30:00Z");
        let of = |budgets, reason| allowed_disruptions(&pool(budgets), 15, reason, now);
        assert_eq!(
            allowed_disruptions(&NodePool::default(), 15, Reason::Empty, now),
            2
        );
        assert_eq!(of(vec![], Reason::Empty), usize::MAX);
        assert_eq!(of(vec![budget("50%", None, None)], Reason::Empty), 8);
        assert_eq!(
            of(
                vec![budget("50%", None, None), budget("3", None, None)],
                Reason::Empty
            ),
            3
        );
        let drifted_only = budget("0", Some(&["Drifted"]), None);
        assert_eq!(
            of(vec![drifted_only.clone(), budget("5", None, None)], Reason::Empty),
            5
        );
        assert_eq!(
            of(vec![drifted_only, budget("5", None, None)], Reason::Drifted),
            0
        );
        let office = budget("0", None, Some(("0 9 * * mon-fri", "8h")));
        assert_eq!(of(vec![office.clone()], Reason::Empty), 0);
        let evening = Some("2026-01-05T18:00:00Z");
        assert_eq!(
            allowed_disruptions(&pool(vec![office]), 15, Reason::Empty, evening),
            usize::MAX
        );
        assert_eq!(
            of(
                vec![budget("5", None, Some(("not a schedule", "1h")))],
                Reason::Empty
            ),
            0
        );
    }
}
