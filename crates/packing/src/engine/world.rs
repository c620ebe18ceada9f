//! The snapshot made ready for scheduling: built once, then run over as often as needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use super::catalog::{DaemonGroup, Pool, Reservations};
use super::domains::Domains;
use super::equivalence_class::{AnswerKey, ClassId, ClassKey, EquivalenceClass, GroupId, PoolAnswer};
use super::group::{Group, GroupSpec, NodeFilter};
use super::intern::{Interner, Key, ReqVec, find};
use super::nodes::{self, ExistingNode, StateNode};
use crate::bits::BitSet;
use crate::host_ports;
use crate::labels;
use crate::model::{MinValuesPolicy, NodePool, Options, Pod, ResourceList, Snapshot, Taint};
use crate::requirements::{Requirements, Undefined};
use crate::resources::{self, ResourceTable};
use crate::storage::Storage;
use crate::taints;

/// A pod that runs somewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound<'a> {
    pub pod: &'a Pod,
    /// Among all nodes: targets first.
    pub node: usize,
}

pub(crate) struct World<'a> {
    pub snapshot: &'a Snapshot,
    pub options: Options,
    pub interner: Interner,
    pub resources: ResourceTable,
    pub pools: Vec<Pool>,
    pub reservations: Reservations,
    /// Nodes that take pods, in the order they are tried.
    pub nodes: Vec<ExistingNode<'a>>,
    /// Labels and taints of every node, targets first: for counting pods that run on nodes which are going away.
    pub all_nodes: Vec<(StateNode<'a>, ReqVec, Vec<Taint>)>,
    /// Host index by node: nodes that share a hostname share it.
    pub host_of: Vec<usize>,
    pub hosts_shared: bool,
    /// Claims come after the nodes, at a word's boundary.
    pub first_claim_host: usize,
    pub groups: Vec<Group>,
    pub domains: AHashMap<Key, Domains>,
    pub classes: Vec<EquivalenceClass<'a>>,
    pub bound: Vec<Bound<'a>>,
    pub storage: Storage<'a>,
    pub tolerate_preferences: bool,
    /// Nodes that have been busy lately take only pods that wait.
    pub spare_busy_nodes: bool,
    pub(super) pool_answers: AHashMap<AnswerKey, Arc<PoolAnswer>>,
    pub(super) group_ids: AHashMap<(bool, GroupSpec), GroupId>,
    pub(super) shape_ids: AHashMap<ClassKey<'a>, ClassId>,
    pub(super) selector_keys: AHashSet<&'a str>,
    pub(super) bound_by_label: AHashMap<(&'a str, &'a str), Vec<u32>>,
}

impl<'a> World<'a> {
    /// `moving` are uids of bound pods that are placed again: they count nowhere.
    pub fn build(snapshot: &'a Snapshot, moving: &AHashSet<&str>) -> Self {
        let options = snapshot.options.clone();
        let mut interner = Interner::new(&options.well_known_labels);
        let mut resources = ResourceTable::default();
        // The two that decide the queue's order come first.
        resources.index(resources::CPU);
        resources.index(resources::MEMORY);
        let mut reservations = Reservations::default();
        let storage = Storage::new(snapshot);

        let mut pools: Vec<&NodePool> = snapshot
            .node_pools
            .iter()
            .filter(|pool| is_usable(pool))
            .collect();
        pools.sort_by(|left, right| {
            let weight = |pool: &NodePool| pool.spec.weight.unwrap_or(0);
            weight(right)
                .cmp(&weight(left))
                .then_with(|| right.metadata.name.cmp(&left.metadata.name))
        });
        let tolerate_preferences = pools
            .iter()
            .flat_map(|pool| &pool.spec.template.spec.taints)
            .any(|taint| taint.effect == taints::PREFER_NO_SCHEDULE);
        let daemons = daemon_pods(snapshot);
        let daemons: Vec<&Pod> = daemons
            .iter()
            .filter(|pod| !(options.ignore_dynamic_resources && pod.has_dynamic_resources()))
            .collect();
        let mut built: Vec<Pool> = pools
            .iter()
            .map(|pool| {
                let types = snapshot
                    .instance_types
                    .get(&pool.metadata.name)
                    .map_or(&[][..], Vec::as_slice);
                Pool::build(
                    pool,
                    types,
                    &options,
                    &mut interner,
                    &mut resources,
                    &mut reservations,
                )
            })
            .collect();
        for pool in &mut built {
            pool.daemon_groups = daemon_groups(pool, &daemons, &mut interner, &mut resources, &options);
        }

        let mut world = World {
            snapshot,
            interner,
            resources,
            pools: built,
            reservations,
            nodes: Vec::new(),
            all_nodes: Vec::new(),
            host_of: Vec::new(),
            hosts_shared: false,
            first_claim_host: 0,
            groups: Vec::new(),
            domains: AHashMap::new(),
            classes: Vec::new(),
            bound: Vec::new(),
            storage,
            tolerate_preferences,
            spare_busy_nodes: false,
            pool_answers: AHashMap::new(),
            group_ids: AHashMap::new(),
            shape_ids: AHashMap::new(),
            selector_keys: AHashSet::new(),
            bound_by_label: AHashMap::new(),
            options,
        };
        world.add_nodes(moving, &daemons);
        world
    }

