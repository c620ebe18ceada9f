//! The named disruption behaviours: who goes, what comes instead, and what keeps a node.

use slipway_packing::disrupt::{Decision, Method, Outcome};
use slipway_packing::labels::{CAPACITY_TYPE, DO_NOT_DISRUPT, INITIALIZED};
use slipway_packing::model::{Budget, InstanceType, NodePool, Pod, PodDisruptionBudget};
use slipway_packing::requirement::Operator;

use crate::cluster::{
    Cluster, condition, instance_type, labelled, offering, pod, pool, pool_with, requirement, with_offerings,
};
use crate::constraints::selector;
use crate::judged::{disrupt, next_command};

/// Types named by their price, which is the same for spot and on demand, all of one size.
fn priced(prices: &[f64]) -> Vec<InstanceType> {
    prices
        .iter()
        .map(|price| {
            let resources = [("cpu", "32"), ("memory", "32Gi"), ("pods", "100")];
            with_offerings(
                instance_type(&format!("costs-{price}"), &resources),
                vec![
                    offering("on-demand", "test-zone-1", *price),
                    offering("spot", "test-zone-1", *price),
                ],
            )
        })
        .collect()
}

fn with_budget(mut pool: NodePool, nodes: &str) -> NodePool {
    pool.spec.disruption.budgets = Some(vec![Budget {
        nodes: nodes.to_owned(),
        ..Budget::default()
    }]);
    pool.spec.disruption.consolidate_after = Some("0s".to_owned());
    pool.spec.disruption.consolidation_policy = "WhenEmptyOrUnderutilized".to_owned();
    pool
}

fn on_demand(name: &str, budget: &str) -> NodePool {
    with_budget(
        pool_with(
            name,
            vec![requirement(CAPACITY_TYPE, Operator::In, &["on-demand"])],
        ),
        budget,
    )
}

fn standing(
    pool: NodePool,
    types: Vec<InstanceType>,
    nodes: &[&str],
    capacity_type: &str,
) -> (Cluster, Vec<String>) {
    let mut cluster = Cluster::new(vec![pool], types);
    let names = nodes
        .iter()
        .map(|kind| cluster.add_node("default", &format!("costs-{kind}"), "test-zone-1", capacity_type))
        .collect();
    (cluster, names)
}

fn small(name: &str) -> Pod {
    pod(name, &[("cpu", "1")])
}

fn nodes(outcome: &Outcome) -> Vec<&str> {
    outcome.command.as_ref().map_or_else(Vec::new, |command| {
        command.nodes.iter().map(String::as_str).collect()
    })
}

/// 37: empty nodes go at once, as many as the budget allows.
#[test]
fn empty_nodes_within_the_budget() {
    for (budget, gone) in [("30%", 3), ("100%", 10), ("0%", 0)] {
        let (cluster, _) = standing(
            on_demand("default", budget),
            priced(&[1.0]),
            &["1"; 10],
            "on-demand",
        );
        let outcome = disrupt(&cluster.snapshot, &[], Method::Emptiness);
        assert_eq!(nodes(&outcome).len(), gone, "{budget}");
        assert_eq!(outcome.constrained_by_budgets, gone < 10, "{budget}");
    }
}

/// 38: half of three, rounded up, in each of ten pools, in one command.
#[test]
fn budgets_by_pool() {
    let pools: Vec<NodePool> = (0..10)
        .map(|index| with_budget(pool(&format!("pool-{index}")), "50%"))
        .collect();
    let mut cluster = Cluster::new(pools, priced(&[1.0]));
    for index in 0..10 {
        for _ in 0..3 {
            cluster.add_node(&format!("pool-{index}"), "costs-1", "test-zone-1", "on-demand");
        }
    }
    let outcome = disrupt(&cluster.snapshot, &[], Method::Emptiness);
    assert!(outcome.allowed.values().all(|allowed| *allowed == 2));
    assert_eq!(nodes(&outcome).len(), 20);
}

