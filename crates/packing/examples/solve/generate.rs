//! Workloads for measuring: the mixes Karpenter's own benchmark uses, and heavier ones, from a seed.

use std::collections::BTreeMap;

use slipway_packing::labels;
use slipway_packing::model::{
    Affinity, Budget, Condition, Container, InstanceType, LabelSelector, Node, NodeAffinity, NodeClaim,
    NodePool, NodeSelectorTerm, ObjectMeta, Offering, Overhead, Pod, PodAffinity, PodAffinityTerm,
    PreferredSchedulingTerm, ResourceList, Snapshot, TopologySpreadConstraint, WeightedPodAffinityTerm,
    Workload,
};
use slipway_packing::requirement::{Operator, RequirementSpec};

/// Xorshift: all that is needed is the same stream everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    /// Between zero and one, never zero.
    fn unit(&mut self) -> f64 {
        const PARTS: usize = 1 << 40;
        (self.below(PARTS) + 1) as f64 / PARTS as f64
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    pub fn poisson(&mut self, mean: f64) -> usize {
        let (mut count, mut product, limit) = (0, self.unit(), (-mean).exp());
        while product > limit {
            count += 1;
            product *= self.unit();
        }
        count
    }

    /// Log-normal around a median.
    fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        median * (sigma * normal).exp()
    }

    fn pick<'a>(&mut self, options: &[&'a str]) -> &'a str {
        options[self.below(options.len())]
    }
}

fn quantities(pairs: &[(&str, String)]) -> ResourceList {
    pairs
        .iter()
        .map(|(name, text)| ((*name).to_owned(), text.parse().expect("a quantity")))
        .collect()
}

/// Type `i` has i+1 CPUs, 2(i+1) Gi and 10(i+1) pods; spot in two zones, on demand in three.
pub fn instance_types(count: usize) -> Vec<InstanceType> {
    (0..count)
        .map(|index| {
            let size = index + 1;
            let name = format!("fake-it-{index}");
            let price = 0.1 * size as f64 + 0.1 * (size as f64 * 2.0 * 1.073_741_824);
            let offering = |capacity_type: &str, zone: &str| Offering {
                requirements: vec![
                    RequirementSpec::new(labels::CAPACITY_TYPE, Operator::In, &[capacity_type]),
                    RequirementSpec::new(labels::ZONE, Operator::In, &[zone]),
                ],
                price,
                ..Offering::default()
            };
            InstanceType {
                requirements: vec![
                    RequirementSpec::new(labels::INSTANCE_TYPE, Operator::In, &[&name]),
                    RequirementSpec::new(labels::ARCHITECTURE, Operator::In, &["amd64"]),
                    RequirementSpec::new(
                        labels::OPERATING_SYSTEM,
                        Operator::In,
                        &["linux", "windows", "darwin"],
                    ),
                    RequirementSpec::new(
                        labels::ZONE,
                        Operator::In,
                        &["test-zone-1", "test-zone-2", "test-zone-3"],
                    ),
                    RequirementSpec::new(labels::CAPACITY_TYPE, Operator::In, &["spot", "on-demand"]),
                ],
                capacity: quantities(&[
                    ("cpu", size.to_string()),
                    ("memory", format!("{}Gi", size * 2)),
                    ("pods", (size * 10).to_string()),
                ]),
                overhead: Overhead {
                    kube_reserved: quantities(&[("cpu", "100m".to_owned()), ("memory", "10Mi".to_owned())]),
                    ..Overhead::default()
                },
                offerings: vec![
                    offering("spot", "test-zone-1"),
                    offering("spot", "test-zone-2"),
                    offering("on-demand", "test-zone-1"),
                    offering("on-demand", "test-zone-2"),
                    offering("on-demand", "test-zone-3"),
                ],
                name,
                ..InstanceType::default()
            }
        })
        .collect()
}

const VALUES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

fn pod(random: &mut Random, index: usize, labels: &[(&str, &str)]) -> Pod {
    let cpu = random
        .pick(&["100m", "250m", "500m", "1000m", "1500m"])
        .to_owned();
    let memory = random
        .pick(&["100Mi", "256Mi", "512Mi", "1024Mi", "2048Mi", "4096Mi"])
        .to_owned();
    let mut pod = Pod {
        metadata: ObjectMeta {
            name: format!("pod-{index}"),
            namespace: "default".to_owned(),
            uid: format!("uid-{index:08}"),
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            creation_timestamp: Some("2026-01-01T00:00:00Z".to_owned()),
            ..ObjectMeta::default()
        },
        ..Pod::default()
    };
    pod.status.phase = "Pending".to_owned();
    pod.spec.containers.push(Container {
        name: "main".to_owned(),
        ..Container::default()
    });
    pod.spec.containers[0].resources.requests = quantities(&[("cpu", cpu), ("memory", memory)]);
    pod
}

