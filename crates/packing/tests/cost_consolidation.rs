//! Consolidation by the policy `cost`: never worse than Karpenter's methods, judged like every command, and it ends.

use slipway_packing::disrupt::{Command, Decision, Method};
use slipway_packing::labels::{CAPACITY_TYPE, PACKING};
use slipway_packing::model::{InstanceType, MinimumSavings, NodePool, PackingPolicy, Pod, Snapshot};
use slipway_packing::requirement::Operator;

use crate::cluster::{
    Cluster, condition, instance_type, labelled, offering, pod, pool_with, requirement, with_offerings,
};
use crate::constraints::spread;
use crate::differential::random::Random;
use crate::judged::{disrupt, next_command, schedule};

/// Prices added up in another order differ by less.
const ROUNDING: f64 = 1e-6;

pub fn on_demand(name: &str) -> NodePool {
    let mut pool = pool_with(
        name,
        vec![requirement(CAPACITY_TYPE, Operator::In, &["on-demand"])],
    );
    pool.spec.disruption.budgets = Some(Vec::new());
    pool.spec.disruption.consolidate_after = Some("0s".to_owned());
    pool.spec.disruption.consolidation_policy = "WhenEmptyOrUnderutilized".to_owned();
    pool
}

fn kind(name: &str, cpu: &str, memory: &str, price: f64) -> InstanceType {
    let resources = [("cpu", cpu), ("memory", memory), ("pods", "30")];
    let zones = ["test-zone-1", "test-zone-2", "test-zone-3"];
    with_offerings(
        instance_type(name, &resources),
        zones
            .iter()
            .flat_map(|zone| {
                [
                    offering("on-demand", zone, price),
                    offering("spot", zone, price * 0.4),
                ]
            })
            .collect(),
    )
}

/// Where a large node costs less than two small ones only if it is full.
fn kinds() -> Vec<InstanceType> {
    vec![
        kind("c2", "2", "4Gi", 0.10),
        kind("c4", "4", "8Gi", 0.19),
        kind("m4", "4", "16Gi", 0.22),
        kind("c8", "8", "16Gi", 0.40),
        kind("r8", "8", "64Gi", 0.55),
        kind("m16", "16", "64Gi", 0.83),
        kind("odd", "5", "9Gi", 0.35),
    ]
}

pub fn cost_of(snapshot: &Snapshot) -> f64 {
    snapshot
        .nodes
        .iter()
        .map(|node| {
            let label = |key: &str| node.metadata.labels.get(key).cloned().unwrap_or_default();
            let kinds = &snapshot.instance_types[&label("karpenter.sh/nodepool")];
            let own = kinds
                .iter()
                .find(|kind| kind.name == label("node.kubernetes.io/instance-type"))
                .expect("its type");
            let desired = [
                (
                    "topology.kubernetes.io/zone",
                    label("topology.kubernetes.io/zone"),
                ),
                (CAPACITY_TYPE, label(CAPACITY_TYPE)),
            ];
            own.offerings
                .iter()
                .find(|offering| {
                    desired.iter().all(|(key, value)| {
                        let mut requirements = offering.requirements.iter();
                        requirements.any(|own| own.key == *key && own.values[0] == *value)
                    })
                })
                .expect("its offering")
                .price
        })
        .sum()
}

/// A cluster that filled up in two batches, and of which most pods went again.
pub fn worn(seed: u64) -> Cluster {
    worn_of(on_demand("default"), seed)
}

/// The same of nodes of this pool.
pub fn worn_of(pool: NodePool, seed: u64) -> Cluster {
    let random = &mut Random::new(seed);
    let mut cluster = Cluster::new(vec![pool], kinds());
    for batch in 0..2 {
        let pods: Vec<Pod> = (0..random.between(5, 40))
            .map(|index| {
                let (cpu, memory) = (
                    random.pick(&["100m", "500m", "1", "1700m", "3"]),
                    random.pick(&["100Mi", "1Gi", "3Gi", "9Gi"]),
                );
                let group = random.pick(&["a", "b", "c"]);
                let mut pod = labelled(
                    &format!("pod-{batch}-{index}"),
                    &[("cpu", cpu), ("memory", memory)],
                    &[("app", group)],
                );
                if random.chance(20) {
                    pod.spec.topology_spread_constraints =
                        vec![spread("topology.kubernetes.io/zone", 1, &[("app", group)])];
                }
                pod
            })
            .collect();
        cluster.provision(pods);
    }
    let kept: Vec<bool> = (0..cluster.snapshot.bound_pods.len())
        .map(|_| random.chance(40))
        .collect();
    let mut kept = kept.iter();
    cluster
        .snapshot
        .bound_pods
        .retain(|_| *kept.next().expect("one for each"));
    cluster
}

