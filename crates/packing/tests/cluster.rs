//! A cluster for tests: schedules a batch, launches what the plan asks for, binds the pods, and answers questions
//! about where they went. Every plan passes the independent checker.

use std::collections::BTreeMap;

use slipway_packing::disrupt::Command;
use slipway_packing::labels;
use slipway_packing::model::{
    Condition, Container, InstanceType, NewClaim, Node, NodeClaim, NodePool, ObjectMeta, Offering, Overhead,
    Plan, Pod, ResourceList, Snapshot, StringMap,
};
use slipway_packing::quantity::Quantity;
use slipway_packing::requirement::{Operator, RequirementSpec};

use crate::judge;
use crate::judged::schedule;

pub const SIZE: &str = "size";
pub const SPECIAL: &str = "special";
pub const INTEGER: &str = "integer";

pub fn quantities(pairs: &[(&str, &str)]) -> ResourceList {
    pairs
        .iter()
        .map(|(name, text)| ((*name).to_owned(), text.parse().expect("a quantity")))
        .collect()
}

pub fn requirement(key: &str, operator: Operator, values: &[&str]) -> RequirementSpec {
    RequirementSpec::new(key, operator, values)
}

pub fn offering(capacity_type: &str, zone: &str, price: f64) -> Offering {
    Offering {
        requirements: vec![
            requirement(labels::CAPACITY_TYPE, Operator::In, &[capacity_type]),
            requirement(labels::ZONE, Operator::In, &[zone]),
        ],
        price,
        ..Offering::default()
    }
}

/// An instance type as Karpenter's tests make them: spot in two zones, on demand in three, priced by its size.
pub fn instance_type(name: &str, resources: &[(&str, &str)]) -> InstanceType {
    let mut capacity = quantities(&[("cpu", "4"), ("memory", "4Gi"), ("pods", "5")]);
    capacity.extend(quantities(resources));
    let extra = capacity
        .iter()
        .filter(|(name, _)| name.starts_with("fake.com/"))
        .count() as f64;
    let price = 0.1 * capacity["cpu"].as_f64() + 0.1 * capacity["memory"].as_f64() / 1e9 + extra;
    let large =
        capacity["cpu"] > Quantity::from_units(4) && capacity["memory"] > "8Gi".parse().expect("a quantity");
    let integer = capacity["cpu"].value().to_string();
    let mut requirements = vec![
        requirement(labels::INSTANCE_TYPE, Operator::In, &[name]),
        requirement(labels::ARCHITECTURE, Operator::In, &["amd64"]),
        requirement(
            labels::OPERATING_SYSTEM,
            Operator::In,
            &["linux", "windows", "darwin"],
        ),
        requirement(
            labels::ZONE,
            Operator::In,
            &["test-zone-1", "test-zone-2", "test-zone-3"],
        ),
        requirement(labels::CAPACITY_TYPE, Operator::In, &["spot", "on-demand"]),
        requirement(SIZE, Operator::In, &[if large { "large" } else { "small" }]),
        requirement(INTEGER, Operator::In, &[&integer]),
    ];
    requirements.push(if large {
        requirement(SPECIAL, Operator::In, &["optional"])
    } else {
        requirement(SPECIAL, Operator::DoesNotExist, &[])
    });
    InstanceType {
        name: name.to_owned(),
        requirements,
        capacity,
        overhead: Overhead {
            kube_reserved: quantities(&[("cpu", "100m"), ("memory", "10Mi")]),
            ..Overhead::default()
        },
        offerings: vec![
            offering("spot", "test-zone-1", price),
            offering("spot", "test-zone-2", price),
            offering("on-demand", "test-zone-1", price),
            offering("on-demand", "test-zone-2", price),
            offering("on-demand", "test-zone-3", price),
        ],
        ..InstanceType::default()
    }
}

