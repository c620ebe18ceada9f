//! How many nodes of a pool may be taken away at once.

use super::cron::Cron;
use crate::model::{Budget, NodePool, UtcOffset};
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

/// The clock that schedules are read by.
#[derive(Clone, Copy, Debug, Default)]
pub enum BudgetClock<'a> {
    #[default]
    Utc,
    Offsets(&'a [UtcOffset]),
    /// Of a time zone that nobody knows.
    Unknown,
}

impl BudgetClock<'_> {
    /// How many seconds it is ahead of UTC at a moment.
    fn ahead(self, moment: i64) -> i64 {
        let BudgetClock::Offsets(offsets) = self else {
            return 0;
        };
        let begun = offsets.partition_point(|offset| offset.from <= moment);
        offsets
            .get(begun.saturating_sub(1))
            .map_or(0, |offset| offset.seconds)
    }
}

/// Why a budget cannot be read, if so.
pub fn budget_problem(budget: &Budget) -> Option<String> {
    if let Some(schedule) = &budget.schedule
        && Cron::parse(schedule).is_none()
    {
        return Some(format!("{schedule:?} is no schedule"));
    }
    let duration = budget.duration.as_deref();
    if let Some(text) = duration.filter(|text| duration_seconds(text).is_none()) {
        return Some(format!("{text:?} is no duration"));
    }
    let number = budget.nodes.strip_suffix('%').unwrap_or(&budget.nodes);
    let is_number = number.parse::<usize>().is_ok();
    (!is_number).then(|| format!("{:?} is neither a number of nodes nor a percentage", budget.nodes))
}

/// The least that the budgets active now allow. A budget that cannot be read allows nothing.
pub fn allowed_disruptions(
    pool: &NodePool,
    nodes: usize,
    reason: Reason,
    now: Option<&str>,
    clock: BudgetClock<'_>,
) -> usize {
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
        .map(|budget| allowed(budget, nodes, now, clock))
        .min()
        .unwrap_or(usize::MAX)
}

fn allowed(budget: &Budget, nodes: usize, now: Option<&str>, clock: BudgetClock<'_>) -> usize {
    match is_active(budget, now, clock) {
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

fn is_active(budget: &Budget, now: Option<&str>, clock: BudgetClock<'_>) -> Option<bool> {
    let (Some(schedule), duration) = (&budget.schedule, budget.duration.as_deref()) else {
        return Some(budget.duration.is_none());
    };
    let cron = Cron::parse(schedule)?;
    let now = now.and_then(epoch_seconds)?;
    let seconds = duration.map_or(Some(0.0), duration_seconds)?;
    if matches!(clock, BudgetClock::Unknown) {
        return None;
    }
    Some(cron.hit_within(now, seconds as i64, |moment| clock.ahead(moment)))
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
        let of = |budgets, reason| allowed_disruptions(&pool(budgets), 15, reason, now, BudgetClock::Utc);
        assert_eq!(
            allowed_disruptions(&NodePool::default(), 15, Reason::Empty, now, BudgetClock::Utc),
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
            allowed_disruptions(&pool(vec![office]), 15, Reason::Empty, evening, BudgetClock::Utc),
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
    /// Nine to five in Berlin, where the clock was put forward at one in the morning of 2026-03-29 by UTC.
    #[test]
    fn schedules_follow_the_clock_of_their_time_zone() {
        let berlin = [
            UtcOffset {
                from: 1_761_440_400,
                seconds: 3_600,
            },
            UtcOffset {
                from: 1_774_746_000,
                seconds: 7_200,
            },
        ];
        let office = budget("0", None, Some(("0 9 * * *", "8h")));
        for (now, clock, is_closed) in [
            ("2026-01-05T07:59:59Z", BudgetClock::Offsets(&berlin), false),
            ("2026-01-05T08:00:00Z", BudgetClock::Offsets(&berlin), true),
            ("2026-01-05T15:59:59Z", BudgetClock::Offsets(&berlin), true),
            ("2026-01-05T16:00:00Z", BudgetClock::Offsets(&berlin), false),
            // Summer.
            ("2026-07-06T07:00:00Z", BudgetClock::Offsets(&berlin), true),
            ("2026-07-06T15:00:00Z", BudgetClock::Offsets(&berlin), false),
            ("2026-07-06T07:00:00Z", BudgetClock::Utc, false),
            // Before the first offset that is known, it is that one.
            ("2025-07-07T08:00:00Z", BudgetClock::Offsets(&berlin), true),
            ("2026-07-06T20:00:00Z", BudgetClock::Unknown, true),
        ] {
            let pool = pool(vec![office.clone()]);
            let allowed = allowed_disruptions(&pool, 15, Reason::Empty, Some(now), clock);
            assert_eq!(allowed == 0, is_closed, "{now} by {clock:?}");
        }
        let always = pool(vec![budget("3", None, None)]);
        let now = Some("2026-07-06T20:00:00Z");
        let allowed = allowed_disruptions(&always, 15, Reason::Empty, now, BudgetClock::Unknown);
        assert_eq!(allowed, 3, "it has no schedule to be read");
    }

    #[test]
    fn a_budget_that_cannot_be_read_is_told() {
        let of = |nodes, window| budget_problem(&budget(nodes, None, window));
        assert_eq!(of("10%", Some(("0 9 * * mon-fri", "8h"))), None);
        assert_eq!(of("3", None), None);
        for (problem, told) in [
            (
                of("10%", Some(("0 25 * * *", "8h"))),
                "\"0 25 * * *\" is no schedule",
            ),
            (
                of("10%", Some(("0 9 * * *", "a while"))),
                "\"a while\" is no duration",
            ),
            (of("some", None), "\"some\" is neither"),
        ] {
            let problem = problem.expect(told);
            assert!(problem.contains(told), "{problem}");
        }
    }
}