    fn add_nodes(&mut self, moving: &AHashSet<&str>, daemons: &[&Pod]) {
        let snapshot = self.snapshot;
        let mut states = nodes::join(snapshot);
        // Initialized nodes first, then by name; nodes that are going away are only counted on.
        states.sort_by(|left, right| {
            (left.deleting(), !left.initialized(), left.name()).cmp(&(
                right.deleting(),
                !right.initialized(),
                right.name(),
            ))
        });
        let by_node_name: AHashMap<&str, usize> = states
            .iter()
            .enumerate()
            .filter_map(|(index, state)| Some((state.node?.metadata.name.as_str(), index)))
            .collect();
        let mut pods_of: Vec<Vec<(usize, &'a Pod)>> = vec![Vec::new(); states.len()];
        for pod in &snapshot.bound_pods {
            if pod.is_terminal() {
                continue;
            }
            let Some(node) = by_node_name.get(pod.spec.node_name.as_str()) else {
                continue;
            };
            if moving.contains(pod.metadata.uid.as_str()) {
                continue;
            }
            pods_of[*node].push((self.bound.len(), pod));
            self.bound.push(Bound { pod, node: *node });
        }
        let csi_limits: AHashMap<&str, &crate::model::CsiNode> = snapshot
            .csi_nodes
            .iter()
            .map(|node| (node.metadata.name.as_str(), node))
            .collect();
        let pool_by_name: AHashMap<&str, &NodePool> = snapshot
            .node_pools
            .iter()
            .map(|pool| (pool.metadata.name.as_str(), pool))
            .collect();
        let mut hosts: AHashMap<String, usize> = AHashMap::new();
        for (index, state) in states.iter().enumerate() {
            let pool_name = state.labels().get(labels::NODE_POOL);
            let published = state
                .node
                .and_then(|node| csi_limits.get(node.metadata.name.as_str()));
            let kind = pool_name
                .and_then(|name| snapshot.instance_types.get(name))
                .zip(state.labels().get(labels::INSTANCE_TYPE))
                .and_then(|(kinds, name)| kinds.iter().find(|kind| kind.name == *name));
            let mut limits: BTreeMap<String, u32> =
                kind.map_or_else(BTreeMap::new, |kind| kind.volume_attachment_limits.clone());
            for driver in published.iter().flat_map(|node| &node.spec.drivers) {
                match driver
                    .allocatable
                    .as_ref()
                    .and_then(|allocatable| allocatable.count)
                {
                    Some(count) => limits.insert(driver.name.clone(), count),
                    None => limits.remove(&driver.name),
                };
            }
            let mut node = ExistingNode::build(
                *state,
                &mut self.interner,
                &mut self.resources,
                &pods_of[index],
                daemons,
                &self.storage,
                limits,
            );
            let host = *hosts.entry(node.hostname.clone()).or_insert(index);
            self.hosts_shared |= host != index;
            self.host_of.push(host);
            self.all_nodes
                .push((*state, node.labels.clone(), node.taints.clone()));
            if state.deleting() {
                continue;
            }
            node.pool = pool_name.and_then(|name| self.pools.iter().position(|pool| pool.name == *name));
            let after = pool_name
                .and_then(|name| pool_by_name.get(name.as_str()))
                .and_then(|pool| pool.spec.disruption.consolidate_after.as_deref());
            node.note_activity(after, self.options.now.as_deref());
            if let Some(pool) = node.pool {
                self.charge_limits(pool, &state.capacity(), 1);
            }
            self.nodes.push(node);
        }
        self.first_claim_host = states.len().next_multiple_of(64);
    }

    /// Takes a node's capacity off its pool's limits, or gives it back.
    pub fn charge_limits(&mut self, pool: usize, capacity: &ResourceList, sign: i128) {
        let mut capacity = capacity.clone();
        capacity.insert(resources::NODES.to_owned(), resources::ONE);
        let amounts = self.resources.amounts(&capacity);
        if let Some(limits) = &mut self.pools[pool].limits {
            for (resource, left) in limits {
                *left -= sign * resources::amount(&amounts, *resource);
            }
        }
    }

    /// Builds the indexes that need every resource name to be known.
    pub fn finish_pools(&mut self) {
        let best_effort = self.options.min_values_policy == MinValuesPolicy::BestEffort;
        for pool in &mut self.pools {
            pool.finish(&mut self.interner, &self.resources, best_effort);
        }
    }

    /// The domains of a key, worked out when the first group asks for them.
    pub fn domains(&mut self, key: Key) -> &mut Domains {
        if !self.domains.contains_key(&key) {
            let built = self.build_domains(key);
            self.domains.insert(key, built);
        }
        self.domains.get_mut(&key).expect("just inserted")
    }

    fn build_domains(&mut self, key: Key) -> Domains {
        let mut offered: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
        for (pool_index, pool) in self.pools.iter().enumerate() {
            let own = find(&pool.requirements, key);
            let mut requirements: BTreeSet<_> = pool
                .types
                .iter()
                .filter_map(|kind| match (own, find(&kind.requirements, key)) {
                    (Some(own), Some(theirs)) => Some(self.interner.intersection(own, theirs)),
                    (one, other) => one.or(other),
                })
                .collect();
            requirements.extend(own);
            for requirement in requirements {
                let requirement = self.interner.get(requirement);
                if !requirement.is_complement() {
                    for value in requirement.values() {
                        offered.entry(value.clone()).or_default().insert(pool_index);
                    }
                }
            }
        }
        let label_of = |interner: &Interner, labels: &ReqVec| {
            find(labels, key).and_then(|requirement| interner.get(requirement).values().first().cloned())
        };
        let of_node: Vec<Option<String>> = self
            .all_nodes
            .iter()
            .map(|(_, labels, _)| label_of(&self.interner, labels))
            .collect();
        let names: BTreeSet<String> = offered
            .keys()
            .cloned()
            .chain(of_node.iter().flatten().cloned())
            .collect();
        let mut domains = Domains::build(key, names.into_iter().collect(), &mut self.interner);
        for (name, pools) in offered {
            let index = domains.index(&name).expect("named above");
            domains.pools[index] = pools.into_iter().collect();
        }
        domains.of_node = of_node
            .iter()
            .map(|name| name.as_ref().and_then(|name| domains.index(name)))
            .collect();
        for node in 0..self.nodes.len() {
            if let Some(domain) = domains.of_node[node] {
                domains.nodes_in[domain].insert(node);
            }
        }
        domains
    }

    /// Whether a place with these labels and taints takes part in a spread constraint.
    pub fn filter_matches(
        interner: &mut Interner,
        filter: &NodeFilter,
        labels: &ReqVec,
        taints: &[Taint],
    ) -> bool {
        if filter.honor_affinity
            && !filter.alternatives.is_empty()
            && !filter
                .alternatives
                .iter()
                .any(|required| interner.compatible(labels, required, false))
        {
            return false;
        }
        !filter.honor_taints || taints::untolerated(taints, &filter.tolerations).is_none()
    }
}

fn is_usable(pool: &NodePool) -> bool {
    pool.spec.replicas.is_none()
        && pool.metadata.deletion_timestamp.is_none()
        && !pool
            .status
            .conditions
            .iter()
            .any(|condition| condition.kind == "Ready" && condition.status != "True")
}

/// One pod for every DaemonSet: a live one where there is one, because admission may have changed its requests.
fn daemon_pods(snapshot: &Snapshot) -> Vec<Pod> {
    snapshot
        .daemon_sets
        .iter()
        .map(|set| {
            let belongs = |pod: &&Pod| {
                pod.metadata.namespace == set.metadata.namespace
                    && pod
                        .metadata
                        .owner_references
                        .iter()
                        .any(|owner| owner.kind == "DaemonSet" && owner.name == set.metadata.name)
            };
            let live = snapshot.bound_pods.iter().filter(belongs).max_by(|left, right| {
                left.metadata
                    .creation_timestamp
                    .cmp(&right.metadata.creation_timestamp)
            });
            let mut pod = live.cloned().unwrap_or_else(|| set.spec.template.clone());
            pod.metadata.name.clone_from(&set.metadata.name);
            pod.metadata.namespace.clone_from(&set.metadata.namespace);
            // The DaemonSet controller pins its pods to their node; the template says where they may go.
            let template = set
                .spec
                .template
                .spec
                .affinity
                .as_ref()
                .and_then(|affinity| affinity.node_affinity.as_ref());
            if let Some(required) = template.and_then(|node| node.required.as_ref()) {
                let affinity = pod.spec.affinity.get_or_insert_default();
                affinity.node_affinity.get_or_insert_default().required = Some(required.clone());
            } else if live.is_some()
                && let Some(node) = pod
                    .spec
                    .affinity
                    .as_mut()
                    .and_then(|affinity| affinity.node_affinity.as_mut())
            {
                node.required = None;
            }
            pod
        })
        .collect()
}

/// Groups a pool's types by the daemons they would run.
fn daemon_groups(
    pool: &Pool,
    daemons: &[&Pod],
    interner: &mut Interner,
    resources: &mut ResourceTable,
    options: &Options,
) -> Vec<DaemonGroup> {
    let template = interner.to_requirements(&pool.requirements);
    let tolerated: Vec<&Pod> = daemons
        .iter()
        .copied()
        .filter(|daemon| {
            let mut tolerations = daemon.spec.tolerations.clone();
            tolerations.push(taints::prefer_no_schedule_toleration());
            taints::untolerated(&pool.taints, &tolerations).is_none()
        })
        .collect();
    // By daemon, the alternatives of its node affinity that the pool allows.
    let alternatives: Vec<Vec<Requirements>> = tolerated
        .iter()
        .map(|daemon| {
            node_alternatives(daemon)
                .into_iter()
                .filter(|required| {
                    template
                        .compatible(required, Undefined::WellKnown(&options.well_known_labels))
                        .is_ok()
                })
                .collect()
        })
        .collect();
    let mut groups: BTreeMap<Vec<usize>, BitSet> = BTreeMap::new();
    let runs: Vec<Vec<usize>> = pool
        .types
        .iter()
        .map(|kind| {
            let own = interner.to_requirements(&kind.requirements);
            let fits = |required: &Requirements| own.intersects(required).is_ok();
            (0..tolerated.len())
                .filter(|index| alternatives[*index].iter().any(fits))
                .collect()
        })
        .collect();
    for (index, slot) in pool.slots.iter().enumerate() {
        groups
            .entry(runs[slot.type_index].clone())
            .or_default()
            .insert(index);
    }
    groups
        .into_iter()
        .map(|(running, slots)| {
            let lists: Vec<ResourceList> = running
                .iter()
                .map(|index| {
                    let mut list = resources::pod_requests(tolerated[*index]);
                    list.insert(resources::PODS.to_owned(), resources::ONE);
                    list
                })
                .collect();
            let overhead_list = resources::sum(&lists);
            DaemonGroup {
                slots,
                overhead: resources.amounts(&overhead_list),
                overhead_list,
                host_ports: running
                    .iter()
                    .flat_map(|index| host_ports::of_pod(tolerated[*index]))
                    .collect(),
            }
        })
        .collect()
}

/// What a daemon may require of its node: one set for every alternative of its node affinity.
fn node_alternatives(pod: &Pod) -> Vec<Requirements> {
    let selector = Requirements::from_labels(&pod.spec.node_selector);
    let terms = pod
        .spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| node.required.as_ref())
        .map_or(&[][..], |required| required.node_selector_terms.as_slice());
    if terms.is_empty() {
        return vec![selector];
    }
    terms
        .iter()
        .map(|term| {
            let mut requirements = selector.clone();
            requirements.add_all(&Requirements::from_specs(&term.match_expressions));
            requirements
        })
        .collect()
}
