//! The named scheduling behaviours: inputs and outcomes that Karpenter's own suites state.

use slipway_packing::labels::{ARCHITECTURE, CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, NODE_POOL, ZONE};
use slipway_packing::model::{DaemonSet, NodePool, Taint};
use slipway_packing::requirement::Operator;

use crate::cluster::{
    Cluster, copies, default_types, instance_type, labelled, offering, pod, pool, pool_with, quantities,
    requirement, types, with_offerings,
};
use crate::constraints::{With, node_term, spread, term};

const WEB: &[(&str, &str)] = &[("app", "web")];
const TINY: &[(&str, &str)] = &[("cpu", "10m")];

fn zone(values: &[&str]) -> slipway_packing::requirement::RequirementSpec {
    requirement(ZONE, Operator::In, values)
}

/// 1 and 8: the smallest type that holds the pod, its overhead included.
#[test]
fn takes_the_cheapest_type_that_fits() {
    for memory in ["100M", "2000M"] {
        let mut cluster = Cluster::default();
        cluster.provision(vec![pod("one", &[("memory", memory)])]);
        assert_eq!(cluster.type_of("one"), "small-instance-type", "{memory}");
    }
    let mut cluster = Cluster::default();
    let mut with_overhead = pod("one", &[("cpu", "1")]);
    with_overhead.spec.overhead = quantities(&[("cpu", "2")]);
    cluster.provision(vec![with_overhead]);
    assert_eq!(cluster.type_of("one"), "default-instance-type");
}

/// 2, 3 and 4: how many nodes a batch packs into.
#[test]
fn packs_batches() {
    let big = pod("", &[("memory", "1.8G")]).selecting(ARCHITECTURE, "amd64");
    let mut cluster = Cluster::default();
    cluster.provision(copies("big", 40, &big));
    assert_eq!(cluster.types_in_use(), vec!["default-instance-type"; 20]);

    let mut cluster = Cluster::default();
    let mut pods = copies("big", 40, &big);
    pods.extend(copies(
        "small",
        20,
        &pod("", &[("memory", "400M")]).selecting(ARCHITECTURE, "amd64"),
    ));
    cluster.provision(pods);
    assert_eq!(cluster.types_in_use(), vec!["default-instance-type"; 20]);

    let mut cluster = Cluster::default();
    let tiny = pod("", &[("cpu", "1m"), ("memory", "1m")]).selecting(ARCHITECTURE, "amd64");
    cluster.provision(copies("tiny", 25, &tiny));
    assert_eq!(cluster.types_in_use(), vec!["small-instance-type"; 5]);
}

/// 5: a large and a small pod that share no type's room.
#[test]
fn large_and_small_get_types_of_their_own() {
    let mut cluster = Cluster::new(vec![pool("default")], types(5));
    cluster.provision(vec![
        pod("large", &[("cpu", "4.5")]),
        pod("small", &[("cpu", "1")]),
    ]);
    assert_eq!(cluster.node_count(), 2);
    assert_ne!(cluster.type_of("large"), cluster.type_of("small"));
}

/// 6: order is by price, not by size, and every type that fits is listed.
#[test]
fn orders_types_by_price() {
    let priced = |name: &str, cpu: &str, price| {
        with_offerings(
            instance_type(name, &[("cpu", cpu), ("memory", "1Gi")]),
            vec![offering("on-demand", "test-zone-1", price)],
        )
    };
    let kinds = vec![
        priced("medium", "2", 3.0),
        priced("small", "1", 2.0),
        priced("large", "4", 1.0),
    ];
    let mut cluster = Cluster::new(vec![pool("default")], kinds);
    let batch = cluster.provision(vec![pod("one", &[("cpu", "1m"), ("memory", "1Mi")])]);
    assert_eq!(cluster.type_of("one"), "large");
    assert_eq!(
        batch.plan.new_claims[0].instance_types,
        ["large", "small", "medium"]
    );
}

