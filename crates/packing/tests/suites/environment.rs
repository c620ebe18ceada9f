//! The cluster a case plays in: the lines that set it up, and launching what a plan asks for the way the suites' fake
//! provider does. Every plan passes the independent checker.

use std::collections::BTreeMap;

use serde_json::json;
use slipway_packing::disrupt::leaving_pods;
use slipway_packing::labels;
use slipway_packing::model::{
    CsiNode, DaemonSet, InstanceType, NewClaim, Node, NodeClaim, NodePool, Offering, Plan, Pod, Snapshot,
    StringMap,
};
use slipway_packing::requirement::Operator;
use slipway_packing::requirements::Requirements;

use super::{catalog, pods, pools, storage, words};
use crate::cluster::{INTEGER, SIZE, SPECIAL, condition};
use crate::judge;
use crate::judged::schedule;

pub const NOT_READY: &str = "node.kubernetes.io/not-ready:NoSchedule";

#[derive(Default)]
pub struct Environment {
    pub snapshot: Snapshot,
    /// The catalogue that pools without one of their own share.
    pub types: Vec<InstanceType>,
    pub own_types: BTreeMap<String, Vec<InstanceType>>,
    pub waiting: Vec<Pod>,
    pub plan: Plan,
    pub outcome: Option<slipway_packing::disrupt::Outcome>,
    /// Pods by the claim of the last plan that holds them.
    pub claim_of: BTreeMap<String, NewClaim>,
    pub launched: usize,
    pub bind: bool,
    /// How many nodes went in several rounds.
    pub gone: usize,
    /// How many questions the case asked.
    pub asked: usize,
    settled: bool,
    serial: usize,
    fresh_types: bool,
}

impl Environment {
    pub fn new() -> Self {
        let mut environment = Environment {
            types: catalog::named("default"),
            settled: true,
            bind: true,
            fresh_types: true,
            ..Environment::default()
        };
        environment.snapshot.options.well_known_labels =
            [SIZE, SPECIAL, INTEGER, "karpenter.sh/reservation-id"]
                .map(str::to_owned)
                .to_vec();
        environment
    }