fn selector(key: &str, value: &str) -> Option<LabelSelector> {
    Some(LabelSelector {
        match_labels: [(key.to_owned(), value.to_owned())].into(),
        ..LabelSelector::default()
    })
}

fn term(key: &str, value: &str, topology_key: &str) -> PodAffinityTerm {
    PodAffinityTerm {
        label_selector: selector(key, value),
        topology_key: topology_key.to_owned(),
        ..PodAffinityTerm::default()
    }
}

fn spread(random: &mut Random, index: usize, key: &str, when: &str) -> Pod {
    let (own, selected) = (random.pick(&VALUES), random.pick(&VALUES));
    let mut pod = pod(random, index, &[("my-label", own)]);
    pod.spec
        .topology_spread_constraints
        .push(TopologySpreadConstraint {
            max_skew: 1,
            topology_key: key.to_owned(),
            when_unsatisfiable: when.to_owned(),
            label_selector: selector("my-label", selected),
            ..TopologySpreadConstraint::default()
        });
    pod
}

fn affine(random: &mut Random, index: usize, key: &str) -> Pod {
    let value = random.pick(&VALUES);
    let mut pod = pod(random, index, &[("my-affinity", value)]);
    let required = vec![term("my-affinity", value, key)];
    pod.spec.affinity = Some(Affinity {
        pod_affinity: Some(PodAffinity {
            required,
            ..PodAffinity::default()
        }),
        ..Affinity::default()
    });
    pod
}

fn apart(random: &mut Random, index: usize, key: &str, app: &str) -> Pod {
    let mut pod = pod(random, index, &[("app", app)]);
    let required = vec![term("app", app, key)];
    pod.spec.affinity = Some(Affinity {
        pod_anti_affinity: Some(PodAffinity {
            required,
            ..PodAffinity::default()
        }),
        ..Affinity::default()
    });
    pod
}

fn preferring(random: &mut Random, index: usize) -> Pod {
    let mut pod = pod(random, index, &[("app", "nginx")]);
    let weighted = |weight, key| WeightedPodAffinityTerm {
        weight,
        pod_affinity_term: term("app", "nginx", key),
    };
    pod.spec.affinity = Some(Affinity {
        node_affinity: Some(NodeAffinity {
            preferred: vec![PreferredSchedulingTerm {
                weight: 1,
                preference: NodeSelectorTerm {
                    match_expressions: vec![RequirementSpec::new(
                        labels::ZONE,
                        Operator::In,
                        &["test-zone-1"],
                    )],
                    ..NodeSelectorTerm::default()
                },
            }],
            ..NodeAffinity::default()
        }),
        pod_anti_affinity: Some(PodAffinity {
            preferred: vec![weighted(10, labels::ZONE), weighted(1, labels::HOSTNAME)],
            ..PodAffinity::default()
        }),
        ..Affinity::default()
    });
    pod
}

/// The pods of one deployment: log-normal in their number (median 3) and CPU (median 250m), one to eight GiB for a CPU; two in
/// ten spread over zones, one in ten keeps to hosts of their own.
pub fn deployment(random: &mut Random, index: usize) -> Vec<Pod> {
    let replicas = random.log_normal(3.3, 0.9).round().clamp(1.0, 50.0) as usize;
    let milli_cpu = (random.log_normal(250.0, 1.0) / 10.0).round().clamp(5.0, 800.0) * 10.0;
    let gibibytes = [1.0, 2.0, 4.0, 8.0][random.below(4)] * random.log_normal(1.0, 0.3);
    let mebibytes = (milli_cpu / 1_000.0 * gibibytes * 1_024.0)
        .round()
        .clamp(16.0, 65_536.0);
    let app = format!("app-{index}");
    let kind = random.below(10);
    (0..replicas)
        .map(|replica| {
            let mut made = match kind {
                0 | 1 => spread(random, index, labels::ZONE, "DoNotSchedule"),
                2 => apart(random, index, labels::HOSTNAME, &app),
                _ => pod(random, index, &[]),
            };
            made.metadata.name = format!("{app}-{replica}");
            made.metadata.uid = format!("uid-{index:06}-{replica:03}");
            made.metadata.labels.insert("app".to_owned(), app.clone());
            for constraint in &mut made.spec.topology_spread_constraints {
                constraint.label_selector = selector("app", &app);
            }
            made.spec.containers[0].resources.requests = quantities(&[
                ("cpu", format!("{milli_cpu}m")),
                ("memory", format!("{mebibytes}Mi")),
            ]);
            made
        })
        .collect()
}

