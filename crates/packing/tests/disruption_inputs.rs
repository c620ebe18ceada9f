//! What whoever disrupts says beyond Karpenter's model: nodes that are kept, offerings that labels do not tell, limits that hold
//! while a replacement comes, and what was decided a while ago.

use std::collections::BTreeSet;

use slipway_packing::disrupt::{Method, disrupt_among};
use slipway_packing::labels::{CAPACITY_TYPE, INSTANCE_TYPE, ZONE};
use slipway_packing::model::{Budget, InstanceType, NodePool, OfferingOf, PackingPolicy};
use slipway_packing::requirement::{Operator, RequirementSpec};

use crate::cluster::{
    Cluster, condition, instance_type, offering, pod, pool, pool_with, quantities, requirement,
    with_offerings,
};
use crate::judged::disrupt;

fn free(mut pool: NodePool) -> NodePool {
    pool.spec.disruption.budgets = Some(vec![Budget {
        nodes: "100%".to_owned(),
        ..Budget::default()
    }]);
    pool.spec.disruption.consolidate_after = Some("0s".to_owned());
    pool.spec.disruption.consolidation_policy = "WhenEmptyOrUnderutilized".to_owned();
    pool
}

fn on_demand() -> NodePool {
    free(pool_with(
        "default",
        vec![requirement(CAPACITY_TYPE, Operator::In, &["on-demand"])],
    ))
}

fn kind(name: &str, cpu: &str, price: f64) -> InstanceType {
    with_offerings(
        instance_type(name, &[("cpu", cpu), ("memory", "32Gi"), ("pods", "100")]),
        vec![offering("on-demand", "test-zone-1", price)],
    )
}

fn two_empty() -> (Cluster, Vec<String>) {
    let mut cluster = Cluster::new(vec![on_demand()], vec![kind("one", "4", 1.0)]);
    let names = (0..2)
        .map(|_| cluster.add_node("default", "one", "test-zone-1", "on-demand"))
        .collect();
    (cluster, names)
}

fn gone(outcome: &slipway_packing::disrupt::Outcome) -> Vec<String> {
    outcome
        .commands()
        .flat_map(|command| command.nodes.clone())
        .collect()
}

#[test]
fn what_was_decided_holds_for_its_own_nodes_alone() {
    let (mut cluster, names) = two_empty();
    let first: BTreeSet<String> = [names[0].clone()].into();
    let among = |cluster: &Cluster| {
        gone(&disrupt_among(
            &cluster.snapshot,
            &[],
            Method::Emptiness,
            Some(&first),
        ))
    };
    assert_eq!(among(&cluster), [names[0].clone()]);
    cluster.run(pod("late", &[("cpu", "1")]), &names[0]);
    assert_eq!(
        among(&cluster),
        [""; 0],
        "it filled meanwhile, and the other was not decided for"
    );
}

#[test]
fn kept_nodes_stay_unless_they_drift() {
    let (mut cluster, names) = two_empty();
    let why = "its object has no more than the 1 machines it keeps";
    cluster
        .snapshot
        .kept_nodes
        .insert(names[0].clone(), why.to_owned());
    let outcome = disrupt(&cluster.snapshot, &[], Method::Emptiness);
    assert_eq!(gone(&outcome), [names[1].clone()]);
    assert_eq!(outcome.blocked[&names[0]], why);
    cluster.snapshot.node_claims[0]
        .status
        .conditions
        .push(condition("Drifted", "True"));
    let drifted = disrupt(&cluster.snapshot, &[], Method::Drift);
    assert_eq!(gone(&drifted), [names[0].clone()]);
}

