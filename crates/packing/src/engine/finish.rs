//! From a finished run to a plan: types in order of price, requests with the daemons', requirements as manifests.

use std::sync::Arc;

use ahash::AHashMap;

use super::catalog::Offer;
use super::intern::ReqVec;
use super::run::{Item, Run};
use super::world::World;
use crate::bits::BitSet;
use crate::labels;
use crate::model::{MinValuesPolicy, Names, NewClaim, NodeAssignment, ResourceList};
use crate::requirement::{Requirement, RequirementSpec};
use crate::resources;

/// Labels that only stood in for a node that has joined.
const SIMULATED: [&str; 2] = [labels::REGISTERED, labels::INITIALIZED];

/// What claims with the same requirements and types left have in common.
struct Listed {
    names: Names,
    types: Arc<Vec<usize>>,
    requirements: Vec<RequirementSpec>,
    problem: Option<String>,
    cheapest: Option<Offer>,
}

type Known = AHashMap<(usize, ReqVec, BitSet), Listed>;

/// A claim ready to be written out, or why it cannot be.
pub(crate) struct Finished {
    pub claim: NewClaim,
    pub items: Vec<Item>,
    pub pool: usize,
    pub requirements: ReqVec,
    /// By price.
    pub types: Arc<Vec<usize>>,
    pub problem: Option<String>,
}

impl Run<'_, '_> {
    pub fn finish_claims(&mut self, name_of: &dyn Fn(Item) -> String) -> Vec<Finished> {
        let mut known = Known::new();
        (0..self.claims.len())
            .map(|claim| self.finish_claim(claim, name_of, &mut known))
            .collect()
    }

    /// What is left of a pool's types, in order of price.
    fn listed(&mut self, pool: usize, requirements: &ReqVec, slots: &BitSet, reserved: bool) -> Listed {
        let world = &mut *self.world;
        let pool = &world.pools[pool];
        let mut types = pool.by_price(&mut world.interner, requirements, slots);
        types.truncate(world.options.max_instance_types);
        let unmet = pool.unmet_min_values_of(&world.interner, requirements, &types);
        let problem =
            (!unmet.is_empty() && world.options.min_values_policy == MinValuesPolicy::Strict).then(|| {
                let keys: Vec<&str> = unmet
                    .iter()
                    .map(|(key, _)| world.interner.key_name(*key))
                    .collect();
                format!(
                    "NodePool {} cannot meet minValues for {} with {} instance types",
                    pool.name,
                    keys.join(", "),
                    types.len()
                )
            });
        if reserved {
            // A type without a place in one of the reservations could not be launched; it is listed only where `minValues`
            // counts it.
            let mut launchable = types.clone();
            launchable.retain(|index| pool.cheapest(&mut world.interner, requirements, *index).is_some());
            if pool
                .unmet_min_values_of(&world.interner, requirements, &launchable)
                .is_empty()
            {
                types = launchable;
            }
        }
        let cheapest = types
            .first()
            .and_then(|index| pool.cheapest(&mut world.interner, requirements, *index))
            .cloned();
        Listed {
            names: types
                .iter()
                .map(|index| pool.types[*index].name.clone())
                .collect(),
            requirements: world.interner.to_requirements(requirements).to_specs(),
            types: Arc::new(types),
            problem,
            cheapest,
        }
    }