/// Replicas of one application in the mixes made of applications.
const REPLICAS: usize = 100;

/// A pod of the mixes in which only resources bind: `small` ones of a few sizes; `mixed` ones, log-normal around 500m and two GiB for a
/// CPU, ten to a deployment; and `batch`, ten to a job of two to sixteen CPUs.
fn sized(random: &mut Random, index: usize, last: &mut Option<(String, String)>, mix: &str) -> Pod {
    if index.is_multiple_of(10) || last.is_none() {
        *last = Some(match mix {
            "small" => (
                random.pick(&["50m", "100m", "200m", "250m"]).to_owned(),
                random.pick(&["64Mi", "128Mi", "256Mi", "512Mi"]).to_owned(),
            ),
            "batch" => {
                let cpus = [2, 4, 7, 8, 12, 16][random.below(6)];
                let memory = cpus * [1, 2, 4, 7][random.below(4)];
                (cpus.to_string(), format!("{memory}Gi"))
            }
            _ => {
                let cpu = (random.log_normal(500.0, 0.8) / 50.0).round().clamp(1.0, 160.0) * 50.0;
                let ratio = random.log_normal(2.0, 0.6);
                let memory = (cpu * ratio * 1.024 / 64.0).round().clamp(1.0, 1_024.0) * 64.0;
                (format!("{cpu}m"), format!("{memory}Mi"))
            }
        });
    }
    let mut made = pod(random, index, &[]);
    if let Some((cpu, memory)) = last.clone() {
        made.spec.containers[0].resources.requests = quantities(&[("cpu", cpu), ("memory", memory)]);
    }
    made
}

/// `diverse`, `preference`, `topology`, `affinity` or `generic`; `small`, `mixed` and `batch`, in which only resources bind; and for the named options `pools` of different prices,
/// `limited` in its nodes, `hosts` to spread over and `zones` to be apart in.
pub fn workload(mix: &str, pods: usize, types: usize, seed: u64) -> Option<Workload> {
    let mut random = Random::new(seed);
    let random = &mut random;
    let mut made = Vec::with_capacity(pods);
    let mut sizes = None;
    for index in 0..pods {
        let kind = index * 5 / pods.max(1);
        made.push(match (mix, kind) {
            ("generic" | "pools" | "limited", _) | ("diverse", 0) => {
                let label = random.pick(&VALUES);
                pod(random, index, &[("my-label", label)])
            }
            ("diverse", 1) => spread(random, index, labels::ZONE, "DoNotSchedule"),
            ("diverse", 2) => spread(random, index, labels::HOSTNAME, "DoNotSchedule"),
            ("diverse" | "affinity", 3) => affine(random, index, labels::ZONE),
            ("diverse", _) => apart(random, index, labels::HOSTNAME, "nginx"),
            ("topology", 0 | 1) => spread(random, index, labels::ZONE, "DoNotSchedule"),
            ("topology", 2 | 3) => spread(random, index, labels::HOSTNAME, "DoNotSchedule"),
            ("topology", _) => spread(random, index, labels::ZONE, "ScheduleAnyway"),
            ("affinity", 0..=2) => affine(random, index, labels::ZONE),
            ("affinity", _) => {
                let app = random.pick(&VALUES);
                apart(random, index, labels::HOSTNAME, app)
            }
            ("preference", _) => preferring(random, index),
            ("small" | "mixed" | "batch", _) => sized(random, index, &mut sizes, mix),
            ("hosts", _) => {
                let app = format!("app-{}", index / REPLICAS);
                let mut pod = spread(random, index, labels::HOSTNAME, "DoNotSchedule");
                pod.metadata.labels.insert("my-label".to_owned(), app.clone());
                pod.spec.topology_spread_constraints[0].label_selector = selector("my-label", &app);
                pod
            }
            ("zones", _) => apart(random, index, labels::ZONE, &format!("app-{}", index / 3)),
            _ => return None,
        });
    }
    let mut pool = NodePool::default();
    pool.metadata.name = "default".to_owned();
    pool.spec.limits = quantities(&[
        ("cpu", "10000000".to_owned()),
        ("memory", "10000000Gi".to_owned()),
    ]);
    let mut snapshot = Snapshot::default();
    match mix {
        "pools" => {
            // The later in the alphabet, the dearer: without looking at prices the dearest is taken.
            for (name, share) in [("first", 1.0), ("second", 1.3), ("third", 1.7)] {
                let mut kinds = instance_types(types / 4);
                for offering in kinds.iter_mut().flat_map(|kind| &mut kind.offerings) {
                    offering.price *= share;
                }
                pool.metadata.name = name.to_owned();
                snapshot.node_pools.push(pool.clone());
                snapshot.instance_types.insert(name.to_owned(), kinds);
            }
        }
        "limited" => {
            pool.spec.limits = quantities(&[("nodes", "100".to_owned())]);
            snapshot.node_pools.push(pool);
            snapshot
                .instance_types
                .insert("default".to_owned(), instance_types(8));
        }
        _ => {
            snapshot.node_pools.push(pool);
            snapshot
                .instance_types
                .insert("default".to_owned(), instance_types(types));
        }
    }
    Some(Workload { snapshot, pods: made })
}