/// 39: three dear nodes with a pod each become one cheap node.
#[test]
fn merges_three_into_one() {
    for (capacity_type, spot_to_spot) in [("on-demand", false), ("spot", true)] {
        let pool = with_budget(
            pool_with(
                "default",
                vec![requirement(CAPACITY_TYPE, Operator::In, &[capacity_type])],
            ),
            "100%",
        );
        let (mut cluster, names) = standing(pool, priced(&[1.0, 9.0]), &["9"; 3], capacity_type);
        cluster.snapshot.options.spot_to_spot_consolidation = spot_to_spot;
        for (index, name) in names.iter().enumerate() {
            // Too large for two on one node, small enough for three on none of the nodes that stay.
            cluster.run(pod(&format!("pod-{index}"), &[("cpu", "10")]), name);
        }
        let outcome = next_command(&cluster.snapshot, &[]);
        let command = outcome.command.expect("a command");
        assert_eq!(command.method, Method::MultiNodeConsolidation);
        assert_eq!(command.nodes.len(), 3);
        assert_eq!(command.decision, Decision::Replace);
        assert_eq!(command.replacements[0].instance_types, ["costs-1"]);
        assert!((command.savings - 26.0).abs() < 1e-9);
        let mut pods = command.replacements[0].pods.clone();
        pods.sort();
        assert_eq!(pods, ["default/pod-0", "default/pod-1", "default/pod-2"]);
    }
}

/// 40: of two alike the one with fewer pods goes, and nothing is created.
#[test]
fn deletes_the_emptier_of_two() {
    for capacity_type in ["on-demand", "spot"] {
        let pool = with_budget(pool("default"), "1");
        let (mut cluster, names) = standing(pool, priced(&[1.0]), &["1"; 2], capacity_type);
        cluster.run(small("alone"), &names[1]);
        cluster.run(small("first"), &names[0]);
        cluster.run(small("second"), &names[0]);
        let outcome = next_command(&cluster.snapshot, &[]);
        assert_eq!(nodes(&outcome), [names[1].as_str()]);
        assert_eq!(outcome.command.expect("a command").decision, Decision::Delete);
    }
}

/// 41: replacing spot by spot needs fifteen cheaper types, and then lists fifteen.
#[test]
fn spot_to_spot_needs_choice() {
    let spot = || {
        with_budget(
            pool_with(
                "default",
                vec![requirement(CAPACITY_TYPE, Operator::In, &["spot"])],
            ),
            "100%",
        )
    };
    for (cheaper, enabled, expected) in [
        (
            1,
            true,
            "SpotToSpotConsolidation requires 15 cheaper instance type options than the current candidate to consolidate, got 1",
        ),
        (
            20,
            false,
            "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node",
        ),
    ] {
        let mut prices: Vec<f64> = (0..cheaper).map(|index| 1.0 + f64::from(index) / 100.0).collect();
        prices.push(9.0);
        let (mut cluster, names) = standing(spot(), priced(&prices), &["9"], "spot");
        cluster.snapshot.options.spot_to_spot_consolidation = enabled;
        cluster.run(small("pod"), &names[0]);
        let outcome = disrupt(&cluster.snapshot, &[], Method::SingleNodeConsolidation);
        assert_eq!(outcome.command, None);
        assert_eq!(outcome.blocked[&names[0]], expected);
    }
    let mut prices: Vec<f64> = (0..20).map(|index| 1.0 + f64::from(index) / 100.0).collect();
    prices.push(9.0);
    let (mut cluster, names) = standing(spot(), priced(&prices), &["9"], "spot");
    cluster.snapshot.options.spot_to_spot_consolidation = true;
    cluster.run(small("pod"), &names[0]);
    let command = disrupt(&cluster.snapshot, &[], Method::SingleNodeConsolidation)
        .command
        .expect("a command");
    assert_eq!(command.replacements[0].instance_types.len(), 15);
    assert_eq!(command.replacements[0].instance_types[0], "costs-1");
}

