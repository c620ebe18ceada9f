//! A day of arrivals and departures in one cluster: what it costs, how often pods are moved, and how many nodes come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command as Program, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use slipway_packing::disrupt::{Command, Decision, Method, next_command};
use slipway_packing::labels;
use slipway_packing::model::{
    Condition, InstanceType, NewClaim, Node, NodeAssignment, NodeClaim, NodePool, PackingPolicy, Plan, Pod,
    Snapshot,
};
use slipway_packing::requirement::{Operator, RequirementSpec};
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
/// Deployments that arrive in an hour, on average, unless something else is asked for; twice as many at the busiest time as at
/// night.
pub const AN_HOUR: f64 = 80.0;
const HOW_MUCH_MORE: f64 = 1.0 / 3.0;
/// The busiest time.
const NOON: f64 = 14.0 * 60.0;
/// Of ten deployments so many are short: half an hour on average, the others six.
const SHORT: usize = 4;
const SHORT_MINUTES: f64 = 30.0;
const LONG_MINUTES: f64 = 360.0;

/// Who decides instead of this crate: Karpenter's own scheduler and consolidation, a line for a question.
struct Karpenter {
    _process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// The first command of Karpenter's consolidation.
#[derive(serde::Deserialize)]
struct Decided {
    nodes: Vec<String>,
    replacements: Vec<NewClaim>,
    existing: Vec<NodeAssignment>,
    #[serde(default)]
    error: String,
}

impl Karpenter {
    fn start(program: &str) -> Result<Self, String> {
        let mut process = Program::new(program)
            .arg("stream")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting {program}: {error}"))?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (questions, answers) = pipes.ok_or("Karpenter has no pipes")?;
        Ok(Karpenter {
            _process: process,
            questions,
            answers: BufReader::new(answers),
        })
    }

    fn ask(&mut self, snapshot: &Snapshot, waiting: &[Pod], disrupt: bool) -> Result<String, String> {
        let mut question = serde_json::to_value(snapshot).map_err(|error| error.to_string())?;
        question["pods"] = json!(waiting);
        question["disrupt"] = json!(disrupt);
        writeln!(self.questions, "{question}").map_err(|error| format!("asking Karpenter: {error}"))?;
        let mut answer = String::new();
        let read = self.answers.read_line(&mut answer);
        read.map_err(|error| format!("hearing Karpenter: {error}"))?;
        Ok(answer)
    }

    fn schedule(&mut self, snapshot: &Snapshot, waiting: &[Pod]) -> Result<Plan, String> {
        let answer = self.ask(snapshot, waiting, false)?;
        let mut plan: Plan =
            serde_json::from_str(&answer).map_err(|error| format!("{error}: {answer:.200}"))?;
        for claim in &mut plan.new_claims {
            launched(claim, snapshot);
        }
        Ok(plan)
    }