    /// One line that changes the cluster; false if the line is not of this kind.
    pub fn set_up(&mut self, words: &[&str]) -> bool {
        match words[0] {
            "pool" => {
                let (name, count) = words[1].split_once('*').unwrap_or((words[1], ""));
                if count.is_empty() {
                    self.put_pool(pools::parse(&words[1..]));
                }
                for index in 0..count.parse::<usize>().unwrap_or(0) {
                    let name = format!("{name}-{index}");
                    let mut line = vec![name.as_str()];
                    line.extend(&words[2..]);
                    self.put_pool(pools::parse(&line));
                }
            }
            "no-types" => {
                self.own_types.insert(words[1].to_owned(), Vec::new());
            }
            // `cost type price`: of every offering
            "cost" => {
                let price: f64 = words[2].parse().expect("a price");
                let kind = self
                    .types
                    .iter_mut()
                    .find(|kind| kind.name == words[1])
                    .expect("a type");
                kind.offerings
                    .iter_mut()
                    .for_each(|offering| offering.price = price);
            }
            "unpool" => self
                .snapshot
                .node_pools
                .retain(|pool| pool.metadata.name != words[1]),
            "types" => {
                self.types = catalog::named(words[1]);
                self.fresh_types = true;
                for word in &words[2..] {
                    let (name, rest) = words::option(word);
                    assert_eq!(name, "keep", "unknown word for types: {word}");
                    catalog::keep(&mut self.types, rest);
                }
            }
            "type" => self.put_type(&words[1..]),
            "pod" => {
                let added = pods::parse(&words[1..], &mut self.serial);
                self.waiting.extend(added);
                self.settled = false;
            }
            "daemon" => self.put_daemon(&words[1..]),
            "bound" => self.put_bound(&words[1..]),
            "bound-each" => self.put_on_each(&words[1..]),
            "partition" => self.partition(&words[1..]),
            "pools-nodes" => self.put_in_pools(&words[1..]),
            "node" => self.put_node(&words[1..]),
            "change" => self.change_node(&words[1..]),
            "initialize" => self.initialize(&words[1..]),
            "delete-node" => {
                let name = self.node_name(words[1]);
                self.delete_node(&name);
            }
            "leaving" => {
                let name = self.node_name(words[1]);
                self.snapshot.deleting_nodes.push(name);
                let moved: Vec<Pod> = leaving_pods(&self.snapshot).into_iter().cloned().collect();
                self.waiting.extend(moved);
                self.settled = false;
            }
            "delete-pod" => {
                let own: Vec<String> = self.names(words[1]);
                self.snapshot
                    .bound_pods
                    .retain(|pod| !own.contains(&pod.metadata.name));
                self.waiting.retain(|pod| !own.contains(&pod.metadata.name));
            }
            "evict" => {
                let own: Vec<String> = self.names(words[1]);
                for pod in &mut self.snapshot.bound_pods {
                    if own.contains(&pod.metadata.name) {
                        pod.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
                    }
                }
            }
            // Pods whose node does not have the label
            "delete-pods-off" => {
                let (key, value) = words[1].split_once('=').expect("a label");
                let (key, value) = (words::key(key), words::value(value));
                let stays: Vec<String> = self
                    .snapshot
                    .nodes
                    .iter()
                    .filter(|node| node.metadata.labels.get(&key) == Some(&value))
                    .map(|node| node.metadata.name.clone())
                    .collect();
                self.snapshot
                    .bound_pods
                    .retain(|pod| stays.contains(&pod.spec.node_name));
            }
            "forget" => self.waiting.clear(),
            "run" => {
                self.settled = false;
                self.bind = words.get(1) != Some(&"unbound");
                self.settle();
            }
            "run-each" => self.run_each(words[1].parse().expect("a number"), &words[2..]),
            "fits-together" => self.fits_together(&words[1..]),
            "option" => self.set_option(&words[1..]),
            "default-spread" => {
                let constraint = pods::spread(&format!("{};nil", words[1]), &Pod::default());
                self.snapshot.options.default_topology_spread.push(constraint);
            }
            "csinode" => self.put_csi_node(&words[1..]),
            "repair" => self.snapshot.repair_policies.push(pools::repair(&words[1..])),
            "healthy" => self.snapshot.repair_policies.clear(),
            // `rebooted node 2026-01-01T00:10:00Z`
            "rebooted" => {
                let reboots = self.snapshot.reboots.entry(format!("claim-{}", words[1]));
                reboots
                    .or_default()
                    .extend(words[2..].iter().map(|time| (*time).to_owned()));
            }
            _ => return storage::set_up(&mut self.snapshot, words),
        }
        true
    }

    fn put_pool(&mut self, pool: NodePool) {
        let name = pool.metadata.name.clone();
        self.snapshot.node_pools.retain(|old| old.metadata.name != name);
        self.snapshot.node_pools.push(pool);
    }

    fn put_type(&mut self, words: &[&str]) {
        let (kind, pool) = catalog::parse(words);
        if let Some(pool) = pool {
            self.own_types.entry(pool).or_default().push(kind);
            return;
        }
        if std::mem::take(&mut self.fresh_types) {
            self.types.clear();
        }
        self.types.retain(|old| old.name != kind.name);
        self.types.push(kind);
    }

    fn put_daemon(&mut self, words: &[&str]) {
        let template = pods::parse(words, &mut self.serial).remove(0);
        let mut set = DaemonSet::default();
        set.metadata.name.clone_from(&template.metadata.name);
        set.metadata.namespace.clone_from(&template.metadata.namespace);
        set.metadata.uid = format!("uid-{}", template.metadata.name);
        set.spec.template = template;
        self.snapshot.daemon_sets.push(set);
    }

