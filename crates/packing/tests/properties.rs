//! What holds for every cluster: plans are valid, the same input gives the same plan, and a pod that fits nowhere is
//! exactly a pod that fits no type alone.

use proptest::prelude::*;
use slipway_packing::labels::{ARCHITECTURE, HOSTNAME, ZONE};
use slipway_packing::model::{Pod, Taint};
use slipway_packing::requirement::Operator;

use crate::cluster::{Cluster, default_types, labelled, pool, pool_with, requirement};
use crate::constraints::{With, spread, term};
use crate::judged::{next_command, schedule};

const APPS: [&str; 3] = ["a", "b", "c"];
const ZONES: [&str; 3] = ["test-zone-1", "test-zone-2", "test-zone-3"];

/// A pod from five small numbers.
fn make(index: usize, (cpu, memory, app, constraint, zone): (u8, u8, u8, u8, u8), topology: bool) -> Pod {
    let cpu = ["100m", "500m", "1", "2500m", "15", "40"][cpu as usize % 6];
    let memory = ["64Mi", "512Mi", "1.5Gi", "3Gi"][memory as usize % 4];
    let app = APPS[app as usize % 3];
    let own = [("app", app)];
    let mut pod = labelled(
        &format!("pod-{index:03}"),
        &[("cpu", cpu), ("memory", memory)],
        &own,
    );
    match constraint % 12 {
        0 => pod = pod.selecting(ZONE, ZONES[zone as usize % 3]),
        1 => pod = pod.selecting(ARCHITECTURE, ["amd64", "arm64", "riscv"][zone as usize % 3]),
        2 => pod = pod.tolerating("team", "Exists", "", ""),
        3 => pod = pod.host_port(8080),
        4 if topology => pod = pod.spread(spread(ZONE, 1 + i32::from(zone % 2), &own)),
        5 if topology => pod = pod.spread(spread(HOSTNAME, 1, &own)),
        6 if topology => pod = pod.apart(term(HOSTNAME, &own)),
        7 if topology => pod = pod.apart(term(ZONE, &own)),
        8 if topology => pod = pod.near(term(ZONE, &own)),
        9 if topology => pod = pod.near(term(HOSTNAME, &[("app", APPS[zone as usize % 3])])),
        10 if topology => pod = pod.preferably_apart(5, term(ZONE, &own)),
        11 => {
            pod = pod.preferring(
                3,
                vec![requirement(ZONE, Operator::In, &[ZONES[zone as usize % 3]])],
            );
        }
        _ => {}
    }
    pod
}

type Numbers = Vec<(u8, u8, u8, u8, u8)>;

fn numbers(most: usize) -> impl Strategy<Value = Numbers> {
    proptest::collection::vec(any::<(u8, u8, u8, u8, u8)>(), 1..most)
}

fn pods(numbers: &Numbers, offset: usize, topology: bool) -> Vec<Pod> {
    numbers
        .iter()
        .enumerate()
        .map(|(index, numbers)| make(offset + index, *numbers, topology))
        .collect()
}

fn cluster() -> Cluster {
    let mut tainted = pool_with(
        "tainted",
        vec![requirement(ZONE, Operator::In, &["test-zone-1", "test-zone-2"])],
    );
    tainted.spec.weight = Some(5);
    tainted.spec.template.spec.taints = vec![Taint {
        key: "team".to_owned(),
        value: "web".to_owned(),
        effect: "NoSchedule".to_owned(),
    }];
    Cluster::new(vec![tainted, pool("plain")], default_types())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// `provision` puts every plan through the checker.
    #[test]
    fn plans_are_valid_and_repeatable(first in numbers(20), second in numbers(20)) {
        let mut cluster = cluster();
        cluster.provision(pods(&first, 0, true));
        let required = pods(&second, 100, true);
        let plan = schedule(&cluster.snapshot, &required);
        prop_assert_eq!(&plan, &schedule(&cluster.snapshot, &required));
        // Neither the order of lists nor that of pods matters.
        let mut turned = cluster.snapshot.clone();
        turned.nodes.reverse();
        turned.node_claims.reverse();
        turned.bound_pods.reverse();
        turned.node_pools.reverse();
        let backwards: Vec<Pod> = required.iter().rev().cloned().collect();
        prop_assert_eq!(&plan, &schedule(&turned, &backwards));
        cluster.provision(required);
        // Nor does it matter for disruption.
        prop_assert_eq!(next_command(&cluster.snapshot, &[]), next_command(&cluster.snapshot, &[]));
    }

    /// Without topology and limits, a pod finds a place exactly if some type of some pool takes it alone.
    #[test]
    fn agrees_with_brute_force(numbers in numbers(9)) {
        let cluster = cluster();
        let required = pods(&numbers, 0, false);
        let plan = schedule(&cluster.snapshot, &required);
        let refused: Vec<&str> = plan.unschedulable.iter().map(|refusal| refusal.pod.as_str()).collect();
        for pod in &required {
            let alone = cluster.snapshot.node_pools.iter().any(|pool| fits_alone(&cluster, pool, pod));
            prop_assert_eq!(!alone, refused.contains(&pod.metadata.reference().as_str()), "{}", pod.metadata.name);
        }
    }
}

/// Tries every type and offering of a pool by hand.
fn fits_alone(cluster: &Cluster, pool: &slipway_packing::model::NodePool, pod: &Pod) -> bool {
    let tolerated = pool.spec.template.spec.taints.is_empty() || !pod.spec.tolerations.is_empty();
    let values = |specs: &[slipway_packing::requirement::RequirementSpec], key: &str| {
        specs
            .iter()
            .find(|own| own.key == key)
            .map(|own| own.values.clone())
    };
    let selected = |key: &str, offered: &[String]| {
        pod.spec
            .node_selector
            .get(key)
            .is_none_or(|own| offered.contains(own))
    };
    tolerated
        && cluster.snapshot.instance_types[&pool.metadata.name]
            .iter()
            .any(|kind| {
                let room = crate::judge::amounts::allocatable(kind);
                let fits = pod.spec.containers[0]
                    .resources
                    .requests
                    .iter()
                    .all(|(name, amount)| *amount <= room[name]);
                let architecture = values(&kind.requirements, ARCHITECTURE).expect("every type has one");
                let offered = kind.offerings.iter().any(|offering| {
                    let zone = values(&offering.requirements, ZONE).expect("every offering has one");
                    let allowed = values(&pool.spec.template.spec.requirements, ZONE)
                        .is_none_or(|allowed| zone.iter().all(|zone| allowed.contains(zone)));
                    allowed && selected(ZONE, &zone)
                });
                fits && offered && selected(ARCHITECTURE, &architecture)
            })
}
