//! The policy `cost`: every plan passes the independent checker, costs no more than the ordinary one and no less than the
//! bound; on small clusters every way to pack is tried, and the cheapest lies between the bound and the plan.

use serde_json::{Value, json};
use slipway_packing::model::{PackingPolicy, Plan, Workload};
use slipway_packing::optimum::{self, Outcome};

use crate::differential::generator::{LATER_FROM, generate};
use crate::differential::random::Random;
use crate::judge;
use crate::judged::schedule;

const ZONE: &str = "topology.kubernetes.io/zone";
const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
const HOSTNAME: &str = "kubernetes.io/hostname";
/// Prices added up in another order differ by less.
const ROUNDING: f64 = 1e-6;

fn cost(plan: &Plan) -> f64 {
    plan.new_claims.iter().map(|claim| claim.cheapest_price).sum()
}

fn left(plan: &Plan) -> Vec<&str> {
    let mut left: Vec<&str> = plan
        .unschedulable
        .iter()
        .map(|refusal| refusal.uid.as_str())
        .collect();
    left.sort_unstable();
    left
}

/// Plans by both policies and holds them against each other.
fn checked(workload: &Workload, what: &str) -> Outcome {
    let ordinary = schedule(&workload.snapshot, &workload.pods);
    let outcome = optimum::plan(&workload.snapshot, &workload.pods);
    let problems = judge::problems(&workload.snapshot, &workload.pods, &outcome.plan);
    assert!(problems.is_empty(), "{what}: {}", problems.join("\n"));
    let before = left(&ordinary);
    assert!(
        left(&outcome.plan).iter().all(|uid| before.contains(uid)),
        "{what}: a pod is left that the ordinary plan places"
    );
    assert!(
        (outcome.ordinary_cost - cost(&ordinary)).abs() < ROUNDING,
        "{what}"
    );
    assert!((outcome.cost - cost(&outcome.plan)).abs() < ROUNDING, "{what}");
    assert!(
        outcome.cost <= outcome.ordinary_cost + ROUNDING,
        "{what}: {} is dearer than {}",
        outcome.cost,
        outcome.ordinary_cost
    );
    assert!(
        outcome.bound <= outcome.cost + ROUNDING,
        "{what}: the bound {} is above the cost {}",
        outcome.bound,
        outcome.cost
    );
    outcome
}

fn parsed(workload: Value) -> Workload {
    serde_json::from_value(workload).expect("a workload")
}

/// Small clusters with everything that packing knows. All of them with `SLIPWAY_TEST_FULL=1`, else a part.
#[test]
fn random_clusters_are_never_dearer_and_always_valid() {
    let seeds = if std::env::var_os("SLIPWAY_TEST_FULL").is_some() {
        1_000
    } else {
        100
    };
    let (mut cheaper, mut saved, mut bounded) = (0, 0.0, 0);
    for seed in (0..seeds).flat_map(|seed| [seed, LATER_FROM + seed]) {
        let workload = parsed(generate(seed).workload);
        let outcome = checked(&workload, &format!("seed {seed}"));
        cheaper += usize::from(outcome.cost < outcome.ordinary_cost - ROUNDING);
        bounded += usize::from(outcome.bound > 0.0);
        saved += outcome.ordinary_cost - outcome.cost;
    }
    assert!(cheaper > 0 && bounded > 0, "the clusters test something");
    println!(
        "report: packing optimum: {} random clusters valid and never dearer, {cheaper} cheaper by {saved:.2} an hour in all, {bounded} bounded",
        2 * seeds
    );
}

struct Kind {
    milli_cpu: usize,
    mebibytes: usize,
    pods: usize,
    price: f64,
    zones: Vec<&'static str>,
}

struct Size {
    milli_cpu: usize,
    mebibytes: usize,
    zone: Option<&'static str>,
    /// Pods of one group keep off each other's nodes.
    alone_in_group: Option<usize>,
}

fn small(random: &mut Random) -> (Vec<Kind>, Vec<Size>) {
    let kinds = (0..random.between(1, 4))
        .map(|_| Kind {
            milli_cpu: random.pick(&[1000, 2000, 3500, 8000]),
            mebibytes: random.pick(&[1024, 4096, 16384]),
            pods: random.pick(&[2, 3, 10]),
            price: random.pick(&[0.05, 0.11, 0.19, 0.4, 1.0]),
            zones: random.some(&["zone-1", "zone-2"]),
        })
        .collect();
    let sizes = (0..random.between(1, 8))
        .map(|_| Size {
            milli_cpu: random.pick(&[100, 300, 500, 900, 1500, 3000]),
            mebibytes: random.pick(&[64, 500, 700, 2000]),
            zone: random.chance(25).then(|| random.pick(&["zone-1", "zone-2"])),
            alone_in_group: random.chance(25).then(|| random.between(0, 1)),
        })
        .collect();
    (kinds, sizes)
}