/// 7: nothing of an unknown resource is available everywhere; two tebibytes are available nowhere.
#[test]
fn zero_of_an_unknown_resource_fits() {
    let mut cluster = Cluster::default();
    let batch = cluster.provision(vec![
        pod("zero", &[("foo.com/weird-resources", "0")]),
        pod("huge", &[("memory", "2Ti")]),
    ]);
    assert_eq!(batch.unscheduled, ["default/huge"]);
}

/// 9: alternatives of required node affinity are tried in order.
#[test]
fn required_alternatives_are_tried_in_order() {
    let invalid = || node_term(vec![requirement(INSTANCE_TYPE, Operator::In, &["invalid"])]);
    let mut cluster = Cluster::default();
    let impossible = pod("one", &[]).requiring(vec![invalid()]);
    let fourth = pod("two", &[]).requiring(vec![
        invalid(),
        invalid(),
        node_term(vec![zone(&["test-zone-1"])]),
        node_term(vec![zone(&["test-zone-2"])]),
    ]);
    let batch = cluster.provision(vec![impossible, fourth]);
    assert_eq!(batch.unscheduled, ["default/one"]);
    assert_eq!(cluster.label_of("two", ZONE), "test-zone-1");
}

/// 10: the heaviest preference that can be met counts, and none beats a requirement.
#[test]
fn preferences_by_weight() {
    let mut cluster = Cluster::default();
    let weighted = pod("one", &[])
        .preferring(100, vec![requirement(INSTANCE_TYPE, Operator::In, &["unknown"])])
        .preferring(50, vec![zone(&["test-zone-2"])])
        .preferring(1, vec![zone(&["test-zone-1"])]);
    let conflicting = pod("two", &[])
        .requiring(vec![node_term(vec![zone(&["test-zone-3"])])])
        .preferring(1, vec![zone(&["test-zone-1", "test-zone-2"])]);
    cluster.provision(vec![weighted, conflicting]);
    assert_eq!(cluster.label_of("one", ZONE), "test-zone-2");
    assert_eq!(cluster.label_of("two", ZONE), "test-zone-3");
}

/// Relaxation goes through every kind of preference before it gives up.
#[test]
fn gives_up_preferences_of_every_kind() {
    let nobody = &[("app", "nobody")];
    let mut cluster = Cluster::default();
    let picky = labelled("picky", TINY, WEB)
        .preferably_near(10, term(ZONE, nobody))
        .preferably_apart(10, term(ZONE, WEB))
        .preferring(1, vec![requirement(INSTANCE_TYPE, Operator::In, &["unknown"])]);
    let mut soft = spread("unknown", 1, WEB);
    soft.when_unsatisfiable = "ScheduleAnyway".to_owned();
    let batch = cluster.provision(copies("pod", 3, &picky.spread(soft)));
    assert!(batch.unscheduled.is_empty());
}

/// A taint needs its toleration.
#[test]
fn taints_and_tolerations() {
    let mut tainted = pool("default");
    tainted.spec.template.spec.taints = vec![Taint {
        key: "team".to_owned(),
        value: "web".to_owned(),
        effect: "NoSchedule".to_owned(),
    }];
    let mut cluster = Cluster::new(vec![tainted], default_types());
    let batch = cluster.provision(vec![
        pod("none", TINY),
        pod("equal", TINY).tolerating("team", "Equal", "web", "NoSchedule"),
        pod("exists", TINY).tolerating("team", "Exists", "", ""),
        pod("other", TINY).tolerating("team", "Equal", "db", "NoSchedule"),
    ]);
    let mut refused = batch.unscheduled.clone();
    refused.sort();
    assert_eq!(refused, ["default/none", "default/other"]);
    assert!(
        batch.plan.unschedulable[0]
            .message
            .contains("did not tolerate taint")
    );
}

fn limited(limits: &[(&str, &str)]) -> NodePool {
    let mut pool = pool("default");
    pool.spec.limits = quantities(limits);
    pool
}