/// 42: nothing dearer, and nothing that only might be cheaper.
#[test]
fn never_replaces_by_something_dearer() {
    let (mut cluster, names) = standing(
        on_demand("default", "100%"),
        priced(&[1.0, 9.0]),
        &["1"],
        "on-demand",
    );
    cluster.run(small("pod"), &names[0]);
    let outcome = next_command(&cluster.snapshot, &[]);
    assert_eq!(outcome.command, None);
    assert_eq!(outcome.blocked[&names[0]], "Can't replace with a cheaper node");
    // Cheap in one zone and dear in the other: the dear one could be what is launched.
    let mut kinds = priced(&[5.0]);
    kinds.push(with_offerings(
        instance_type("both", &[("cpu", "32"), ("memory", "32Gi"), ("pods", "100")]),
        vec![
            offering("on-demand", "test-zone-1", 1.0),
            offering("on-demand", "test-zone-2", 9.0),
        ],
    ));
    let (mut cluster, names) = standing(on_demand("default", "100%"), kinds, &["5"], "on-demand");
    cluster.run(small("pod"), &names[0]);
    assert_eq!(next_command(&cluster.snapshot, &[]).command, None);
}

/// An on-demand node is replaced by a cheaper one; where spot is allowed too the replacement is pinned to spot.
#[test]
fn replaces_by_something_cheaper() {
    for (pool, expected) in [
        (on_demand("default", "100%"), "on-demand"),
        (with_budget(pool("default"), "100%"), "spot"),
    ] {
        let (mut cluster, names) = standing(pool, priced(&[1.0, 9.0]), &["9"], "on-demand");
        cluster.run(small("pod"), &names[0]);
        let command = next_command(&cluster.snapshot, &[]).command.expect("a command");
        assert_eq!(command.method, Method::SingleNodeConsolidation);
        assert_eq!(command.replacements[0].instance_types, ["costs-1"]);
        let pinned = command.replacements[0]
            .requirements
            .iter()
            .find(|own| own.key == CAPACITY_TYPE)
            .expect("pinned");
        assert_eq!(pinned.values, [expected]);
    }
}

/// Pinned to spot, only types that are to be had as spot are listed; where there are none, it is on demand.
#[test]
fn lists_only_what_can_be_launched() {
    let on_demand_only = |price: f64| {
        with_offerings(
            priced(&[price]).remove(0),
            vec![offering("on-demand", "test-zone-1", price)],
        )
    };
    for (spot, types, capacity_types) in [
        (true, vec!["costs-2"], vec!["spot"]),
        (false, vec!["costs-1"], vec![]),
    ] {
        let mut kinds = vec![on_demand_only(1.0), on_demand_only(9.0)];
        if spot {
            kinds.extend(priced(&[2.0]));
        }
        let pool = with_budget(pool("default"), "100%");
        let (mut cluster, names) = standing(pool, kinds, &["9"], "on-demand");
        cluster.run(small("pod"), &names[0]);
        let command = next_command(&cluster.snapshot, &[]).command.expect("a command");
        let replacement = &command.replacements[0];
        assert_eq!(replacement.instance_types, types);
        let pinned = replacement
            .requirements
            .iter()
            .find(|own| own.key == CAPACITY_TYPE);
        assert_eq!(
            pinned.map_or_else(Vec::new, |own| own.values.clone()),
            capacity_types
        );
    }
}