fn with_policy(snapshot: &Snapshot, policy: PackingPolicy) -> Snapshot {
    let mut snapshot = snapshot.clone();
    snapshot.options.packing = policy;
    snapshot
}

fn savings(command: Option<&Command>) -> f64 {
    command.map_or(0.0, |command| command.savings)
}

#[test]
fn never_worse_than_karpenters_methods_and_always_valid() {
    let seeds = if std::env::var_os("SLIPWAY_TEST_FULL").is_some() {
        1_000
    } else {
        60
    };
    let (mut better, mut commands, mut ours, mut theirs) = (0, 0, 0.0, 0.0);
    for seed in 0..seeds {
        let cluster = worn(seed);
        let karpenter = with_policy(&cluster.snapshot, PackingPolicy::Karpenter);
        let found = [Method::MultiNodeConsolidation, Method::SingleNodeConsolidation]
            .map(|method| disrupt(&karpenter, &[], method).command);
        let baseline = found
            .iter()
            .map(|command| savings(command.as_ref()))
            .fold(0.0, f64::max);
        let cost = with_policy(&cluster.snapshot, PackingPolicy::Cost);
        let outcome = disrupt(&cost, &[], Method::CostConsolidation);
        let saved = savings(outcome.command.as_ref());
        assert!(
            saved >= baseline - ROUNDING,
            "seed {seed}: {saved} against {baseline}"
        );
        assert_eq!(
            outcome,
            disrupt(&cost, &[], Method::CostConsolidation),
            "seed {seed}: the same again"
        );
        assert_eq!(disrupt(&karpenter, &[], Method::CostConsolidation).command, None);
        assert_eq!(disrupt(&cost, &[], Method::MultiNodeConsolidation).command, None);
        commands += usize::from(outcome.command.is_some());
        better += usize::from(saved > baseline + ROUNDING);
        ours += saved;
        theirs += baseline;
    }
    assert!(commands > 0 && better > 0, "the clusters test something");
    println!(
        "report: packing optimum: of {seeds} worn clusters {commands} are consolidated at the least cost, {better} better than by Karpenter's methods; one command saves {ours:.2} an hour in all, Karpenter's {theirs:.2}"
    );
}

/// Without new pods every command makes the cluster cheaper, and after a few there is none left; no pod is lost on the way.
#[test]
fn it_ends_at_a_fixed_point_that_costs_no_more_than_karpenters() {
    let (mut cheaper, mut ours, mut theirs) = (0, 0.0, 0.0);
    for seed in 0..25 {
        let [cost, karpenter] = [PackingPolicy::Cost, PackingPolicy::Karpenter].map(|policy| {
            let mut cluster = worn(seed);
            cluster.snapshot.options.packing = policy;
            let pods = cluster.snapshot.bound_pods.len();
            let nodes = cluster.node_count();
            let mut rounds = 0;
            loop {
                let before = cost_of(&cluster.snapshot);
                let outcome = next_command(&cluster.snapshot, &[]);
                let Some(command) = &outcome.command else { break };
                cluster.carry_out(command);
                let after = cost_of(&cluster.snapshot);
                assert!(
                    after < before,
                    "seed {seed}, {policy:?}: {after} after {before} by {command:?}"
                );
                assert!(
                    (before - after - command.savings).abs() < ROUNDING,
                    "seed {seed}: {} was said, {} is saved",
                    command.savings,
                    before - after
                );
                assert_eq!(cluster.snapshot.bound_pods.len(), pods, "seed {seed}");
                rounds += 1;
                assert!(
                    rounds <= 4 * nodes,
                    "seed {seed}, {policy:?}: {rounds} rounds over {nodes} nodes"
                );
            }
            cost_of(&cluster.snapshot)
        });
        cheaper += usize::from(cost < karpenter - ROUNDING);
        ours += cost;
        theirs += karpenter;
    }
    assert!(ours <= theirs + ROUNDING, "{ours} against {theirs}");
    assert!(cheaper > 0);
    println!(
        "report: packing optimum: 25 worn clusters end at {ours:.2} an hour by the policy cost, at {theirs:.2} by Karpenter's ({cheaper} cheaper)"
    );
}

