//! A day of arrivals and departures in one cluster: what it costs, how often pods are moved, and how many nodes come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde_json::{Value, json};
use slipway_packing::disrupt::{Command, next_command};
use slipway_packing::labels;
use slipway_packing::model::{
    Condition, InstanceType, NewClaim, Node, NodeClaim, NodePool, PackingPolicy, Pod, Snapshot,
};
use slipway_packing::{optimum, schedule};

use super::checker;
use super::generate::{Random, deployment};

/// Minutes between two looks at the cluster.
const STEP: usize = 5;
/// Nothing is counted before the cluster has filled up.
const WARM_UP: usize = 6 * 60;
const DAY: usize = 24 * 60;
/// Karpenter decides every ten seconds and looks once more after fifteen: no more commands fit into a step.
const COMMANDS: usize = 12;
/// Deployments that arrive in an hour, on average; twice as many at the busiest time as at night.
const AN_HOUR: f64 = 80.0;
const HOW_MUCH_MORE: f64 = 1.0 / 3.0;
/// The busiest time.
const NOON: f64 = 14.0 * 60.0;
/// Of ten deployments so many are short: half an hour on average, the others six.
const SHORT: usize = 4;
const SHORT_MINUTES: f64 = 30.0;
const LONG_MINUTES: f64 = 360.0;

struct Day {
    snapshot: Snapshot,
    random: Random,
    /// When pods end, by uid.
    ends: BTreeMap<String, f64>,
    waiting: Vec<Pod>,
    prices: BTreeMap<String, f64>,
    nodes: usize,
    deployments: usize,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    money: f64,
    bound: f64,
    evictions: usize,
    created: usize,
    deleted: usize,
    arrived: usize,
    commands: usize,
    most_nodes: usize,
    waiting: usize,
    planning: f64,
    consolidating: f64,
}

pub struct Asked {
    pub policy: PackingPolicy,
    pub eviction: f64,
    pub seed: u64,
    pub hours: usize,
}

/// Plays the day and says what came of it.
pub fn day(types: Vec<InstanceType>, asked: &Asked) -> Result<Value, String> {
    let mut pool = NodePool::default();
    pool.metadata.name = "default".to_owned();
    pool.spec.disruption.consolidation_policy = "WhenEmptyOrUnderutilized".to_owned();
    pool.spec.disruption.consolidate_after = Some("0s".to_owned());
    let mut snapshot = Snapshot {
        node_pools: vec![pool],
        instance_types: BTreeMap::from([("default".to_owned(), types)]),
        ..Snapshot::default()
    };
    snapshot.options.packing = asked.policy;
    snapshot.options.packing_weights.eviction = asked.eviction;
    let mut day = Day {
        snapshot,
        random: Random::new(asked.seed),
        ends: BTreeMap::new(),
        waiting: Vec::new(),
        prices: BTreeMap::new(),
        nodes: 0,
        deployments: 0,
        counts: Counts::default(),
    };
    let last = WARM_UP + (asked.hours * 60).min(DAY);
    for minute in (0..last).step_by(STEP) {
        if minute == WARM_UP {
            day.counts = Counts::default();
        }
        day.step(minute)?;
    }
    let counts = day.counts;
    Ok(json!({
        "policy": match asked.policy {
            PackingPolicy::Karpenter => "karpenter",
            PackingPolicy::Cost => "cost",
        },
        "eviction": asked.eviction,
        "seed": asked.seed,
        "hours": (last - WARM_UP) / 60,
        "money": counts.money,
        "bound": counts.bound,
        "evictions": counts.evictions,
        "created": counts.created,
        "deleted": counts.deleted,
        "arrived": counts.arrived,
        "commands": counts.commands,
        "mostNodes": counts.most_nodes,
        "waiting": counts.waiting,
        "planningSeconds": counts.planning,
        "consolidatingSeconds": counts.consolidating,
    }))
}

impl Day {
    fn step(&mut self, minute: usize) -> Result<(), String> {
        let now = minute as f64;
        let ends = &self.ends;
        let runs = |pod: &Pod| ends.get(&pod.metadata.uid).is_none_or(|end| *end > now);
        self.snapshot.bound_pods.retain(runs);
        self.waiting.retain(runs);
        self.arrive(now);
        let started = Instant::now();
        let plan = schedule(&self.snapshot, &self.waiting);
        self.counts.planning += started.elapsed().as_secs_f64();
        let mut places: BTreeMap<&str, String> = BTreeMap::new();
        for claim in &plan.new_claims {
            let node = self.launch(claim);
            places.extend(claim.pods.iter().map(|pod| (pod.as_str(), node.clone())));
        }
        for node in &plan.existing {
            places.extend(node.pods.iter().map(|pod| (pod.as_str(), node.node.clone())));
        }
        for mut pod in std::mem::take(&mut self.waiting) {
            match places.get(pod.metadata.reference().as_str()) {
                Some(node) => {
                    pod.spec.node_name.clone_from(node);
                    "Running".clone_into(&mut pod.status.phase);
                    self.snapshot.bound_pods.push(pod);
                }
                None => self.waiting.push(pod),
            }
        }
        for _ in 0..COMMANDS {
            let started = Instant::now();
            let outcome = next_command(&self.snapshot, &self.waiting);
            self.counts.consolidating += started.elapsed().as_secs_f64();
            let Some(command) = outcome.command else { break };
            let problems = checker::command_problems(&self.snapshot, &self.waiting, &command);
            if let Some(problem) = problems.first() {
                return Err(format!(
                    "minute {minute}: a command is not valid: {problem}: {command:?}"
                ));
            }
            self.carry_out(&command);
        }
        let hourly: f64 = self.prices.values().sum();
        self.counts.money += hourly * STEP as f64 / 60.0;
        self.counts.most_nodes = self.counts.most_nodes.max(self.snapshot.nodes.len());
        self.counts.waiting += self.waiting.len();
        if minute.is_multiple_of(60) {
            self.counts.bound += self.bound();
        }
        Ok(())
    }