/// 43: no counting on nodes that have not come up, no pod left behind; pods that wait anyway do not matter.
#[test]
fn leaves_no_pod_behind() {
    let (mut cluster, names) = standing(
        on_demand("default", "100%"),
        priced(&[1.0]),
        &["1"; 2],
        "on-demand",
    );
    cluster.run(small("pod"), &names[0]);
    assert_eq!(
        nodes(&disrupt(&cluster.snapshot, &[], Method::SingleNodeConsolidation)),
        [names[0].as_str()]
    );
    let mut waiting = pod("forever", &[("cpu", "1000")]);
    waiting.status.conditions.push(slipway_packing::model::Condition {
        reason: "Unschedulable".to_owned(),
        ..condition("PodScheduled", "False")
    });
    let outcome = disrupt(&cluster.snapshot, &[waiting], Method::SingleNodeConsolidation);
    assert_eq!(nodes(&outcome), [names[0].as_str()]);
    cluster.snapshot.nodes[1].metadata.labels.remove(INITIALIZED);
    let outcome = disrupt(&cluster.snapshot, &[], Method::SingleNodeConsolidation);
    assert_eq!(outcome.command, None);
    assert!(
        outcome.blocked[&names[0]].contains("would schedule against uninitialized"),
        "{:?}",
        outcome.blocked
    );

    let (mut cluster, names) = standing(on_demand("default", "100%"), priced(&[1.0]), &["1"], "on-demand");
    let mut lonely = small("pod");
    lonely
        .spec
        .node_selector
        .insert("team".to_owned(), "web".to_owned());
    cluster.snapshot.nodes[0]
        .metadata
        .labels
        .insert("team".to_owned(), "web".to_owned());
    cluster.run(lonely, &names[0]);
    let outcome = next_command(&cluster.snapshot, &[]);
    assert_eq!(outcome.command, None);
    assert!(
        outcome.blocked[&names[0]].contains("not all pods would schedule"),
        "{:?}",
        outcome.blocked
    );
}

/// 44: asked again, a command is gone once something protects the pods or the node.
#[test]
fn protection_that_appears_later_counts() {
    let (mut cluster, names) = standing(
        on_demand("default", "100%"),
        priced(&[1.0, 9.0]),
        &["9"],
        "on-demand",
    );
    cluster.run(labelled("pod", &[("cpu", "1")], &[("app", "web")]), &names[0]);
    let before = cluster.snapshot.clone();
    assert!(next_command(&before, &[]).command.is_some());

    let mut protected = before.clone();
    protected.bound_pods[0]
        .metadata
        .annotations
        .insert(DO_NOT_DISRUPT.to_owned(), "true".to_owned());
    assert!(next_command(&protected, &[]).blocked[&names[0]].contains("do-not-disrupt"));

    let mut guarded = before.clone();
    let mut budget = PodDisruptionBudget::default();
    budget.metadata.name = "web".to_owned();
    budget.metadata.namespace = "default".to_owned();
    budget.spec.selector = selector(&[("app", "web")]);
    guarded.pod_disruption_budgets.push(budget.clone());
    assert!(next_command(&guarded, &[]).blocked[&names[0]].contains("pdb prevents pod evictions"));
    guarded.pod_disruption_budgets[0].status.disruptions_allowed = 1;
    assert!(next_command(&guarded, &[]).command.is_some());
    guarded.pod_disruption_budgets.push(budget);
    assert!(next_command(&guarded, &[]).blocked[&names[0]].contains("multiple PDBs"));

    let mut for_a_while = before.clone();
    for_a_while.bound_pods[0]
        .metadata
        .annotations
        .insert(DO_NOT_DISRUPT.to_owned(), "10m".to_owned());
    for_a_while.bound_pods[0].status.start_time = Some("2026-01-01T00:00:00Z".to_owned());
    for (now, free) in [("2026-01-01T00:09:59Z", false), ("2026-01-01T00:10:00Z", true)] {
        for_a_while.options.now = Some(now.to_owned());
        assert_eq!(next_command(&for_a_while, &[]).command.is_some(), free, "{now}");
    }

    let mut promised = before;
    promised.nominated_nodes.push(names[0].clone());
    assert_eq!(next_command(&promised, &[]).command, None);
}

