//! Where a plan puts pods: nodes that stand, capacity on its way, and claims with all they could become. Each is checked
//! on its own here: selection, taints, room, ports and volumes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use slipway_packing::model::{
    DaemonSet, InstanceType, NewClaim, Node, NodeClaim, NodePool, Overhead, Plan, Pod, ResourceList,
    Snapshot, Taint,
};
use slipway_packing::quantity::Quantity;
use slipway_packing::requirement::Operator;

use super::amounts::{add, total};
use super::named;
use super::selection::{HOSTNAME, Labels, allows, normal, selected, tolerated};
use super::volumes::Attached;

/// A place pods were put: a node, or one (claim, instance type, offering) the cloud may choose.
pub struct NodeLoad<'a> {
    pub host: String,
    pub labels: Rc<Labels>,
    pub taints: Vec<Taint>,
    pub pods: Vec<&'a Pod>,
    /// Pods that were there before.
    pub before: usize,
    /// Takes no pods any more: what runs there still counts, where it is opens no domain.
    pub going: bool,
}

impl<'a> NodeLoad<'a> {
    pub fn new_pods(&self) -> &[&'a Pod] {
        &self.pods[self.before..]
    }
}

/// A type a claim may become: its labels, and what it holds as each of the offerings that are left.
struct Becomes<'a> {
    kind: &'a InstanceType,
    labels: Labels,
    holds: Vec<ResourceList>,
    daemons: ResourceList,
}

/// Claims that say the same have the same in common.
struct Said<'a> {
    types: Vec<Becomes<'a>>,
    labels: Rc<Labels>,
}

pub struct Places<'c, 'a> {
    snapshot: &'a Snapshot,
    by_name: &'c HashMap<String, &'a Pod>,
    bound: HashMap<&'a str, Vec<&'a Pod>>,
    volumes: &'c Attached<'a>,
    said: HashMap<String, Rc<Said<'a>>>,
    problems: &'c mut Vec<String>,
}

impl<'c, 'a> Places<'c, 'a> {
    pub fn new(
        snapshot: &'a Snapshot,
        by_name: &'c HashMap<String, &'a Pod>,
        moving: &BTreeSet<&str>,
        volumes: &'c Attached<'a>,
        problems: &'c mut Vec<String>,
    ) -> Self {
        let mut bound: HashMap<&str, Vec<&Pod>> = HashMap::new();
        for pod in &snapshot.bound_pods {
            let done = matches!(pod.status.phase.as_str(), "Failed" | "Succeeded");
            if !done && !moving.contains(pod.metadata.uid.as_str()) {
                bound.entry(&pod.spec.node_name).or_default().push(pod);
            }
        }
        Places {
            snapshot,
            by_name,
            bound,
            volumes,
            said: HashMap::new(),
            problems,
        }
    }