/// Sets a type's requirement on one label.
pub fn with_requirement(
    mut kind: InstanceType,
    key: &str,
    operator: Operator,
    values: &[&str],
) -> InstanceType {
    kind.requirements.retain(|own| own.key != key);
    kind.requirements.push(requirement(key, operator, values));
    kind
}

pub fn with_offerings(mut kind: InstanceType, offerings: Vec<Offering>) -> InstanceType {
    let values = |key: &str| {
        let mut values: Vec<String> = offerings
            .iter()
            .filter(|offering| offering.available)
            .flat_map(|offering| &offering.requirements)
            .filter(|own| own.key == key)
            .flat_map(|own| own.values.clone())
            .collect();
        values.sort();
        values.dedup();
        values
    };
    for key in [labels::ZONE, labels::CAPACITY_TYPE] {
        let values = values(key);
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        kind = with_requirement(kind, key, Operator::In, &values);
    }
    kind.offerings = offerings;
    kind
}

pub fn default_types() -> Vec<InstanceType> {
    vec![
        instance_type("default-instance-type", &[]),
        instance_type("small-instance-type", &[("cpu", "2"), ("memory", "2Gi")]),
        instance_type("gpu-vendor-instance-type", &[("fake.com/vendor-a", "2")]),
        instance_type("gpu-vendor-b-instance-type", &[("fake.com/vendor-b", "2")]),
        with_requirement(
            instance_type("arm-instance-type", &[("cpu", "16"), ("memory", "128Gi")]),
            labels::ARCHITECTURE,
            Operator::In,
            &["arm64"],
        ),
        instance_type("single-pod-instance-type", &[("pods", "1")]),
    ]
}

/// Type `i` has i+1 CPUs, 2(i+1) Gi and 10(i+1) pods.
pub fn types(count: usize) -> Vec<InstanceType> {
    (0..count)
        .map(|index| {
            let size = index + 1;
            let (cpu, memory, pods) = (
                size.to_string(),
                format!("{}Gi", size * 2),
                (size * 10).to_string(),
            );
            instance_type(
                &format!("fake-it-{index}"),
                &[("cpu", &cpu), ("memory", &memory), ("pods", &pods)],
            )
        })
        .collect()
}

pub fn pool(name: &str) -> NodePool {
    let mut pool = NodePool::default();
    pool.metadata.name = name.to_owned();
    pool
}

pub fn pool_with(name: &str, requirements: Vec<RequirementSpec>) -> NodePool {
    let mut pool = pool(name);
    pool.spec.template.spec.requirements = requirements;
    pool
}

pub fn pod(name: &str, requests: &[(&str, &str)]) -> Pod {
    let mut pod = Pod {
        metadata: ObjectMeta {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            uid: format!("uid-{name}"),
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
    pod.spec.containers[0].resources.requests = quantities(requests);
    pod
}

pub fn labelled(name: &str, requests: &[(&str, &str)], pairs: &[(&str, &str)]) -> Pod {
    let mut pod = pod(name, requests);
    pod.metadata.labels = pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    pod
}

/// Copies of a pod with names of their own.
pub fn copies(prefix: &str, count: usize, example: &Pod) -> Vec<Pod> {
    (0..count)
        .map(|index| {
            let mut pod = example.clone();
            pod.metadata.name = format!("{prefix}-{index}");
            pod.metadata.uid = format!("uid-{prefix}-{index:04}");
            pod
        })
        .collect()
}

pub fn condition(kind: &str, status: &str) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        last_transition_time: Some("2026-01-01T00:00:00Z".to_owned()),
        ..Condition::default()
    }
}

pub struct Cluster {
    pub snapshot: Snapshot,
    launched: usize,
}

pub struct Batch {
    pub plan: Plan,
    pub unscheduled: Vec<String>,
}

impl Cluster {
    pub fn new(pools: Vec<NodePool>, types: Vec<InstanceType>) -> Self {
        let mut snapshot = Snapshot::default();
        for pool in &pools {
            snapshot
                .instance_types
                .insert(pool.metadata.name.clone(), types.clone());
        }
        snapshot.node_pools = pools;
        snapshot.options.well_known_labels = [SIZE, SPECIAL, INTEGER].map(str::to_owned).to_vec();
        Cluster {
            snapshot,
            launched: 0,
        }
    }