/// Nodes that stand full, so that nothing can be improved and every one is probed. With `spare` each has one pod that
/// leaves a third of it free and no room for a second, and the largest type holds three of them: there is much to save, but
/// never by one new node.
pub fn standing(nodes: usize, types: usize, spare: bool) -> Snapshot {
    let kinds = instance_types(if spare { 8 } else { types });
    let mut pool = NodePool::default();
    pool.metadata.name = "default".to_owned();
    pool.spec.disruption.budgets = Some(vec![Budget {
        nodes: "100%".to_owned(),
        ..Budget::default()
    }]);
    pool.spec.disruption.consolidation_policy = "WhenEmptyOrUnderutilized".to_owned();
    pool.spec.disruption.consolidate_after = Some("0s".to_owned());
    let mut snapshot = Snapshot {
        node_pools: vec![pool],
        instance_types: BTreeMap::from([("default".to_owned(), kinds.clone())]),
        ..Snapshot::default()
    };
    let kind = &kinds[3.min(kinds.len() - 1)];
    let condition = |name: &str| Condition {
        kind: name.to_owned(),
        status: "True".to_owned(),
        ..Condition::default()
    };
    let mut random = Random::new(7);
    for index in 0..nodes {
        let name = format!("node-{index:05}");
        let node_labels = [
            (labels::HOSTNAME, name.as_str()),
            (
                labels::ZONE,
                ["test-zone-1", "test-zone-2", "test-zone-3"][index % 3],
            ),
            (labels::CAPACITY_TYPE, "on-demand"),
            (labels::INSTANCE_TYPE, kind.name.as_str()),
            (labels::ARCHITECTURE, "amd64"),
            (labels::NODE_POOL, "default"),
            (labels::REGISTERED, "true"),
            (labels::INITIALIZED, "true"),
        ];
        let mut node = Node::default();
        node.metadata.name = name.clone();
        node.metadata.labels = node_labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        node.spec.provider_id = format!("example://{name}");
        node.status.capacity = kind.capacity.clone();
        node.status.allocatable = kind.capacity.clone();
        node.status.conditions.push(condition("Ready"));
        let mut claim = NodeClaim::default();
        claim.metadata.name = format!("claim-{index:05}");
        claim.status.provider_id = node.spec.provider_id.clone();
        claim.status.conditions.push(condition("Consolidatable"));
        snapshot.nodes.push(node);
        snapshot.node_claims.push(claim);
        let sizes: &[&str] = if spare { &["2600m"] } else { &["1300m"; 3] };
        for (part, cpu) in sizes.iter().enumerate() {
            let app = VALUES[part];
            let mut pod = spread(&mut random, index * 3 + part, labels::ZONE, "ScheduleAnyway");
            pod.metadata.labels.insert("app".to_owned(), app.to_owned());
            pod.spec.containers[0].resources.requests =
                quantities(&[("cpu", (*cpu).to_owned()), ("memory", "512Mi".to_owned())]);
            pod.spec.node_name = name.clone();
            pod.status.phase = "Running".to_owned();
            snapshot.bound_pods.push(pod);
        }
    }
    snapshot
}