/// 26: limits count what the largest type left could take.
#[test]
fn limits() {
    for (limit, requests, count, scheduled) in [
        ("2", "1.75", 1, 1),
        ("2", "2.1", 1, 0),
        ("3", "1.5", 2, 1),
        ("0", "100m", 1, 0),
    ] {
        let mut cluster = Cluster::new(vec![limited(&[("cpu", limit)])], default_types());
        let example = labelled("", &[("cpu", requests)], WEB).apart(term(HOSTNAME, WEB));
        let batch = cluster.provision(copies("pod", count, &example));
        assert_eq!(
            count - batch.unscheduled.len(),
            scheduled,
            "limit {limit}, request {requests}"
        );
    }
}

/// 27: node limits over batches, and inside one where that is asked for.
#[test]
fn node_limits() {
    let example = labelled("", TINY, WEB).apart(term(HOSTNAME, WEB));
    let mut cluster = Cluster::new(vec![limited(&[("nodes", "2")])], default_types());
    for (batch, scheduled) in [1, 1, 0].into_iter().enumerate() {
        let outcome = cluster.provision(copies(&format!("batch-{batch}"), 1, &example));
        assert_eq!(1 - outcome.unscheduled.len(), scheduled);
    }
    for (exact, nodes) in [(false, 5), (true, 2)] {
        let mut cluster = Cluster::new(vec![limited(&[("nodes", "2")])], default_types());
        cluster.snapshot.options.improvements.exact_node_limits = exact;
        cluster.provision(copies("pod", 5, &example));
        assert_eq!(cluster.node_count(), nodes);
    }
}

/// 28: daemons take their share of a new node.
#[test]
fn daemons_take_their_share() {
    let mut cluster = Cluster::default();
    let mut daemon = DaemonSet::default();
    daemon.metadata.name = "daemon".to_owned();
    daemon.spec.template = pod("", &[("cpu", "2"), ("memory", "2Gi")]);
    cluster.snapshot.daemon_sets.push(daemon);
    let batch = cluster.provision(vec![pod("one", &[("cpu", "1"), ("memory", "1Gi")])]);
    assert_eq!(cluster.type_of("one"), "default-instance-type");
    assert_eq!(
        batch.plan.new_claims[0].requests,
        quantities(&[("cpu", "3"), ("memory", "3Gi"), ("pods", "2")])
    );
}

/// 29: a type that holds one pod.
#[test]
fn one_pod_a_node() {
    let mut cluster = Cluster::default();
    let example = pod("", &[]).selecting(INSTANCE_TYPE, "single-pod-instance-type");
    cluster.provision(copies("pod", 3, &example));
    assert_eq!(cluster.node_count(), 3);
}

/// 30: which pool, by taint preference, weight and selector.
#[test]
fn chooses_pools() {
    let mut tainted = pool("tainted");
    tainted.spec.template.spec.taints = vec![Taint {
        key: "spare".to_owned(),
        value: String::new(),
        effect: "PreferNoSchedule".to_owned(),
    }];
    let mut cluster = Cluster::new(vec![tainted.clone(), pool("plain")], default_types());
    cluster.provision(vec![pod("one", TINY)]);
    assert_eq!(cluster.label_of("one", NODE_POOL), "plain");
    let mut cluster = Cluster::new(vec![tainted], default_types());
    cluster.provision(vec![pod("one", TINY)]);
    assert_eq!(cluster.label_of("one", NODE_POOL), "tainted");

    let weighted = |name: &str, weight| {
        let mut pool = pool(name);
        pool.spec.weight = weight;
        pool
    };
    let pools = vec![
        weighted("none", None),
        weighted("twenty", Some(20)),
        weighted("hundred", Some(100)),
    ];
    let mut cluster = Cluster::new(pools, default_types());
    cluster.provision(vec![
        pod("any", TINY),
        pod("chosen", TINY).selecting(NODE_POOL, "twenty"),
    ]);
    assert_eq!(cluster.label_of("any", NODE_POOL), "hundred");
    assert_eq!(cluster.label_of("chosen", NODE_POOL), "twenty");
}