    /// `bound @pod name*3 …` or `bound node name …`
    pub fn put_bound(&mut self, words: &[&str]) {
        let node = self.node_name(words[0]);
        for mut pod in pods::parse(&words[1..], &mut self.serial) {
            pod.spec.node_name.clone_from(&node);
            if pod.status.phase == "Pending" {
                pod.status.phase = "Running".to_owned();
            }
            self.snapshot.bound_pods.push(pod);
        }
    }

    fn put_csi_node(&mut self, words: &[&str]) {
        let drivers: Vec<_> = words[1..]
            .iter()
            .map(|word| {
                let (name, count) = word.split_once('=').expect("a driver and a count");
                json!({"name": name, "allocatable": {"count": count.parse::<u32>().expect("a count")}})
            })
            .collect();
        let name = self.node_name(words[0]);
        let node: CsiNode =
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"drivers": drivers}}))
                .expect("a CSI node");
        self.snapshot.csi_nodes.push(node);
    }

    fn set_option(&mut self, words: &[&str]) {
        let mut options = serde_json::to_value(&self.snapshot.options).expect("options");
        for word in words {
            let (name, value) = word.split_once('=').expect("an option and its value");
            let value: serde_json::Value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
            match name.strip_prefix("improve.") {
                Some(name) => options["improvements"][name] = value,
                None => options[name] = value,
            }
        }
        self.snapshot.options = serde_json::from_value(options).expect("options");
    }

    /// Several rounds of the same pods, named apart.
    fn run_each(&mut self, rounds: usize, words: &[&str]) {
        let (name, count) = words[0].split_once('*').unwrap_or((words[0], "1"));
        for round in 0..rounds {
            let named = format!("{name}{round}*{count}");
            let mut line = vec![named.as_str()];
            line.extend(&words[1..]);
            let added = pods::parse(&line, &mut self.serial);
            self.waiting.extend(added);
            self.settled = false;
            self.settle();
        }
    }

    /// Every size of CPU and memory: so many pods of it fit one node, and every type listed holds them all.
    fn fits_together(&mut self, words: &[&str]) {
        self.asked += 1;
        let count: usize = words[0].parse().expect("a number of pods");
        for cpu in words[1].split(',') {
            for memory in words[2].split(',') {
                let mut fresh = Environment::new();
                fresh.types.clone_from(&self.types);
                fresh.snapshot.node_pools.clone_from(&self.snapshot.node_pools);
                fresh.set_up(&[
                    "pod",
                    &format!("p*{count}"),
                    &format!("ask:cpu={cpu},memory={memory}Gi"),
                ]);
                fresh.settle();
                assert_eq!(fresh.plan.new_claims.len(), 1, "{cpu} {memory}");
                assert!(fresh.plan.unschedulable.is_empty(), "{cpu} {memory}");
                for name in &fresh.plan.new_claims[0].instance_types {
                    let kind = self.types.iter().find(|kind| kind.name == *name).expect("a type");
                    let room = judge::amounts::allocatable(kind);
                    for (resource, amount) in &fresh.plan.new_claims[0].requests {
                        assert!(room[resource] >= *amount, "{name} has no room for {cpu} {memory}");
                    }
                }
            }
        }
    }

    /// Schedules what waits, launches and binds.
    pub fn settle(&mut self) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        self.place_types();
        let pods = std::mem::take(&mut self.waiting);
        self.plan = schedule(&self.snapshot, &pods);
        let by_name: BTreeMap<String, &Pod> =
            pods.iter().map(|pod| (pod.metadata.reference(), pod)).collect();
        let mut places = Vec::new();
        for assignment in &self.plan.existing {
            places.extend(
                assignment
                    .pods
                    .iter()
                    .map(|pod| (pod.clone(), assignment.node.clone())),
            );
        }
        for claim in &self.plan.new_claims.clone() {
            let node = self.launch(claim);
            for pod in &claim.pods {
                let name = by_name[pod].metadata.name.clone();
                self.claim_of.insert(name, claim.clone());
                places.push((pod.clone(), node.clone()));
            }
        }
        let places: BTreeMap<String, String> = places.into_iter().collect();
        for pod in &pods {
            let moved = !pod.spec.node_name.is_empty();
            match places.get(&pod.metadata.reference()) {
                Some(_) if moved => {}
                Some(node) if self.bind => {
                    let mut pod = pod.clone();
                    pod.spec.node_name = self.node_behind(node);
                    pod.status.phase = "Running".to_owned();
                    self.snapshot.bound_pods.push(pod);
                }
                _ => self.waiting.push(pod.clone()),
            }
        }
        self.waiting.retain(|pod| pod.spec.node_name.is_empty());
    }

    /// A claim that has no node yet is assigned by its own name.
    fn node_behind(&self, name: &str) -> String {
        let claim = self
            .snapshot
            .node_claims
            .iter()
            .find(|claim| claim.metadata.name == name);
        claim.map_or_else(|| name.to_owned(), |claim| claim.status.node_name.clone())
    }

    pub fn place_types(&mut self) {
        self.snapshot.instance_types = self
            .snapshot
            .node_pools
            .iter()
            .map(|pool| {
                let name = pool.metadata.name.clone();
                let types = self.own_types.get(&name).unwrap_or(&self.types).clone();
                (name, types)
            })
            .collect();
    }

    /// Makes a node that has joined but is not initialized: the cheapest type, its first offering that fits, reserved
    /// ones first.
    fn launch(&mut self, claim: &NewClaim) -> String {
        let required = Requirements::from_specs(&claim.requirements);
        let kind = self.snapshot.instance_types[&claim.node_pool]
            .iter()
            .find(|kind| kind.name == claim.instance_types[0])
            .expect("a listed type exists")
            .clone();
        let fits = |offering: &&Offering| {
            let offered = Requirements::from_specs(&offering.requirements);
            offering.available && offered.intersects(&required).is_ok()
        };
        let is_reserved = |offering: &Offering| label_of(offering, labels::CAPACITY_TYPE) == "reserved";
        let offering = kind
            .offerings
            .iter()
            .filter(fits)
            .find(|offering| is_reserved(offering) && offering.reservation_capacity > 0)
            .or_else(|| {
                kind.offerings
                    .iter()
                    .filter(fits)
                    .find(|offering| !is_reserved(offering))
            })
            .expect("an offering fits")
            .clone();
        if is_reserved(&offering) {
            self.take_reservation(&label_of(&offering, "karpenter.sh/reservation-id"));
        }
        let mut own = StringMap::new();
        for spec in kind.requirements.iter().chain(&offering.requirements) {
            if spec.operator == Operator::In && !spec.values.is_empty() {
                own.insert(spec.key.clone(), spec.values[0].clone());
            }
        }
        let known = &self.snapshot.options.well_known_labels;
        for requirement in required.iter() {
            let key = &requirement.to_specs()[0].key;
            if !labels::is_well_known(key, known)
                && let Some(value) = requirement.any_value()
            {
                own.insert(key.clone(), value);
            }
        }
        let pool = self
            .snapshot
            .node_pools
            .iter()
            .find(|pool| pool.metadata.name == claim.node_pool);
        let template = &pool.expect("a pool").spec.template;
        own.extend(template.metadata.labels.clone());
        own.insert(labels::NODE_POOL.to_owned(), claim.node_pool.clone());
        let mut made = NodeClaim::default();
        made.spec.taints.clone_from(&template.spec.taints);
        made.spec.startup_taints.clone_from(&template.spec.startup_taints);
        let mut taints = template.spec.taints.clone();
        taints.extend(template.spec.startup_taints.clone());
        taints.push(words::taint(NOT_READY));
        self.launched += 1;
        let name = format!("node-{:04}", self.launched);
        made.metadata.name = format!("claim-{:04}", self.launched);
        let mut node = self.join(&name, made, own, &kind);
        node.spec.taints = taints;
        self.snapshot.nodes.push(node);
        name
    }

    fn take_reservation(&mut self, id: &str) {
        for types in std::iter::once(&mut self.types).chain(self.own_types.values_mut()) {
            for offering in types.iter_mut().flat_map(|kind| &mut kind.offerings) {
                if label_of(offering, "karpenter.sh/reservation-id") == id {
                    offering.reservation_capacity = offering.reservation_capacity.saturating_sub(1);
                }
            }
        }
    }

    /// A claim and the node that joined for it.
    pub fn join(&mut self, name: &str, mut claim: NodeClaim, own: StringMap, kind: &InstanceType) -> Node {
        let mut node = Node::default();
        node.metadata.name = name.to_owned();
        node.metadata.labels.clone_from(&own);
        for (key, value) in [(labels::HOSTNAME, name), (labels::REGISTERED, "true")] {
            node.metadata.labels.insert(key.to_owned(), value.to_owned());
        }
        node.spec.provider_id = format!("test://{name}");
        node.status.capacity = kind.capacity.clone();
        node.status.allocatable = judge::amounts::allocatable(kind);
        claim.metadata.labels = own;
        claim.status.provider_id.clone_from(&node.spec.provider_id);
        claim.status.node_name = name.to_owned();
        claim.status.capacity.clone_from(&node.status.capacity);
        claim.status.allocatable.clone_from(&node.status.allocatable);
        claim.status.conditions.push(condition("Registered", "True"));
        self.snapshot.node_claims.push(claim);
        node
    }

    fn delete_node(&mut self, name: &str) {
        self.snapshot.nodes.retain(|node| node.metadata.name != name);
        self.snapshot
            .node_claims
            .retain(|claim| claim.status.node_name != name);
        self.snapshot.bound_pods.retain(|pod| pod.spec.node_name != name);
        self.snapshot.deleting_nodes.retain(|own| own != name);
    }

    /// `@pod` is the node the pod runs on.
    pub fn node_name(&self, word: &str) -> String {
        let Some(pod) = word.strip_prefix('@') else {
            return word.to_owned();
        };
        let bound = self
            .snapshot
            .bound_pods
            .iter()
            .find(|bound| bound.metadata.name == pod);
        bound
            .unwrap_or_else(|| panic!("{pod} is not scheduled"))
            .spec
            .node_name
            .clone()
    }

    /// The pods a name stands for: itself, or all of a line.
    pub fn names(&self, word: &str) -> Vec<String> {
        let all = || {
            self.snapshot
                .bound_pods
                .iter()
                .chain(&self.waiting)
                .map(|pod| pod.metadata.name.clone())
        };
        if all().any(|name| name == word) {
            return vec![word.to_owned()];
        }
        let prefix = format!("{word}-");
        let of_line = |name: &String| {
            name.strip_prefix(&prefix)
                .is_some_and(|rest| rest.chars().all(|digit| digit.is_ascii_digit()))
        };
        let names: Vec<String> = all().filter(of_line).collect();
        assert!(!names.is_empty(), "no pod is called {word}");
        names
    }

    pub fn pod(&self, name: &str) -> Option<&Pod> {
        self.snapshot
            .bound_pods
            .iter()
            .find(|pod| pod.metadata.name == name)
    }

    pub fn node(&self, name: &str) -> &Node {
        let node = self.snapshot.nodes.iter().find(|node| node.metadata.name == name);
        node.unwrap_or_else(|| panic!("no node is called {name}"))
    }
}

pub fn label_of(offering: &Offering, key: &str) -> String {
    let own = offering.requirements.iter().find(|own| own.key == key);
    own.and_then(|own| own.values.first())
        .cloned()
        .unwrap_or_default()
}