/// 45: drifted nodes go one at a time, empty ones first, then the longest drifted.
#[test]
fn drift_goes_one_by_one() {
    let (mut cluster, names) = standing(
        on_demand("default", "100%"),
        priced(&[1.0]),
        &["1"; 4],
        "on-demand",
    );
    let drifted = |cluster: &mut Cluster, index: usize, since: &str| {
        let mut drifted = condition("Drifted", "True");
        drifted.last_transition_time = Some(since.to_owned());
        cluster.snapshot.node_claims[index]
            .status
            .conditions
            .push(drifted);
    };
    drifted(&mut cluster, 0, "2026-01-03T00:00:00Z");
    drifted(&mut cluster, 1, "2026-01-02T00:00:00Z");
    drifted(&mut cluster, 2, "2026-01-04T00:00:00Z");
    cluster.run(small("one"), &names[0]);
    cluster.run(small("two"), &names[1]);
    let outcome = disrupt(&cluster.snapshot, &[], Method::Drift);
    assert_eq!(nodes(&outcome), [names[2].as_str()]);
    cluster.snapshot.deleting_nodes.push(names[2].clone());
    let outcome = disrupt(&cluster.snapshot, &[], Method::Drift);
    assert_eq!(nodes(&outcome), [names[1].as_str()]);
    // A pod that must not move keeps the node unless the claim bounds its drain.
    cluster.snapshot.bound_pods[1]
        .metadata
        .annotations
        .insert(DO_NOT_DISRUPT.to_owned(), "true".to_owned());
    assert_eq!(
        nodes(&disrupt(&cluster.snapshot, &[], Method::Drift)),
        [names[0].as_str()]
    );
    cluster.snapshot.node_claims[1].spec.termination_grace_period = Some("1h".to_owned());
    assert_eq!(
        nodes(&disrupt(&cluster.snapshot, &[], Method::Drift)),
        [names[1].as_str()]
    );
}

/// Balanced pools refuse moves that save little for what they disrupt.
#[test]
fn balanced_pools_weigh_savings() {
    // Eight of nine saved for half of the pool's disruption, or half a unit of nine.
    for (cheaper, goes) in [(1.0, true), (8.5, false)] {
        let mut pool = on_demand("default", "100%");
        pool.spec.disruption.consolidation_policy = "Balanced".to_owned();
        let (mut cluster, names) = standing(pool, priced(&[cheaper, 9.0]), &["9", "9"], "on-demand");
        cluster.run(small("pod"), &names[0]);
        // The other node is full and stays, so that only a replacement is possible.
        let mut full = pod("full", &[("cpu", "31.9")]);
        full.metadata
            .annotations
            .insert(DO_NOT_DISRUPT.to_owned(), "true".to_owned());
        cluster.run(full, &names[1]);
        let outcome = disrupt(&cluster.snapshot, &[], Method::SingleNodeConsolidation);
        assert_eq!(outcome.command.is_some(), goes, "{cheaper} {:?}", outcome.blocked);
        assert_eq!(outcome.blocked.contains_key(&names[0]), !goes);
    }
}

/// Several nodes become several cheaper ones only where that is asked for.
#[test]
fn many_to_many() {
    for (enabled, replacements) in [(false, None), (true, Some(2))] {
        let (mut cluster, names) = standing(
            on_demand("default", "100%"),
            priced(&[1.0, 9.0]),
            &["9"; 3],
            "on-demand",
        );
        cluster.snapshot.options.improvements.many_to_many_consolidation = enabled;
        for (index, name) in names.iter().enumerate() {
            cluster.run(pod(&format!("pod-{index}"), &[("cpu", "14")]), name);
        }
        let outcome = disrupt(&cluster.snapshot, &[], Method::MultiNodeConsolidation);
        let found = outcome
            .command
            .filter(|command| command.nodes.len() == 3)
            .map(|command| command.replacements.len());
        assert_eq!(found, replacements);
    }
}

#[test]
fn all_are_here() {
    let source = include_str!("named_disruption.rs");
    let numbers = source
        .lines()
        .filter_map(|line| line.strip_prefix("/// "))
        .filter_map(|line| line.split(':').next());
    let covered = numbers
        .filter_map(|number| number.parse::<usize>().ok())
        .filter(|number| (37..=45).contains(number));
    crate::report::oracle("named disruption behaviours", covered.count(), 9, 9);
}