    /// What the pods that run cost at least in an hour, if they could be placed again.
    fn bound(&self) -> f64 {
        let empty = Snapshot {
            node_pools: self.snapshot.node_pools.clone(),
            instance_types: self.snapshot.instance_types.clone(),
            ..Snapshot::default()
        };
        let mut pods = self.snapshot.bound_pods.clone();
        for pod in &mut pods {
            pod.spec.node_name.clear();
        }
        optimum::lower_bound(&empty, &pods)
    }

    fn arrive(&mut self, now: f64) {
        let turn = (now - WARM_UP as f64 - NOON) / DAY as f64 * std::f64::consts::TAU;
        let rate = AN_HOUR * (1.0 + HOW_MUCH_MORE * turn.cos()) * STEP as f64 / 60.0;
        for _ in 0..self.random.poisson(rate) {
            let short = self.random.below(10) < SHORT;
            let mean = if short { SHORT_MINUTES } else { LONG_MINUTES };
            let life = self.random.exponential(mean);
            let pods = deployment(&mut self.random, self.deployments);
            self.deployments += 1;
            self.counts.arrived += pods.len();
            for pod in pods {
                self.ends.insert(pod.metadata.uid.clone(), now + life);
                self.waiting.push(pod);
            }
        }
    }

    fn carry_out(&mut self, command: &Command) {
        let going: BTreeSet<&str> = command.nodes.iter().map(String::as_str).collect();
        let mut places: BTreeMap<&str, String> = BTreeMap::new();
        for claim in &command.replacements {
            let node = self.launch(claim);
            places.extend(claim.pods.iter().map(|pod| (pod.as_str(), node.clone())));
        }
        for node in &command.existing {
            places.extend(node.pods.iter().map(|pod| (pod.as_str(), node.node.clone())));
        }
        for pod in &mut self.snapshot.bound_pods {
            if going.contains(pod.spec.node_name.as_str())
                && let Some(node) = places.get(pod.metadata.reference().as_str())
            {
                pod.spec.node_name.clone_from(node);
                self.counts.evictions += 1;
            }
        }
        self.snapshot
            .nodes
            .retain(|node| !going.contains(node.metadata.name.as_str()));
        self.snapshot
            .node_claims
            .retain(|claim| !going.contains(claim.status.node_name.as_str()));
        self.prices.retain(|name, _| !going.contains(name.as_str()));
        self.counts.deleted += going.len();
        self.counts.commands += 1;
    }

    /// A node of the cheapest type that a claim lists, up at once.
    fn launch(&mut self, claim: &NewClaim) -> String {
        let name = format!("node-{:06}", self.nodes);
        self.nodes += 1;
        self.counts.created += 1;
        let kind = self.snapshot.instance_types["default"]
            .iter()
            .find(|kind| kind.name == claim.instance_types[0])
            .expect("a listed type exists");
        let mut node = Node::default();
        node.metadata.name.clone_from(&name);
        for (key, value) in [
            (labels::HOSTNAME, name.as_str()),
            (labels::ZONE, claim.cheapest_zone.as_str()),
            (labels::CAPACITY_TYPE, claim.cheapest_capacity_type.as_str()),
            (labels::INSTANCE_TYPE, kind.name.as_str()),
            (labels::ARCHITECTURE, "amd64"),
            (labels::OPERATING_SYSTEM, "linux"),
            (labels::NODE_POOL, "default"),
            (labels::REGISTERED, "true"),
            (labels::INITIALIZED, "true"),
        ] {
            node.metadata.labels.insert(key.to_owned(), value.to_owned());
        }
        node.spec.provider_id = format!("example://{name}");
        node.status.capacity = kind.capacity.clone();
        node.status.allocatable = checker::amounts::allocatable(kind);
        let condition = |kind: &str| Condition {
            kind: kind.to_owned(),
            status: "True".to_owned(),
            ..Condition::default()
        };
        node.status.conditions.push(condition("Ready"));
        let mut made = NodeClaim::default();
        made.metadata.name = format!("claim-{name}");
        made.metadata.labels.clone_from(&node.metadata.labels);
        made.status.provider_id.clone_from(&node.spec.provider_id);
        made.status.node_name.clone_from(&name);
        made.status.conditions.push(condition("Consolidatable"));
        self.snapshot.nodes.push(node);
        self.snapshot.node_claims.push(made);
        self.prices.insert(name.clone(), claim.cheapest_price);
        name
    }
}