    pub fn of_plan(mut self, plan: &Plan) -> Vec<NodeLoad<'a>> {
        let mut assigned: HashMap<&str, Vec<&'a Pod>> = HashMap::new();
        for assignment in &plan.existing {
            let pods = assignment.pods.iter().map(|name| self.by_name[name]);
            assigned.entry(&assignment.node).or_default().extend(pods);
        }
        let by_provider: HashMap<&str, &NodeClaim> = self
            .snapshot
            .node_claims
            .iter()
            .map(|claim| (claim.status.provider_id.as_str(), claim))
            .collect();
        let mut joined: BTreeSet<&str> = BTreeSet::new();
        let mut places = Vec::new();
        for node in &self.snapshot.nodes {
            let claim = by_provider.get(node.spec.provider_id.as_str()).copied();
            joined.extend(claim.map(|claim| claim.metadata.name.as_str()));
            let new = assigned
                .remove(node.metadata.name.as_str())
                .or_else(|| assigned.remove(claim?.metadata.name.as_str()));
            places.push(self.node(node, claim, new.unwrap_or_default()));
        }
        for claim in &self.snapshot.node_claims {
            if !joined.contains(claim.metadata.name.as_str()) {
                let new = assigned.remove(claim.metadata.name.as_str()).unwrap_or_default();
                places.push(self.on_its_way(claim, new));
            }
        }
        for node in assigned.keys() {
            self.problems.push(format!("there is no node {node}"));
        }
        for (index, claim) in plan.new_claims.iter().enumerate() {
            places.extend(self.claim(claim, index));
        }
        places
    }

    fn is_going(&self, name: &str) -> bool {
        self.snapshot.deleting_nodes.iter().any(|going| going == name)
    }

    fn node(&mut self, node: &'a Node, claim: Option<&'a NodeClaim>, new: Vec<&'a Pod>) -> NodeLoad<'a> {
        let name = &node.metadata.name;
        let has = |label: &str| {
            node.metadata
                .labels
                .get(label)
                .is_some_and(|value| value == "true")
        };
        let going = self.is_going(name)
            || node.metadata.deletion_timestamp.is_some()
            || claim.is_some_and(|claim| {
                claim.metadata.deletion_timestamp.is_some() || self.is_going(&claim.metadata.name)
            });
        // While a node starts, taints that will go away and amounts it has not told yet are taken from its claim.
        let starting = claim.filter(|_| !has("karpenter.sh/initialized"));
        let mut taints = node.spec.taints.clone();
        let mut allocatable = node.status.allocatable.clone();
        if let Some(claim) = starting {
            let startup = |taint: &Taint| {
                let own = |own: &Taint| own.key == taint.key && own.effect == taint.effect;
                claim.spec.startup_taints.iter().any(own)
            };
            taints.retain(|taint| !startup(taint) && !is_ephemeral(taint));
            for (resource, amount) in &claim.status.allocatable {
                let told = allocatable.entry(resource.clone()).or_default();
                if told.is_zero() {
                    *told = *amount;
                }
            }
        }
        let labels = match starting {
            Some(claim) if !has("karpenter.sh/registered") => &claim.metadata.labels,
            _ => &node.metadata.labels,
        };
        let mut place = NodeLoad {
            host: labels.get(HOSTNAME).unwrap_or(name).clone(),
            labels: Rc::new(exact(labels)),
            taints,
            before: 0,
            pods: self.bound.get(name.as_str()).cloned().unwrap_or_default(),
            going,
        };
        self.fill(&mut place, name, new, &allocatable);
        let limits = self.volumes.limits_of_node(node);
        self.check_volumes(&place, name, &limits);
        place
    }

    fn on_its_way(&mut self, claim: &'a NodeClaim, new: Vec<&'a Pod>) -> NodeLoad<'a> {
        let name = &claim.metadata.name;
        let mut taints = claim.spec.taints.clone();
        taints.retain(|taint| !is_ephemeral(taint));
        let mut place = NodeLoad {
            host: claim.metadata.labels.get(HOSTNAME).unwrap_or(name).clone(),
            labels: Rc::new(exact(&claim.metadata.labels)),
            taints,
            pods: Vec::new(),
            before: 0,
            going: claim.metadata.deletion_timestamp.is_some() || self.is_going(name),
        };
        self.fill(&mut place, name, new, &claim.status.allocatable);
        place
    }

    /// Puts pods on what stands and checks each and all of them.
    fn fill(&mut self, place: &mut NodeLoad<'a>, name: &str, new: Vec<&'a Pod>, allocatable: &ResourceList) {
        place.before = place.pods.len();
        if new.is_empty() {
            return;
        }
        if place.going {
            self.problems.push(format!("{name} is going away and got pods"));
        }
        for pod in &new {
            if !tolerated(&place.taints, &pod.spec.tolerations) {
                self.problems.push(format!("{} on {name}: taint", named(pod)));
            }
            if !selected(pod, &place.labels) {
                self.problems
                    .push(format!("{} on {name}: node selection", named(pod)));
            }
            if !self.volumes.reachable(pod, &place.labels) {
                self.problems
                    .push(format!("{} on {name}: its volumes are elsewhere", named(pod)));
            }
        }
        place.pods.extend(new);
        for (resource, required) in &total(place.pods.iter().copied()) {
            let has = allocatable.get(resource).copied().unwrap_or(Quantity::ZERO);
            if *required > has {
                self.problems
                    .push(format!("{name}: {required} of {resource} required, {has} there"));
            }
        }
        self.check_ports(&place.pods, name);
    }

    fn claim(&mut self, claim: &NewClaim, index: usize) -> Option<NodeLoad<'a>> {
        let pods: Vec<&'a Pod> = claim.pods.iter().map(|name| self.by_name[name]).collect();
        let name = format!("claim {index}");
        if claim.instance_types.is_empty() || pods.is_empty() {
            self.problems.push(format!("{name} is empty"));
            return None;
        }
        let pools = &self.snapshot.node_pools;
        let Some(pool) = pools.iter().find(|pool| pool.metadata.name == claim.node_pool) else {
            self.problems
                .push(format!("{name}: unknown pool {}", claim.node_pool));
            return None;
        };
        let taints = &pool.spec.template.spec.taints;
        for pod in &pods {
            if !tolerated(taints, &pod.spec.tolerations) {
                self.problems.push(format!("{} on {name}: taint", named(pod)));
            }
        }
        self.check_ports(&pods, &name);
        if pool.spec.replicas.is_some() || pool.metadata.deletion_timestamp.is_some() {
            self.problems
                .push(format!("{name}: {} takes no new nodes", claim.node_pool));
        }
        let said = self.said(claim, pool)?;
        for (key, required, values) in too_few(claim, &said) {
            self.problems.push(format!(
                "{name}: {required} values of {key} required, {values} there"
            ));
        }
        let requests = total(pods.iter().copied());
        let attached = self.volumes.of(&pods);
        let choosy: Vec<&Pod> = pods
            .iter()
            .copied()
            .filter(|pod| !pod.spec.node_selector.is_empty() || pod.spec.affinity.is_some())
            .collect();
        // A claim that goes into reservations may list types these do not have: nothing can be launched as such a type.
        let label = &self.snapshot.options.reservation_label;
        let reserved = claim.requirements.iter().any(|own| own.key == *label);
        let launchable = |own: &&Becomes<'a>| !reserved || !own.holds.is_empty();
        if !said.types.iter().any(|own| !own.holds.is_empty()) {
            self.problems
                .push(format!("{name}: nothing it lists is on offer"));
        }
        for own in said.types.iter().filter(launchable) {
            let kind = &own.kind.name;
            if let Some(key) = outside(pool, &own.labels) {
                self.problems
                    .push(format!("{name} as {kind}: its pool does not allow its {key}"));
            }
            for pod in &choosy {
                if !selected(pod, &own.labels) {
                    let pod = named(pod);
                    self.problems.push(format!(
                        "{pod} on {name} as {kind}: node selection {:?}",
                        own.labels
                    ));
                }
            }
            let mut required = requests.clone();
            add(&mut required, &own.daemons);
            let fits = |holds: &ResourceList| {
                required.iter().all(|(resource, required)| {
                    *required <= holds.get(resource).copied().unwrap_or(Quantity::ZERO)
                })
            };
            if !own.holds.iter().any(fits) {
                self.problems
                    .push(format!("{name} as {kind}: nothing on offer holds {required:?}"));
            }
            for (driver, limit) in &own.kind.volume_attachment_limits {
                let count = attached.get(driver).map_or(0, BTreeSet::len);
                if count > *limit as usize {
                    self.problems.push(format!(
                        "{name} as {kind}: {count} volumes of {driver}, {limit} fit"
                    ));
                }
            }
        }
        for pod in &pods {
            if !self.volumes.reachable(pod, &said.labels) {
                self.problems
                    .push(format!("{} on {name}: its volumes are elsewhere", named(pod)));
            }
        }
        Some(NodeLoad {
            host: name,
            labels: said.labels.clone(),
            taints: taints.clone(),
            pods,
            before: 0,
            going: false,
        })
    }

    fn said(&mut self, claim: &NewClaim, pool: &'a NodePool) -> Option<Rc<Said<'a>>> {
        let text = format!(
            "{} {:?} {:?}",
            claim.node_pool, claim.requirements, claim.instance_types
        );
        if let Some(known) = self.said.get(&text) {
            return Some(known.clone());
        }
        let mut said = Said {
            types: Vec::new(),
            labels: Rc::default(),
        };
        let mut merged = Labels::new();
        for type_name in &claim.instance_types {
            let kinds = self.snapshot.instance_types.get(&claim.node_pool)?;
            let Some(kind) = kinds.iter().find(|kind| kind.name == *type_name) else {
                self.problems.push(format!("there is no type {type_name}"));
                continue;
            };
            let labels = labels_of(claim, kind);
            for (key, values) in &labels {
                merged
                    .entry(key.clone())
                    .or_default()
                    .extend(values.iter().cloned());
            }
            let mut daemons = ResourceList::new();
            for daemon in &self.snapshot.daemon_sets {
                let template = &daemon.spec.template;
                let taints = &pool.spec.template.spec.taints;
                let ignored =
                    self.snapshot.options.ignore_dynamic_resources && template.has_dynamic_resources();
                if !ignored && tolerated(taints, &template.spec.tolerations) && selected(template, &labels) {
                    add(&mut daemons, &total([self.live(daemon).unwrap_or(template)]));
                }
            }
            said.types.push(Becomes {
                kind,
                holds: holds(claim, kind),
                labels,
                daemons,
            });
        }
        said.labels = Rc::new(merged);
        let said = Rc::new(said);
        self.said.insert(text, said.clone());
        Some(said)
    }

    /// A pod of the set that runs: admission may have changed what its pods ask for.
    fn live(&self, daemon: &DaemonSet) -> Option<&'a Pod> {
        let owned = |pod: &&&Pod| {
            let mut owners = pod.metadata.owner_references.iter();
            pod.metadata.namespace == daemon.metadata.namespace
                && owners.any(|own| own.kind == "DaemonSet" && own.name == daemon.metadata.name)
        };
        self.snapshot
            .bound_pods
            .iter()
            .filter(|pod| owned(&pod))
            .max_by_key(|pod| pod.metadata.creation_timestamp.clone())
    }

    fn check_volumes(&mut self, place: &NodeLoad<'a>, name: &str, limits: &BTreeMap<String, u32>) {
        if place.new_pods().is_empty() {
            return;
        }
        // Only a driver whose volumes came with new pods can have been given too many.
        let new = self.volumes.of(place.new_pods());
        for (driver, attached) in self.volumes.of(&place.pods) {
            let Some(limit) = limits.get(&driver).filter(|_| new.contains_key(&driver)) else {
                continue;
            };
            if attached.len() > *limit as usize {
                self.problems.push(format!(
                    "{name}: {} volumes of {driver}, {limit} fit",
                    attached.len()
                ));
            }
        }
    }

    fn check_ports(&mut self, pods: &[&Pod], place: &str) {
        let mut taken: Vec<(&str, i32, &str)> = Vec::new();
        for pod in pods {
            for port in pod.spec.containers.iter().flat_map(|container| &container.ports) {
                if port.host_port == 0 {
                    continue;
                }
                let any = |address: &str| matches!(address, "" | "0.0.0.0" | "::");
                let protocol = if port.protocol.is_empty() {
                    "TCP"
                } else {
                    &port.protocol
                };
                let clash = taken.iter().any(|(address, number, own)| {
                    *number == port.host_port
                        && *own == protocol
                        && (*address == port.host_ip || any(address) || any(&port.host_ip))
                });
                if clash {
                    self.problems
                        .push(format!("{place}: host port {} is taken twice", port.host_port));
                }
                taken.push((&port.host_ip, port.host_port, protocol));
            }
        }
    }
}