fn workload(kinds: &[Kind], sizes: &[Size]) -> Value {
    let requirement = |key: &str, values: &[&str]| json!({"key": key, "operator": "In", "values": values});
    let types: Vec<Value> = kinds
        .iter()
        .enumerate()
        .map(|(index, kind)| {
            let name = format!("t{index}");
            let offering = |zone: &&'static str| {
                json!({"price": kind.price, "requirements":
                    [requirement(ZONE, &[zone]), requirement(CAPACITY_TYPE, &["on-demand"])]})
            };
            json!({"name": name, "requirements": [
                    requirement("node.kubernetes.io/instance-type", &[&name]),
                    requirement(ZONE, &kind.zones), requirement(CAPACITY_TYPE, &["on-demand"])],
                "capacity": {"cpu": format!("{}m", kind.milli_cpu), "memory": format!("{}Mi", kind.mebibytes),
                             "pods": kind.pods.to_string()},
                "offerings": kind.zones.iter().map(offering).collect::<Vec<_>>()})
        })
        .collect();
    let pods: Vec<Value> = sizes
        .iter()
        .enumerate()
        .map(|(index, size)| {
            let mut spec = json!({"containers": [{"name": "main", "resources": {"requests": {
                "cpu": format!("{}m", size.milli_cpu), "memory": format!("{}Mi", size.mebibytes)}}}]});
            if let Some(zone) = size.zone {
                spec["nodeSelector"] = json!({ZONE: zone});
            }
            let mut labels = json!({});
            if let Some(group) = size.alone_in_group {
                labels["group"] = json!(group.to_string());
                spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"group": group.to_string()}}}]}});
            }
            json!({"metadata": {"name": format!("pod-{index}"), "namespace": "default",
                                "uid": format!("pod-{index}"), "labels": labels}, "spec": spec})
        })
        .collect();
    json!({"nodePools": [{"metadata": {"name": "open"}, "spec": {"template": {"spec": {"requirements": []}}}}],
           "instanceTypes": {"open": types}, "pods": pods})
}

/// What the cheapest node costs that holds all of these, if one does.
fn price(kinds: &[Kind], pods: &[&Size]) -> Option<f64> {
    for (index, pod) in pods.iter().enumerate() {
        let same =
            |other: &&&Size| other.alone_in_group.is_some() && other.alone_in_group == pod.alone_in_group;
        if pods[..index].iter().any(|other| same(&other)) {
            return None;
        }
    }
    let holds = |kind: &&Kind| {
        pods.len() <= kind.pods
            && pods.iter().map(|pod| pod.milli_cpu).sum::<usize>() <= kind.milli_cpu
            && pods.iter().map(|pod| pod.mebibytes).sum::<usize>() <= kind.mebibytes
            && kind
                .zones
                .iter()
                .any(|zone| pods.iter().all(|pod| pod.zone.is_none_or(|own| own == *zone)))
    };
    kinds
        .iter()
        .filter(holds)
        .map(|kind| kind.price)
        .min_by(f64::total_cmp)
}

/// The least cost, by trying each pod on each node opened so far and on a new one.
fn least<'a>(kinds: &[Kind], left: &[&'a Size], nodes: &mut Vec<Vec<&'a Size>>, best: &mut f64) {
    // A node that holds more costs no less.
    let so_far: f64 = nodes.iter().filter_map(|node| price(kinds, node)).sum();
    if so_far >= *best {
        return;
    }
    let Some((pod, rest)) = left.split_first() else {
        *best = so_far;
        return;
    };
    for index in 0..nodes.len() {
        nodes[index].push(pod);
        if price(kinds, &nodes[index]).is_some() {
            least(kinds, rest, nodes, best);
        }
        nodes[index].pop();
    }
    nodes.push(vec![pod]);
    least(kinds, rest, nodes, best);
    nodes.pop();
}