fn standing(pool: NodePool, nodes: &[&str]) -> (Cluster, Vec<String>) {
    let mut cluster = Cluster::new(vec![pool], kinds());
    cluster.snapshot.options.packing = PackingPolicy::Cost;
    let names = nodes
        .iter()
        .map(|kind| cluster.add_node("default", kind, "test-zone-1", "on-demand"))
        .collect();
    (cluster, names)
}

/// One large node that is half empty is dearer than two small ones: one for two, which Karpenter does not do.
#[test]
fn one_node_for_two() {
    let (mut cluster, names) = standing(on_demand("default"), &["m16"]);
    for index in 0..2 {
        cluster.run(
            pod(&format!("pod-{index}"), &[("cpu", "3500m"), ("memory", "7Gi")]),
            &names[0],
        );
    }
    let outcome = disrupt(&cluster.snapshot, &[], Method::CostConsolidation);
    let command = outcome.command.expect("a command");
    assert_eq!(
        (command.decision, command.nodes.len(), command.method),
        (Decision::Replace, 1, Method::CostConsolidation)
    );
    let price: f64 = command
        .replacements
        .iter()
        .map(|claim| claim.cheapest_price)
        .sum();
    assert!(
        command.replacements.len() == 2 && (price - 0.38).abs() < ROUNDING,
        "{price}"
    );
    for claim in &command.replacements {
        assert_eq!(
            claim.instance_types.len(),
            1,
            "it costs what was worked out, whatever is launched"
        );
    }
}

/// Weights, the least that has to be saved, and how many nodes go.
#[test]
fn what_a_move_and_a_node_are_worth_decides() {
    // Two nodes of 0.19 with one small pod each: one of them can go and save 0.19, for one pod that moves.
    for (eviction, node, minimum, goes) in [
        (0.0, 0.0, (0.0, 0.0), true),
        (0.1, 0.0, (0.0, 0.0), true),
        (0.5, 0.0, (0.0, 0.0), false),
        // A node less is worth what the move costs.
        (0.5, 0.4, (0.0, 0.0), true),
        (0.0, 0.0, (0.15, 0.0), true),
        (0.0, 0.0, (0.5, 0.0), false),
        (0.0, 0.0, (0.0, 90.0), true),
        (0.0, 0.0, (0.0, 101.0), false),
    ] {
        let (mut cluster, names) = standing(on_demand("default"), &["c4", "c4"]);
        for (index, name) in names.iter().enumerate() {
            cluster.run(
                pod(&format!("pod-{index}"), &[("cpu", "1500m"), ("memory", "1Gi")]),
                name,
            );
        }
        let options = &mut cluster.snapshot.options;
        options.packing_weights.eviction = eviction;
        options.packing_weights.node = node;
        options.minimum_savings = MinimumSavings {
            per_hour: minimum.0,
            percent: minimum.1,
        };
        let outcome = disrupt(&cluster.snapshot, &[], Method::CostConsolidation);
        assert_eq!(
            outcome.command.is_some(),
            goes,
            "eviction {eviction}, node {node}, minimum {minimum:?}: {:?}",
            outcome.command
        );
    }
}