/// Taints that go away by themselves once a node is up.
fn is_ephemeral(taint: &Taint) -> bool {
    matches!(
        (taint.key.as_str(), taint.effect.as_str()),
        ("node.kubernetes.io/not-ready", "NoSchedule" | "NoExecute")
            | (
                "node.kubernetes.io/unreachable" | "node.cloudprovider.kubernetes.io/uninitialized",
                "NoSchedule"
            )
            | ("karpenter.sh/unregistered", "NoExecute")
    ) || taint.key.starts_with("readiness.k8s.io/")
}

fn exact(labels: &slipway_packing::model::StringMap) -> Labels {
    labels
        .iter()
        .map(|(key, value)| (key.clone(), BTreeSet::from([value.clone()])))
        .collect()
}

/// What a type holds as each of the available offerings the claim's requirements leave.
fn holds(claim: &NewClaim, kind: &InstanceType) -> Vec<ResourceList> {
    let mut held: Vec<ResourceList> = Vec::new();
    for offering in &kind.offerings {
        let allowed = offering.requirements.iter().all(|own| {
            claim
                .requirements
                .iter()
                .filter(|required| required.key == own.key)
                .all(|required| own.values.iter().any(|value| allows(required, Some(value))))
        });
        if !offering.available || !allowed {
            continue;
        }
        let mut allocatable = kind.capacity.clone();
        allocatable.extend(offering.capacity_override.clone());
        let mut overhead = kind.overhead.total();
        overhead.extend(offering.overhead_override.iter().flat_map(Overhead::total));
        for (resource, kept) in overhead {
            *allocatable.entry(resource).or_default() -= kept;
        }
        if !held.contains(&allocatable) {
            held.push(allocatable);
        }
    }
    held
}