    fn finish_claim(
        &mut self,
        claim: usize,
        name_of: &dyn Fn(Item) -> String,
        known: &mut Known,
    ) -> Finished {
        let data = self.claims[claim].clone();
        let world = &mut *self.world;
        let mut requirements = data.requirements.clone();
        let simulated = SIMULATED.map(|label| world.interner.key(label));
        requirements.retain(|(key, _)| !simulated.contains(key));
        if !data.reserved.is_empty() {
            // Into these reservations and nowhere else, so that two claims do not race for one slot.
            let capacity_type = world.interner.key(labels::CAPACITY_TYPE);
            let reserved = world.interner.requirement(Requirement::one_of(
                labels::CAPACITY_TYPE,
                [labels::CAPACITY_RESERVED],
            ));
            requirements.retain(|(key, _)| *key != capacity_type);
            world.interner.narrow(&mut requirements, capacity_type, reserved);
            let label = world.options.reservation_label.clone();
            let names = data
                .reserved
                .iter()
                .map(|index| world.reservations.names[*index].as_str());
            let ids = Requirement::one_of(&label, names);
            let key = world.interner.key(&label);
            let ids = world.interner.requirement(ids);
            world.interner.narrow(&mut requirements, key, ids);
        }
        let mut requests = ResourceList::new();
        for (index, nanos) in data.requests.iter().enumerate() {
            let name = world.resources.name(index);
            if *nanos != 0 {
                requests.insert(name.to_owned(), quantity_like(world, &data.items, name, *nanos));
            }
        }
        let requests = resources::sum([&requests, &self.least_daemons(claim)]);
        let question = (data.pool, requirements, data.slots);
        if !known.contains_key(&question) {
            let listed = self.listed(question.0, &question.1, &question.2, !data.reserved.is_empty());
            known.insert(question.clone(), listed);
        }
        let listed = &known[&question];
        let world = &*self.world;
        let cheapest = listed.cheapest.as_ref();
        let claim = NewClaim {
            node_pool: world.pools[data.pool].name.clone(),
            requirements: listed.requirements.clone(),
            instance_types: listed.names.clone(),
            requests,
            pods: data.items.iter().map(|item| name_of(*item)).collect(),
            cheapest_price: cheapest.map_or(0.0, |offer| offer.price),
            cheapest_zone: cheapest.and_then(|offer| offer.zone.clone()).unwrap_or_default(),
            cheapest_capacity_type: cheapest
                .and_then(|offer| offer.capacity_type.clone())
                .unwrap_or_default(),
            min_values_relaxed: data.min_values_relaxed,
        };
        Finished {
            claim,
            items: data.items,
            pool: data.pool,
            types: listed.types.clone(),
            problem: listed.problem.clone(),
            requirements: question.1,
        }
    }

    /// What the daemons ask for on every type that is left.
    fn least_daemons(&self, claim: usize) -> ResourceList {
        let data = &self.claims[claim];
        let pool = &self.world.pools[data.pool];
        let mut least: Option<ResourceList> = None;
        for group in &pool.daemon_groups {
            let mut left = group.slots.clone();
            left.intersect_with(&data.slots);
            if left.is_empty() {
                continue;
            }
            least = Some(match least {
                None => group.overhead_list.clone(),
                Some(least) => least
                    .into_iter()
                    .filter_map(|(name, quantity)| {
                        let other = group.overhead_list.get(&name)?;
                        Some((name, quantity.min(*other)))
                    })
                    .collect(),
            });
        }
        least.unwrap_or_default()
    }
}

impl World<'_> {
    /// Nodes with the pods put on them.
    pub fn assignments(
        &self,
        on_nodes: &[(usize, Item)],
        name_of: &dyn Fn(Item) -> String,
    ) -> Vec<NodeAssignment> {
        let mut by_node: std::collections::BTreeMap<usize, Vec<String>> = std::collections::BTreeMap::new();
        for (node, item) in on_nodes {
            by_node.entry(*node).or_default().push(name_of(*item));
        }
        by_node
            .into_iter()
            .map(|(node, pods)| NodeAssignment {
                node: self.nodes[node].name.to_owned(),
                initialized: self.nodes[node].initialized,
                pods,
            })
            .collect()
    }
}

/// Sums are printed in the form the pods used.
fn quantity_like(world: &World<'_>, items: &[Item], name: &str, nanos: i128) -> crate::quantity::Quantity {
    let example = items.iter().find_map(|item| {
        world.classes[item.class]
            .request_list()
            .get(name)
            .copied()
            .filter(|quantity| !quantity.is_zero())
    });
    match example {
        // Adding to an amount keeps its form.
        Some(example) => example + crate::quantity::Quantity::from_nanos(nanos - example.nanos()),
        None => crate::quantity::Quantity::from_nanos(nanos),
    }
}