#[test]
fn the_cheapest_of_all_ways_lies_between_the_bound_and_the_plan() {
    let (mut reached, mut tight, mut workloads) = (0, 0, 0);
    for seed in 0..400 {
        let random = &mut Random::new(seed);
        let (kinds, mut sizes) = small(random);
        sizes.retain(|size| price(&kinds, &[size]).is_some());
        let workload = parsed(workload(&kinds, &sizes));
        let outcome = checked(&workload, &format!("seed {seed}"));
        assert!(outcome.plan.unschedulable.is_empty(), "seed {seed}");
        let mut best = f64::MAX;
        least(
            &kinds,
            &sizes.iter().collect::<Vec<_>>(),
            &mut Vec::new(),
            &mut best,
        );
        assert!(
            outcome.bound <= best + ROUNDING,
            "seed {seed}: bound {} above {best}",
            outcome.bound
        );
        assert!(
            outcome.cost >= best - ROUNDING,
            "seed {seed}: {} beats {best}",
            outcome.cost
        );
        let alone = optimum::lower_bound(&workload.snapshot, &workload.pods);
        assert!(
            alone <= best + ROUNDING,
            "seed {seed}: bound {alone} above {best}"
        );
        workloads += 1;
        reached += usize::from(outcome.cost <= best + ROUNDING);
        tight += usize::from(outcome.bound.max(alone) >= best * 0.9);
    }
    assert!(
        reached * 10 >= workloads * 8,
        "{reached} of {workloads} reach the cheapest"
    );
    assert!(
        tight * 2 >= workloads,
        "{tight} of {workloads} bounds are within a tenth"
    );
    println!(
        "report: packing optimum: of {workloads} workloads of up to 8 pods {reached} reach the cheapest there is, {tight} bounds are within a tenth of it"
    );
}

/// One large node is dearer than two that fit: what the ordinary plan does not see.
fn two_sizes() -> Workload {
    let kinds = [
        Kind {
            milli_cpu: 2000,
            mebibytes: 16384,
            pods: 10,
            price: 0.1,
            zones: vec!["zone-1"],
        },
        Kind {
            milli_cpu: 8000,
            mebibytes: 16384,
            pods: 10,
            price: 1.0,
            zones: vec!["zone-1"],
        },
    ];
    let size = || Size {
        milli_cpu: 900,
        mebibytes: 64,
        zone: None,
        alone_in_group: None,
    };
    parsed(workload(&kinds, &[size(), size(), size(), size()]))
}

#[test]
fn the_option_decides() {
    let mut workload = two_sizes();
    assert_eq!(
        workload.snapshot.options.packing,
        PackingPolicy::Karpenter,
        "the default"
    );
    let ordinary = schedule(&workload.snapshot, &workload.pods);
    assert!(
        (cost(&ordinary) - 1.0).abs() < ROUNDING,
        "one large node: {}",
        cost(&ordinary)
    );
    workload.snapshot.options.packing = serde_json::from_value(json!("cost")).expect("a policy");
    let cheaper = schedule(&workload.snapshot, &workload.pods);
    assert!(
        (cost(&cheaper) - 0.2).abs() < ROUNDING,
        "two small ones: {}",
        cost(&cheaper)
    );
}

#[test]
fn a_node_less_may_be_worth_its_price() {
    let mut workload = two_sizes();
    workload.snapshot.options.packing_weights.node = 2.0;
    let outcome = checked(&workload, "nodes weighed");
    assert_eq!(
        outcome.plan.new_claims.len(),
        1,
        "two nodes for 0.2 are worse than one for 1.0"
    );
    assert!(
        outcome.bound <= 0.2 + ROUNDING,
        "the bound is in money alone: {}",
        outcome.bound
    );
}

#[test]
fn the_same_input_gives_the_same_plan_and_the_caller_may_stop_at_any_time() {
    for seed in [3, 11, LATER_FROM + 5] {
        let workload = parsed(generate(seed).workload);
        let outcome = optimum::plan(&workload.snapshot, &workload.pods);
        assert_eq!(
            outcome,
            optimum::plan(&workload.snapshot, &workload.pods),
            "seed {seed}"
        );
        let mut backwards = workload.pods.clone();
        backwards.reverse();
        let turned = optimum::plan(&workload.snapshot, &backwards);
        assert!((turned.cost - outcome.cost).abs() < ROUNDING, "seed {seed}");
        for asked in [0, 1, 5] {
            let mut left = asked;
            let mut go_on = || {
                left -= 1;
                left > 0
            };
            let early = optimum::plan_within(&workload.snapshot, &workload.pods, optimum::STEPS, &mut go_on);
            judge::check(&workload.snapshot, &workload.pods, &early.plan);
            assert!(early.cost <= early.ordinary_cost + ROUNDING && early.bound <= early.cost + ROUNDING);
        }
        let none = optimum::plan_within(&workload.snapshot, &workload.pods, 0, &mut || true);
        assert!(none.cost <= none.ordinary_cost + ROUNDING);
    }
}