/// Two nodes of a pool whose limit is two: nothing can come before one of them went.
#[test]
fn a_replacement_needs_room_in_the_limits_beside_its_node() {
    for (within, goes) in [(false, 1), (true, 0)] {
        let mut pool = on_demand();
        pool.spec.limits = quantities(&[("nodes", "2")]);
        let mut cluster = Cluster::new(vec![pool], vec![kind("one", "4", 1.0)]);
        for index in 0..2 {
            let name = cluster.add_node("default", "one", "test-zone-1", "on-demand");
            cluster.run(pod(&format!("pod-{index}"), &[("cpu", "3")]), &name);
        }
        cluster.snapshot.node_claims[0]
            .status
            .conditions
            .push(condition("Drifted", "True"));
        let improvements = &mut cluster.snapshot.options.improvements;
        improvements.exact_node_limits = true;
        improvements.replacements_within_limits = within;
        let outcome = slipway_packing::disrupt::disrupt(&cluster.snapshot, &[], Method::Drift);
        assert_eq!(gone(&outcome).len(), goes, "{within}: {:?}", outcome.blocked);
        if within {
            let why = outcome.blocked.values().next().expect("it says why");
            assert!(why.contains("limit"), "{why}");
        }
    }
}

/// Where nobody has zones, and two types share a name that labels tell: the caller says which offering a node is.
#[test]
fn offerings_that_labels_do_not_tell() {
    let without_zone = |name: &str, price: f64| {
        let mut kind = kind(name, "4", price);
        kind.requirements
            .retain(|own| own.key != ZONE && own.key != INSTANCE_TYPE);
        kind.requirements
            .push(requirement(INSTANCE_TYPE, Operator::In, &["shared"]));
        kind.requirements
            .push(RequirementSpec::new(ZONE, Operator::DoesNotExist, &[]));
        for offering in &mut kind.offerings {
            offering.requirements.retain(|own| own.key != ZONE);
            offering
                .requirements
                .push(RequirementSpec::new(ZONE, Operator::DoesNotExist, &[]));
        }
        kind
    };
    let kinds = vec![
        without_zone("shared@dear", 1.0),
        without_zone("shared@cheap", 0.5),
    ];
    let mut cluster = Cluster::new(vec![on_demand()], kinds);
    let name = cluster.add_node("default", "shared@dear", "", "on-demand");
    cluster.run(pod("pod", &[("cpu", "3")]), &name);
    for node in &mut cluster.snapshot.nodes {
        node.metadata.labels.remove(ZONE);
        node.metadata
            .labels
            .insert(INSTANCE_TYPE.to_owned(), "shared".to_owned());
    }
    let ask = |cluster: &Cluster| {
        slipway_packing::disrupt::disrupt(&cluster.snapshot, &[], Method::SingleNodeConsolidation)
    };
    assert_eq!(gone(&ask(&cluster)), [""; 0], "nobody knows what it costs");
    let claim = cluster.snapshot.node_claims[0].metadata.name.clone();
    let dear = OfferingOf {
        instance_type: "shared@dear".to_owned(),
        zone: String::new(),
        capacity_type: "on-demand".to_owned(),
        price: None,
    };
    cluster.snapshot.offerings.insert(claim, dear);
    let outcome = ask(&cluster);
    assert_eq!(gone(&outcome), [name], "{:?}", outcome.blocked);
    let command = outcome.command.expect("a command");
    assert_eq!(command.replacements[0].instance_types, ["shared@cheap"]);
    assert!((command.savings - 0.5).abs() < 1e-9);
}

/// A pool that names no capacity type, over types that are only to be had on demand: whatever comes can be launched.
#[test]
fn the_policy_cost_pins_nothing_to_spot_that_is_not_to_be_had_as_spot() {
    let kinds = vec![kind("small", "4", 1.0), kind("large", "8", 1.5)];
    let mut cluster = Cluster::new(vec![free(pool("default"))], kinds);
    cluster.snapshot.options.packing = PackingPolicy::Cost;
    for index in 0..2 {
        let name = cluster.add_node("default", "small", "test-zone-1", "on-demand");
        cluster.run(pod(&format!("pod-{index}"), &[("cpu", "3")]), &name);
    }
    let outcome = disrupt(&cluster.snapshot, &[], Method::CostConsolidation);
    let command = outcome.command.expect("two small ones become a large one");
    assert_eq!(command.nodes.len(), 2);
    assert!((command.savings - 0.5).abs() < 1e-9, "{}", command.savings);
    let [replacement] = &command.replacements[..] else {
        panic!("{:?}", command.replacements)
    };
    assert_eq!(replacement.instance_types, ["large"]);
    let pinned = replacement.requirements.iter().any(|own| {
        own.key == CAPACITY_TYPE
            && own.operator == Operator::In
            && !own.values.iter().any(|value| value == "on-demand")
    });
    assert!(!pinned, "{:?}", replacement.requirements);
}