    pub fn default() -> Self {
        Cluster::new(vec![pool("default")], default_types())
    }

    /// Schedules, launches and binds.
    pub fn provision(&mut self, pods: Vec<Pod>) -> Batch {
        let plan = schedule(&self.snapshot, &pods);
        let by_name: BTreeMap<String, &Pod> =
            pods.iter().map(|pod| (pod.metadata.reference(), pod)).collect();
        let mut bind = Vec::new();
        for assignment in &plan.existing {
            bind.extend(
                assignment
                    .pods
                    .iter()
                    .map(|pod| (pod.clone(), assignment.node.clone())),
            );
        }
        for claim in &plan.new_claims {
            let node = self.launch(claim);
            bind.extend(claim.pods.iter().map(|pod| (pod.clone(), node.clone())));
        }
        for (name, node) in bind {
            let mut pod = by_name[&name].clone();
            pod.spec.node_name = node;
            pod.status.phase = "Running".to_owned();
            self.snapshot.bound_pods.push(pod);
        }
        let unscheduled = plan
            .unschedulable
            .iter()
            .map(|refusal| refusal.pod.clone())
            .collect();
        Batch { plan, unscheduled }
    }

    /// Makes a node of the cheapest type a claim lists.
    pub fn launch(&mut self, claim: &NewClaim) -> String {
        self.launched += 1;
        let name = format!("node-{:04}", self.launched);
        let kind = self.snapshot.instance_types[&claim.node_pool]
            .iter()
            .find(|kind| kind.name == claim.instance_types[0])
            .expect("a listed type exists")
            .clone();
        let mut node_labels = StringMap::new();
        for own in kind
            .requirements
            .iter()
            .filter(|own| own.operator == Operator::In)
        {
            node_labels.insert(own.key.clone(), own.values[0].clone());
        }
        for own in claim
            .requirements
            .iter()
            .filter(|own| own.operator == Operator::In && own.values.len() == 1)
        {
            node_labels.insert(own.key.clone(), own.values[0].clone());
        }
        node_labels.insert(labels::ZONE.to_owned(), claim.cheapest_zone.clone());
        node_labels.insert(
            labels::CAPACITY_TYPE.to_owned(),
            claim.cheapest_capacity_type.clone(),
        );
        node_labels.insert(labels::INSTANCE_TYPE.to_owned(), kind.name.clone());
        for (key, value) in [
            (labels::HOSTNAME, name.as_str()),
            (labels::NODE_POOL, claim.node_pool.as_str()),
            (labels::REGISTERED, "true"),
            (labels::INITIALIZED, "true"),
        ] {
            node_labels.insert(key.to_owned(), value.to_owned());
        }
        let pool = self
            .snapshot
            .node_pools
            .iter()
            .find(|pool| pool.metadata.name == claim.node_pool)
            .expect("a pool");
        let mut node = Node::default();
        node.metadata.name.clone_from(&name);
        node.metadata.labels.clone_from(&node_labels);
        node.spec.provider_id = format!("test://{name}");
        node.spec.taints.clone_from(&pool.spec.template.spec.taints);
        node.status.capacity = kind.capacity.clone();
        node.status.allocatable = judge::amounts::allocatable(&kind);
        node.status.conditions.push(condition("Ready", "True"));
        let mut made = NodeClaim::default();
        made.metadata.name = format!("claim-{:04}", self.launched);
        made.metadata.labels = node_labels;
        made.status.provider_id.clone_from(&node.spec.provider_id);
        made.status.node_name.clone_from(&name);
        made.status.conditions.push(condition("Initialized", "True"));
        made.status.conditions.push(condition("Consolidatable", "True"));
        self.snapshot.nodes.push(node);
        self.snapshot.node_claims.push(made);
        name
    }