    fn command(&mut self, snapshot: &Snapshot, waiting: &[Pod]) -> Result<Option<Command>, String> {
        let answer = self.ask(snapshot, waiting, true)?;
        let decided: Decided =
            serde_json::from_str(&answer).map_err(|error| format!("{error}: {answer:.200}"))?;
        if !decided.error.is_empty() {
            return Err(decided.error);
        }
        if decided.nodes.is_empty() {
            return Ok(None);
        }
        let mut replacements = decided.replacements;
        for claim in &mut replacements {
            launched(claim, snapshot);
        }
        Ok(Some(Command {
            method: Method::SingleNodeConsolidation,
            reason: Method::SingleNodeConsolidation.reason(),
            decision: if replacements.is_empty() {
                Decision::Delete
            } else {
                Decision::Replace
            },
            nodes: decided.nodes,
            replacements,
            existing: decided.existing,
            savings: 0.0,
            terminate_first: None,
            termination_grace_seconds: None,
            unhealthy: None,
        }))
    }
}

/// A claim of Karpenter's lists types and zones: the cheapest of them is launched, as its kwok provider does.
fn launched(claim: &mut NewClaim, snapshot: &Snapshot) {
    let types = &snapshot.instance_types["default"];
    let is_zone = |one: &&RequirementSpec| one.key == labels::ZONE && one.operator == Operator::In;
    let zones = claim.requirements.iter().find(is_zone).map(|one| &one.values);
    let mut best: Option<(f64, String, String, String)> = None;
    for kind in types
        .iter()
        .filter(|kind| claim.instance_types.contains(&kind.name))
    {
        for offering in kind.offerings.iter().filter(|offering| offering.available) {
            let value = |key: &str| {
                let own = offering.requirements.iter().find(|one| one.key == key);
                own.and_then(|own| own.values.first())
                    .cloned()
                    .unwrap_or_default()
            };
            let zone = value(labels::ZONE);
            let is_in = zones.is_none_or(|zones| zones.contains(&zone));
            if is_in && best.as_ref().is_none_or(|(price, ..)| offering.price < *price) {
                best = Some((
                    offering.price,
                    kind.name.clone(),
                    zone,
                    value(labels::CAPACITY_TYPE),
                ));
            }
        }
    }
    if let Some((price, name, zone, capacity_type)) = best {
        claim.cheapest_price = price;
        claim.instance_types = vec![name].into();
        claim.cheapest_zone = zone;
        claim.cheapest_capacity_type = capacity_type;
    }
}

struct Day {
    snapshot: Snapshot,
    peer: Option<Karpenter>,
    arrivals: f64,
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
    invalid: usize,
    planning: f64,
    consolidating: f64,
}

pub struct Asked {
    /// Who decides instead.
    pub peer: Option<String>,
    pub arrivals: f64,
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
    let peer = asked.peer.as_deref().map(Karpenter::start).transpose()?;
    let mut day = Day {
        snapshot,
        peer,
        arrivals: asked.arrivals,
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
        "policy": match (&asked.peer, asked.policy) {
            (Some(_), _) => "peer",
            (None, PackingPolicy::Karpenter) => "karpenter",
            (None, PackingPolicy::Cost) => "cost",
        },
        "arrivals": asked.arrivals,
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
        "invalid": counts.invalid,
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
        let plan = match &mut self.peer {
            Some(peer) => peer.schedule(&self.snapshot, &self.waiting)?,
            None => schedule(&self.snapshot, &self.waiting),
        };
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
            let found = match &mut self.peer {
                Some(peer) => peer.command(&self.snapshot, &self.waiting)?,
                None => next_command(&self.snapshot, &self.waiting).command,
            };
            self.counts.consolidating += started.elapsed().as_secs_f64();
            let Some(mut command) = found else { break };
            if self.peer.is_some() {
                command.savings = self.saved_by(&command);
            }
            let problems = checker::command_problems(&self.snapshot, &self.waiting, &command);
            // What somebody else decides is a finding, and carried out.
            self.counts.invalid += usize::from(!problems.is_empty());
            if let Some(problem) = problems.first().filter(|_| self.peer.is_none()) {
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

    /// What a command saves per hour.
    fn saved_by(&self, command: &Command) -> f64 {
        let going = command.nodes.iter().filter_map(|node| self.prices.get(node));
        let coming = command.replacements.iter().map(|claim| claim.cheapest_price);
        going.sum::<f64>() - coming.sum::<f64>()
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
        let rate = self.arrivals * (1.0 + HOW_MUCH_MORE * turn.cos()) * STEP as f64 / 60.0;
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
        for mut pod in std::mem::take(&mut self.snapshot.bound_pods) {
            if !going.contains(pod.spec.node_name.as_str()) {
                self.snapshot.bound_pods.push(pod);
                continue;
            }
            self.counts.evictions += 1;
            match places.get(pod.metadata.reference().as_str()) {
                Some(node) => {
                    pod.spec.node_name.clone_from(node);
                    self.snapshot.bound_pods.push(pod);
                }
                // Nobody said where it goes: it is planned for again.
                None => {
                    pod.spec.node_name.clear();
                    "Pending".clone_into(&mut pod.status.phase);
                    self.waiting.push(pod);
                }
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