/// The same by Karpenter's way for many nodes: on demand, where nothing is to be had as spot; spot alone, where that is the cheaper one.
#[test]
fn many_nodes_become_one_that_can_be_launched() {
    let with_spot = |price: f64| {
        let mut large = kind("large", "8", 1.5);
        large
            .requirements
            .retain(|own| own.key != CAPACITY_TYPE && own.key != ZONE);
        let mut offerings = std::mem::take(&mut large.offerings);
        offerings.push(offering("spot", "test-zone-1", price));
        with_offerings(large, offerings)
    };
    for (large, launched, capacity_types) in [
        (kind("large", "8", 1.5), false, None),
        (kind("large", "8", 1.5), true, None),
        (with_spot(0.9), false, Some("spot")),
        (with_spot(0.9), true, Some("spot")),
        // Whoever launches the cheapest launches it on demand.
        (with_spot(1.8), true, None),
    ] {
        let mut cluster = Cluster::new(vec![free(pool("default"))], vec![kind("small", "4", 1.0), large]);
        cluster.snapshot.options.improvements.cheapest_is_launched = launched;
        for index in 0..2 {
            let name = cluster.add_node("default", "small", "test-zone-1", "on-demand");
            cluster.run(pod(&format!("pod-{index}"), &[("cpu", "3")]), &name);
        }
        let outcome = disrupt(&cluster.snapshot, &[], Method::MultiNodeConsolidation);
        let command = outcome.command.expect("two small ones become a large one");
        assert_eq!(command.nodes.len(), 2);
        let [replacement] = &command.replacements[..] else {
            panic!("{:?}", command.replacements)
        };
        assert_eq!(replacement.instance_types, ["large"]);
        let own = replacement
            .requirements
            .iter()
            .find(|own| own.key == CAPACITY_TYPE);
        let pinned = own.filter(|own| own.operator == Operator::In && own.values.len() == 1);
        let pinned = pinned.map(|own| own.values[0].as_str());
        assert_eq!(
            pinned, capacity_types,
            "{launched}: {:?}",
            replacement.requirements
        );
    }
}

/// Two objects make the same machines at two prices: the node is of the dear one, and the cheap one is what would be launched.
#[test]
fn offerings_that_differ_only_in_price() {
    let mut both = kind("same", "4", 1.0);
    both.offerings.push(offering("on-demand", "test-zone-1", 0.5));
    let mut cluster = Cluster::new(vec![on_demand()], vec![both]);
    let name = cluster.add_node("default", "same", "test-zone-1", "on-demand");
    cluster.run(pod("pod", &[("cpu", "3")]), &name);
    let claim = cluster.snapshot.node_claims[0].metadata.name.clone();
    let ask = |cluster: &Cluster| {
        gone(&slipway_packing::disrupt::disrupt(
            &cluster.snapshot,
            &[],
            Method::SingleNodeConsolidation,
        ))
    };
    for (price, launched, goes) in [(1.0, true, 1), (0.5, true, 0), (1.0, false, 0)] {
        cluster.snapshot.options.improvements.cheapest_is_launched = launched;
        let own = OfferingOf {
            instance_type: "same".to_owned(),
            zone: "test-zone-1".to_owned(),
            capacity_type: "on-demand".to_owned(),
            price: Some(price),
        };
        cluster.snapshot.offerings.insert(claim.clone(), own);
        assert_eq!(ask(&cluster).len(), goes, "{price} {launched}");
    }
}