/// A label on which a node of the pool could be what the pool's template does not allow, or nothing at all.
fn outside<'p>(pool: &'p NodePool, labels: &'p Labels) -> Option<&'p str> {
    let template = &pool.spec.template;
    let by_label = template.metadata.labels.iter().find(|(key, value)| {
        labels
            .get(normal(key))
            .is_some_and(|values| values.iter().any(|own| own != *value))
    });
    let by_requirement = template.spec.requirements.iter().find(|required| {
        labels
            .get(normal(&required.key))
            .is_some_and(|values| !values.iter().all(|value| allows(required, Some(value))))
    });
    let nothing = labels.iter().find(|(_, values)| values.is_empty());
    by_label
        .map(|(key, _)| key.as_str())
        .or_else(|| by_requirement.map(|required| required.key.as_str()))
        .or_else(|| nothing.map(|(key, _)| key.as_str()))
}

/// Labels of which the claim's types offer fewer values than it says they have to.
fn too_few<'c>(claim: &'c NewClaim, said: &Said<'_>) -> Vec<(&'c str, u32, usize)> {
    let required = claim
        .requirements
        .iter()
        .filter_map(|own| Some((own, own.min_values?)));
    required
        .map(|(own, least)| {
            let values: BTreeSet<&String> = said
                .types
                .iter()
                .filter_map(|kind| kind.labels.get(&own.key))
                .flatten()
                .collect();
            (own.key.as_str(), least, values.len())
        })
        .filter(|(_, least, there)| there < &(*least as usize))
        .collect()
}

/// The labels a node of this type could have under the claim's requirements.
fn labels_of(claim: &NewClaim, kind: &InstanceType) -> Labels {
    let mut labels = Labels::new();
    for own in kind
        .requirements
        .iter()
        .filter(|own| own.operator == Operator::In)
    {
        labels.insert(own.key.clone(), own.values.iter().cloned().collect());
    }
    for required in &claim.requirements {
        match labels.get_mut(&required.key) {
            Some(values) => values.retain(|value| allows(required, Some(value))),
            None if required.operator == Operator::In => {
                labels.insert(required.key.clone(), required.values.iter().cloned().collect());
            }
            // A label of which only some values are excluded is given another one.
            None if matches!(required.operator, Operator::NotIn | Operator::Exists) => {
                labels.insert(required.key.clone(), BTreeSet::from(["given".to_owned()]));
            }
            None => {}
        }
    }
    labels
}