    /// A node that stands already.
    pub fn add_node(&mut self, pool: &str, kind: &str, zone: &str, capacity_type: &str) -> String {
        self.launch(&NewClaim {
            node_pool: pool.to_owned(),
            instance_types: vec![kind.to_owned()].into(),
            cheapest_zone: zone.to_owned(),
            cheapest_capacity_type: capacity_type.to_owned(),
            ..NewClaim::default()
        })
    }

    /// A pod that runs already, owned by a ReplicaSet.
    pub fn run(&mut self, mut pod: Pod, node: &str) {
        pod.spec.node_name = node.to_owned();
        pod.status.phase = "Running".to_owned();
        self.snapshot.bound_pods.push(pod);
    }

    /// Does what a command says: what is new comes up, pods move, and nodes go.
    pub fn carry_out(&mut self, command: &Command) {
        let mut moves: Vec<(&String, String)> = Vec::new();
        for claim in &command.replacements {
            let node = self.launch(claim);
            moves.extend(claim.pods.iter().map(|pod| (pod, node.clone())));
        }
        for node in &command.existing {
            moves.extend(node.pods.iter().map(|pod| (pod, node.node.clone())));
        }
        for (name, node) in moves {
            let pods = &mut self.snapshot.bound_pods;
            let moved = pods.iter_mut().find(|pod| pod.metadata.reference() == *name);
            moved.expect("a pod that runs").spec.node_name = node;
        }
        let stays = |name: &String| !command.nodes.contains(name);
        self.snapshot.nodes.retain(|node| stays(&node.metadata.name));
        self.snapshot
            .node_claims
            .retain(|claim| stays(&claim.status.node_name));
        self.snapshot.bound_pods.retain(|pod| stays(&pod.spec.node_name));
    }

    pub fn node_of(&self, pod: &str) -> &Node {
        let bound = self
            .snapshot
            .bound_pods
            .iter()
            .find(|bound| bound.metadata.name == pod);
        let name = &bound
            .unwrap_or_else(|| panic!("{pod} is not scheduled"))
            .spec
            .node_name;
        self.snapshot
            .nodes
            .iter()
            .find(|node| node.metadata.name == *name)
            .expect("its node exists")
    }

    pub fn label_of(&self, pod: &str, key: &str) -> &str {
        &self.node_of(pod).metadata.labels[key]
    }

    pub fn type_of(&self, pod: &str) -> &str {
        self.label_of(pod, labels::INSTANCE_TYPE)
    }

    /// How many pods with these labels run in each domain, sorted.
    pub fn skew(&self, key: &str, selected: &[(&str, &str)]) -> Vec<usize> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for bound in &self.snapshot.bound_pods {
            let has =
                |(key, value): &(&str, &str)| bound.metadata.labels.get(key).is_some_and(|own| own == value);
            if selected.iter().all(has) {
                *counts
                    .entry(self.label_of(&bound.metadata.name, key))
                    .or_default() += 1;
            }
        }
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable();
        counts
    }

    pub fn node_count(&self) -> usize {
        self.snapshot.nodes.len()
    }

    /// Types of all nodes with how many pods each holds.
    pub fn types_in_use(&self) -> Vec<String> {
        let mut types: Vec<String> = self
            .snapshot
            .nodes
            .iter()
            .map(|node| node.metadata.labels[labels::INSTANCE_TYPE].clone())
            .collect();
        types.sort();
        types
    }

    /// Removes pods that run where `predicate` says.
    pub fn delete_pods(&mut self, predicate: impl Fn(&Pod, &Node) -> bool) {
        let nodes = self.snapshot.nodes.clone();
        self.snapshot.bound_pods.retain(|pod| {
            let node = nodes
                .iter()
                .find(|node| node.metadata.name == pod.spec.node_name)
                .expect("its node exists");
            !predicate(pod, node)
        });
    }
}