/// 31: pods of one node get the cheapest type that holds them all.
#[test]
fn cheapest_type_for_a_batch() {
    let sizes = ["1", "2", "4", "8", "16", "32", "64"];
    let mut kinds = Vec::new();
    for cpu in sizes {
        for memory in sizes {
            let memory_text = format!("{memory}Gi");
            kinds.push(instance_type(
                &format!("{cpu}-cpu-{memory}-mem"),
                &[("cpu", cpu), ("memory", &memory_text), ("pods", "100")],
            ));
        }
    }
    for cpu in [0.1, 1.0, 2.0, 2.5, 4.0, 8.0, 16.0] {
        for memory in [0.1, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0] {
            let mut cluster = Cluster::new(vec![pool("default")], kinds.clone());
            let (cpu_text, memory_text) = (format!("{cpu}"), format!("{memory}Gi"));
            let batch = cluster.provision(copies(
                "pod",
                3,
                &pod("", &[("cpu", &cpu_text), ("memory", &memory_text)]),
            ));
            assert_eq!(cluster.node_count(), 1, "{cpu} {memory}");
            let fits = |size: &&&str, required: f64, kept: f64| {
                size.parse::<f64>().expect("a number") - kept >= 3.0 * required
            };
            let cheapest = sizes
                .iter()
                .find(|size| fits(size, cpu, 0.1))
                .zip(sizes.iter().find(|size| fits(size, memory, 10.0 / 1024.0)));
            let (cpu_size, memory_size) = cheapest.expect("a type is large enough");
            assert_eq!(
                batch.plan.new_claims[0].instance_types[0],
                format!("{cpu_size}-cpu-{memory_size}-mem")
            );
        }
    }
}

/// 32: only allowed offerings set the price.
#[test]
fn price_of_allowed_offerings_only() {
    let kind = |name: &str, on_demand, spot| {
        with_offerings(
            instance_type(name, &[("cpu", "1"), ("memory", "1Gi")]),
            vec![
                offering("on-demand", "test-zone-1", on_demand),
                offering("spot", "test-zone-1", spot),
            ],
        )
    };
    let on_demand = pool_with(
        "default",
        vec![requirement(CAPACITY_TYPE, Operator::In, &["on-demand"])],
    );
    let mut cluster = Cluster::new(
        vec![on_demand],
        vec![kind("first", 1.0, 0.2), kind("second", 1.3, 0.1)],
    );
    cluster.provision(vec![pod("one", &[])]);
    assert_eq!(cluster.type_of("one"), "first");
}

/// 33: minValues keeps claims flexible.
#[test]
fn min_values() {
    let kinds = |sizes: &[&str]| {
        sizes
            .iter()
            .enumerate()
            .map(|(index, size)| {
                let memory = format!("{size}Gi");
                instance_type(&format!("type-{index}"), &[("cpu", size), ("memory", &memory)])
            })
            .collect::<Vec<_>>()
    };
    let flexible = |least| {
        let mut required = requirement(INSTANCE_TYPE, Operator::Exists, &[]);
        required.min_values = Some(least);
        pool_with("default", vec![required])
    };
    let mut cluster = Cluster::new(vec![flexible(2)], kinds(&["1", "4"]));
    let example = pod("", &[("cpu", "0.9"), ("memory", "0.9Gi")]);
    let batch = cluster.provision(copies("pod", 2, &example));
    assert_eq!(batch.plan.new_claims.len(), 2);
    assert!(
        batch
            .plan
            .new_claims
            .iter()
            .all(|claim| claim.instance_types.len() >= 2)
    );

    let mut cluster = Cluster::new(vec![flexible(11)], kinds(&["4"; 10]));
    assert_eq!(cluster.provision(vec![pod("one", TINY)]).unscheduled.len(), 1);

    let mut cluster = Cluster::new(vec![flexible(2)], kinds(&["1", "4"]));
    cluster.snapshot.options.max_instance_types = 1;
    assert_eq!(cluster.provision(vec![pod("one", TINY)]).unscheduled.len(), 1);

    let mut cluster = Cluster::new(vec![flexible(11)], kinds(&["4"; 10]));
    cluster.snapshot.options.min_values_policy = slipway_packing::model::MinValuesPolicy::BestEffort;
    let batch = cluster.provision(vec![pod("one", TINY)]);
    assert!(batch.plan.new_claims[0].min_values_relaxed);
}