/// The least that has to be saved holds for Karpenter's methods too.
#[test]
fn a_minimum_of_savings() {
    // 0.40 becomes 0.19: 0.21 are saved, 52.5 %.
    for (per_hour, percent, goes) in [
        (0.0, 0.0, true),
        (0.2, 50.0, true),
        (0.25, 0.0, false),
        (0.0, 60.0, false),
    ] {
        let (mut cluster, names) = standing(on_demand("default"), &["c8"]);
        cluster.snapshot.options.packing = PackingPolicy::Karpenter;
        cluster.run(pod("pod", &[("cpu", "3"), ("memory", "1Gi")]), &names[0]);
        cluster.snapshot.options.minimum_savings = MinimumSavings { per_hour, percent };
        let outcome = disrupt(&cluster.snapshot, &[], Method::SingleNodeConsolidation);
        assert_eq!(outcome.command.is_some(), goes, "{per_hour} and {percent} %");
    }
}

/// Karpenter bars nodes inside `consolidateAfter` as destinations (karpenter#3225); the option opens them again.
#[test]
fn busy_nodes_as_destinations() {
    for (opened, goes) in [(false, false), (true, true)] {
        for policy in [PackingPolicy::Karpenter, PackingPolicy::Cost] {
            let mut pool = on_demand("default");
            pool.spec.disruption.consolidate_after = Some("1h".to_owned());
            let (mut cluster, names) = standing(pool, &["c2", "c4"]);
            cluster.snapshot.options.packing = policy;
            cluster.snapshot.options.now = Some("2026-01-01T00:10:00Z".to_owned());
            cluster.snapshot.options.improvements.busy_destinations = opened;
            for (index, name) in names.iter().enumerate() {
                cluster.run(
                    pod(&format!("pod-{index}"), &[("cpu", "1500m"), ("memory", "1Gi")]),
                    name,
                );
            }
            let busy = &mut cluster.snapshot.node_claims[1];
            busy.status.last_pod_event_time = Some("2026-01-01T00:00:00Z".to_owned());
            busy.status.conditions.retain(|own| own.kind != "Consolidatable");
            busy.status.conditions.push(condition("Consolidatable", "False"));
            let outcome = next_command(&cluster.snapshot, &[]);
            let gone = outcome.command.map(|command| command.nodes);
            assert_eq!(
                gone,
                goes.then(|| vec![names[0].clone()]),
                "{policy:?}, opened: {opened}"
            );
        }
    }
}

/// An annotation on a NodePool says more than the option; nodes of other pools are left to their own policy.
#[test]
fn a_pools_annotation_decides_for_its_nodes() {
    let annotated = |name: &str, policy: &str| {
        let mut pool = on_demand(name);
        pool.metadata
            .annotations
            .insert(PACKING.to_owned(), policy.to_owned());
        pool
    };
    for (annotation, option, cost) in [
        ("cost", PackingPolicy::Karpenter, true),
        ("karpenter", PackingPolicy::Cost, false),
        ("something else", PackingPolicy::Cost, true),
        ("something else", PackingPolicy::Karpenter, false),
    ] {
        let (mut cluster, names) = standing(annotated("default", annotation), &["m16"]);
        cluster.snapshot.options.packing = option;
        for index in 0..2 {
            cluster.run(
                pod(&format!("pod-{index}"), &[("cpu", "3500m"), ("memory", "7Gi")]),
                &names[0],
            );
        }
        let outcome = next_command(&cluster.snapshot, &[]);
        let found = outcome.command.map(|command| command.method);
        let is_cost = found == Some(Method::CostConsolidation);
        assert_eq!(is_cost, cost, "{annotation} with {option:?}: {found:?}");
        // Five pods of 900m: one node of 5 CPUs by the one policy, three of 2 by the other.
        let pods: Vec<Pod> = (0..5)
            .map(|index| pod(&format!("new-{index}"), &[("cpu", "900m"), ("memory", "1Gi")]))
            .collect();
        let mut empty = cluster.snapshot.clone();
        empty.nodes.clear();
        empty.node_claims.clear();
        empty.bound_pods.clear();
        let price: f64 = schedule(&empty, &pods)
            .new_claims
            .iter()
            .map(|claim| claim.cheapest_price)
            .sum();
        assert_eq!(
            price < 0.35 - ROUNDING,
            cost,
            "{annotation} with {option:?}: {price}"
        );
    }
}
