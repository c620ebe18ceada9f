//! What a disruption costs and what it has to save to be worth it.

use crate::labels;
use crate::model::Pod;

/// What disrupting any node costs, empty or not.
pub const BASE_COST: f64 = 1.0;
/// A move is worth it when its share of the savings is at least half its share of the disruption.
pub const BALANCED_K: f64 = 2.0;

/// What evicting a pod costs: one, more for priority and for a cost its owner has set.
pub fn eviction_cost(pod: &Pod) -> f64 {
    let annotation = |key: &str| pod.metadata.annotations.get(key);
    let of_its_owner = |cost: &&String| annotation(labels::OWN_DELETION_COST) != Some(*cost);
    let own = annotation(labels::DISRUPTION_COST)
        .or_else(|| annotation(labels::POD_DELETION_COST).filter(of_its_owner));
    let own = own
        .and_then(|text| text.parse::<i32>().ok())
        .map_or(0.0, |cost| f64::from(cost) / 134_217_728.0);
    let priority = f64::from(pod.spec.priority.unwrap_or(0)) / 33_554_432.0;
    (1.0 + own + priority).clamp(-10.0, 10.0)
}

/// What moving these pods costs; a pod that is cheaper than nothing does not make the others cheaper.
pub fn reschedule_cost<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> f64 {
    BASE_COST
        + pods
            .into_iter()
            .map(|pod| eviction_cost(pod).max(0.0))
            .sum::<f64>()
}

/// The pool's whole cost and disruption, against which a move is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    pub cost: f64,
    pub disruption: f64,
}

/// How much of the pool's cost a move saves for how much of its disruption.
pub fn score(savings: f64, disruption: f64, totals: Totals) -> f64 {
    if totals.cost <= 0.0 || totals.disruption <= 0.0 || savings <= 0.0 {
        return 0.0;
    }
    if disruption == 0.0 {
        return f64::INFINITY;
    }
    (savings / totals.cost) / (disruption / totals.disruption)
}

pub fn is_worth_it(savings: f64, disruption: f64, totals: Totals) -> bool {
    score(savings, disruption, totals) >= 1.0 / BALANCED_K
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_follow_annotations_and_priority() {
        let mut pod = Pod::default();
        assert!((eviction_cost(&pod) - 1.0).abs() < 1e-9);
        pod.spec.priority = Some(33_554_432);
        assert!((eviction_cost(&pod) - 2.0).abs() < 1e-9);
        pod.metadata
            .annotations
            .insert(labels::POD_DELETION_COST.to_owned(), "134217728".to_owned());
        assert!((eviction_cost(&pod) - 3.0).abs() < 1e-9);
        pod.metadata
            .annotations
            .insert(labels::DISRUPTION_COST.to_owned(), "-268435456".to_owned());
        assert!((eviction_cost(&pod) - 0.0).abs() < 1e-9);
        pod.spec.priority = Some(i32::MIN);
        assert!((eviction_cost(&pod) + 10.0).abs() < 1e-9);
        assert!((reschedule_cost([&pod]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_cost_that_says_only_where_a_pod_runs_does_not_count() {
        let mut pod = Pod::default();
        let mut set =
            |key: &str, cost: &str| pod.metadata.annotations.insert(key.to_owned(), cost.to_owned());
        set(labels::POD_DELETION_COST, "-2147483648");
        set(labels::OWN_DELETION_COST, "-2147483648");
        assert!((eviction_cost(&pod) - 1.0).abs() < 1e-9);
        // Its owner has written another since.
        pod.metadata
            .annotations
            .insert(labels::POD_DELETION_COST.to_owned(), "134217728".to_owned());
        assert!((eviction_cost(&pod) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn half_the_share_is_enough() {
        let totals = Totals {
            cost: 10.0,
            disruption: 20.0,
        };
        assert!(is_worth_it(1.0, 4.0, totals));
        assert!(!is_worth_it(0.9, 4.0, totals));
        assert!(!is_worth_it(0.0, 0.0, totals));
        assert!(is_worth_it(0.1, 0.0, totals));
        assert!(!is_worth_it(1.0, 1.0, Totals::default()));
    }
}