/// 34: nodes that stand or start take what fits.
#[test]
fn later_batches_fill_what_stands() {
    let mut cluster = Cluster::default();
    cluster.provision(vec![pod("first", TINY)]);
    cluster.provision(vec![pod("second", TINY)]);
    assert_eq!(cluster.node_count(), 1);
    let mut cluster = Cluster::default();
    cluster.provision(vec![pod("first", &[("cpu", "1001m")])]);
    cluster.provision(vec![pod("second", &[("cpu", "1")])]);
    assert_eq!(cluster.node_count(), 2);
}

/// 35: attach limits of a driver.
#[test]
fn volume_attach_limits() {
    use slipway_packing::model::{PersistentVolumeClaim, StorageClass, Volume};
    let mut cluster = Cluster::default();
    let mut class = StorageClass::default();
    class.metadata.name = "fast".to_owned();
    class.provisioner = "disk.csi.example".to_owned();
    cluster.snapshot.storage_classes.push(class);
    for kind in cluster
        .snapshot
        .instance_types
        .get_mut("default")
        .expect("the pool's types")
    {
        kind.capacity = quantities(&[("cpu", "1024"), ("memory", "1024Gi"), ("pods", "1024")]);
        kind.volume_attachment_limits
            .insert("disk.csi.example".to_owned(), 10);
    }
    let mut pods = Vec::new();
    for mut one in copies("pod", 6, &pod("", TINY)) {
        for side in ["a", "b"] {
            let claim_name = format!("{}-{side}", one.metadata.name);
            let mut claim = PersistentVolumeClaim::default();
            claim.metadata.name.clone_from(&claim_name);
            claim.metadata.namespace = "default".to_owned();
            claim.spec.storage_class_name = Some("fast".to_owned());
            cluster.snapshot.persistent_volume_claims.push(claim);
            let volume: Volume = serde_json::from_value(
                serde_json::json!({"name": side, "persistentVolumeClaim": {"claimName": claim_name}}),
            )
            .expect("a volume");
            one.spec.volumes.push(volume);
        }
        pods.push(one);
    }
    cluster.provision(pods);
    assert_eq!(cluster.node_count(), 2);
}

/// 36: a host port is held by one pod a node.
#[test]
fn host_ports() {
    let mut cluster = Cluster::default();
    cluster.provision(copies("pod", 2, &pod("", TINY).host_port(80)));
    assert_eq!(cluster.node_count(), 2);
}

/// The 36 named scheduling behaviours here and in `named_topology`, by the number in front of each test.
#[test]
fn all_are_here() {
    let source = concat!(
        include_str!("named_scheduling.rs"),
        include_str!("named_topology.rs")
    );
    let covered: std::collections::BTreeSet<usize> = source
        .lines()
        .filter_map(|line| line.strip_prefix("/// "))
        .filter_map(|line| line.split(':').next())
        .flat_map(|numbers| {
            numbers
                .split([',', ' '])
                .filter_map(|word| word.parse().ok())
                .collect::<Vec<usize>>()
        })
        .collect();
    let missing: Vec<usize> = (1..=36).filter(|number| !covered.contains(number)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    crate::report::oracle("named scheduling behaviours", covered.len(), 36, 36);
}
