//! NodePools and their instance types, indexed so that "which types are left" is a few ANDs over bit sets.

use ahash::AHashMap;
use smallvec::SmallVec;

use super::fits::FitIndex;
use super::intern::{Interner, Key, ReqId, ReqVec, find};
use crate::bits::BitSet;
use crate::host_ports::HostPort;
use crate::labels;
use crate::model::{InstanceType, NodePool, Options, ResourceList, Taint};
use crate::requirement::Requirement;
use crate::requirements::Requirements;
use crate::resources::{Amounts, ResourceTable, amount};
use crate::static_pools;

/// One instance type with one set of amounts. A type whose offerings override its capacity has several.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub type_index: usize,
    pub allocatable: Amounts,
    pub offerings: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub requirements: ReqVec,
    pub price: f64,
    pub available: bool,
    pub reserved: bool,
    pub spot: bool,
    pub on_demand: bool,
    pub reservation: Option<usize>,
    pub reservation_capacity: u32,
    pub zone: Option<String>,
    pub capacity_type: Option<String>,
}

impl Offer {
    /// Whether a node could be launched into it now: a full reservation is healthy but takes nothing.
    pub fn launchable(&self) -> bool {
        self.available && (!self.reserved || self.reservation_capacity > 0)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Type {
    pub name: String,
    /// Where it stands in the catalogue.
    place: usize,
    pub requirements: ReqVec,
    pub capacity: Amounts,
    pub offers: Vec<Offer>,
    pub volume_limits: std::collections::BTreeMap<String, u32>,
}

/// Types that run the same daemons.
#[derive(Clone, Debug)]
pub(crate) struct DaemonGroup {
    pub slots: BitSet,
    pub overhead: Amounts,
    pub overhead_list: ResourceList,
    pub host_ports: Vec<HostPort>,
}

type OfferKey = SmallVec<[Option<ReqId>; 4]>;

#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub name: String,
    pub weight: i32,
    pub taints: Vec<Taint>,
    pub requirements: ReqVec,
    /// The cheapest first.
    pub types: Vec<Type>,
    pub slots: Vec<Slot>,
    /// What each slot costs at least.
    prices: Vec<f64>,
    /// Slots the pool's own requirements leave.
    pub usable: BitSet,
    pub daemon_groups: Vec<DaemonGroup>,
    pub has_min_values: bool,
    pub has_reserved: bool,
    pub has_volume_limits: bool,
    /// What is left of the pool's limits, by resource.
    pub limits: Option<Vec<(usize, i128)>>,
    /// Why no type is usable.
    pub min_values_unmet: bool,
    fits: Vec<FitIndex>,
    offer_keys: Vec<Key>,
    offer_masks: AHashMap<OfferKey, BitSet>,
    type_masks: AHashMap<ReqId, BitSet>,
}

impl Pool {
    pub fn build(
        pool: &NodePool,
        types: &[InstanceType],
        options: &Options,
        interner: &mut Interner,
        resources: &mut ResourceTable,
        reservations: &mut Reservations,
    ) -> Self {
        let template = &pool.spec.template;
        let mut requirements = static_pools::template(pool);
        // Nodes get these two when they join: daemons may select on them.
        requirements.add(Requirement::one_of(labels::REGISTERED, ["true"]));
        requirements.add(Requirement::one_of(labels::INITIALIZED, ["true"]));
        let requirements = interner.intern(&requirements);

        let mut built = Pool {
            name: pool.metadata.name.clone(),
            weight: pool.spec.weight.unwrap_or(0),
            taints: template.spec.taints.clone(),
            has_min_values: requirements
                .iter()
                .any(|(_, id)| interner.get(*id).min_values.is_some()),
            requirements,
            types: Vec::new(),
            slots: Vec::new(),
            prices: Vec::new(),
            usable: BitSet::default(),
            daemon_groups: Vec::new(),
            has_reserved: false,
            has_volume_limits: types.iter().any(|kind| !kind.volume_attachment_limits.is_empty()),
            limits: None,
            min_values_unmet: false,
            fits: Vec::new(),
            offer_keys: Vec::new(),
            offer_masks: AHashMap::new(),
            type_masks: AHashMap::new(),
        };
        if !pool.spec.limits.is_empty() {
            let limit = |(name, quantity): (&String, &crate::quantity::Quantity)| {
                (resources.index(name), quantity.nanos())
            };
            built.limits = Some(pool.spec.limits.iter().map(limit).collect());
        }
        let mut by_price: Vec<(usize, f64, &InstanceType)> = types
            .iter()
            .enumerate()
            .map(|(place, kind)| (place, least_price(kind), kind))
            .collect();
        by_price.sort_by(|left, right| left.1.total_cmp(&right.1).then(left.0.cmp(&right.0)));
        for (place, _, kind) in by_price {
            built.add_type(kind, place, options, interner, resources, reservations);
        }
        built.offer_keys.sort_unstable();
        built.offer_keys.dedup();
        built
    }

    fn add_type(
        &mut self,
        kind: &InstanceType,
        place: usize,
        options: &Options,
        interner: &mut Interner,
        resources: &mut ResourceTable,
        reservations: &mut Reservations,
    ) {
        let type_index = self.types.len();
        let mut offers = Vec::with_capacity(kind.offerings.len());
        // The first group has no override; the others are told apart by theirs.
        let mut groups: Vec<(ResourceList, Option<ResourceList>, Vec<usize>)> =
            vec![(ResourceList::new(), None, vec![])];
        for offering in &kind.offerings {
            let requirements = Requirements::from_specs(&offering.requirements);
            let single = |key: &str| requirements.get(key).and_then(Requirement::any_value);
            let capacity_type = single(labels::CAPACITY_TYPE);
            let reserved = capacity_type.as_deref() == Some(labels::CAPACITY_RESERVED);
            self.has_reserved |= reserved && options.reserved_capacity;
            let index = offers.len();
            let reservation = reserved.then(|| {
                reservations.add(
                    single(&options.reservation_label).unwrap_or_default(),
                    offering.reservation_capacity,
                )
            });
            if offering.available {
                let overhead = offering
                    .overhead_override
                    .as_ref()
                    .map(crate::model::Overhead::total);
                let required = |group: &&mut (ResourceList, Option<ResourceList>, Vec<usize>)| {
                    group.0 == offering.capacity_override && group.1 == overhead
                };
                match groups.iter_mut().find(required) {
                    Some(group) => group.2.push(index),
                    None => groups.push((offering.capacity_override.clone(), overhead, vec![index])),
                }
            }
            let interned = interner.intern(&requirements);
            self.offer_keys.extend(interned.iter().map(|(key, _)| *key));
            offers.push(Offer {
                requirements: interned,
                price: offering.price,
                available: offering.available,
                reserved,
                spot: capacity_type.as_deref() == Some(labels::CAPACITY_SPOT),
                on_demand: capacity_type.as_deref() == Some(labels::CAPACITY_ON_DEMAND),
                reservation,
                reservation_capacity: offering.reservation_capacity,
                zone: single(labels::ZONE),
                capacity_type,
            });
        }
        for (capacity_override, overhead_override, offerings) in groups {
            let allocatable = allocatable(kind, &capacity_override, overhead_override.as_ref());
            let prices = offerings
                .iter()
                .map(|index: &usize| &offers[*index])
                .filter(|offer: &&Offer| offer.launchable())
                .map(|offer| offer.price);
            self.prices.push(prices.fold(f64::MAX, f64::min));
            self.slots.push(Slot {
                type_index,
                allocatable: resources.amounts(&allocatable),
                offerings,
            });
        }
        self.types.push(Type {
            name: kind.name.clone(),
            place,
            requirements: interner.intern(&Requirements::from_specs(&kind.requirements)),
            capacity: resources.amounts(&kind.capacity),
            offers,
            volume_limits: kind.volume_attachment_limits.clone(),
        });
    }

    /// Works out the indexes once all resource names are known, and what the pool's own requirements leave.
    pub fn finish(&mut self, interner: &mut Interner, resources: &ResourceTable, best_effort: bool) {
        self.fits = (0..resources.len())
            .map(|resource| FitIndex::build(&self.slots, resource))
            .collect();
        // A type that reserves more than it has fits nothing.
        let positive = |slot: &Slot| slot.allocatable.iter().all(|amount| *amount >= 0);
        self.usable = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| positive(slot))
            .map(|(index, _)| index)
            .collect();
        for (_, requirement) in self.requirements.clone() {
            let mask = self.type_mask(interner, requirement).clone();
            self.usable.intersect_with(&mask);
        }
        let requirements = self.requirements.clone();
        let offered = self.offer_mask(interner, &requirements).clone();
        self.usable.intersect_with(&offered);
        if self.has_min_values
            && !best_effort
            && !self
                .unmet_min_values(interner, &requirements, &self.usable)
                .is_empty()
        {
            self.min_values_unmet = true;
            self.usable.clear();
        }
    }

    /// Types whose own requirement on the key agrees with this one.
    pub fn type_mask(&mut self, interner: &mut Interner, requirement: ReqId) -> &BitSet {
        if !self.type_masks.contains_key(&requirement) {
            let key = interner.key(&interner.get(requirement).key.clone());
            let mask = self
                .slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| {
                    find(&self.types[slot.type_index].requirements, key)
                        .is_none_or(|own| interner.agrees(own, requirement))
                })
                .map(|(index, _)| index)
                .collect();
            self.type_masks.insert(requirement, mask);
        }
        &self.type_masks[&requirement]
    }

    /// Slots with an available offering that the requirements leave.
    pub fn offer_mask(&mut self, interner: &mut Interner, requirements: &ReqVec) -> &BitSet {
        let question: OfferKey = self
            .offer_keys
            .iter()
            .map(|key| find(requirements, *key))
            .collect();
        if !self.offer_masks.contains_key(&question) {
            let mut mask = BitSet::default();
            for (index, slot) in self.slots.iter().enumerate() {
                let offers = &self.types[slot.type_index].offers;
                if slot
                    .offerings
                    .iter()
                    .any(|offer| interner.compatible(requirements, &offers[*offer].requirements, true))
                {
                    mask.insert(index);
                }
            }
            self.offer_masks.insert(question.clone(), mask);
        }
        &self.offer_masks[&question]
    }

    pub fn offer_key_changed(&self, before: &ReqVec, after: &ReqVec) -> bool {
        self.offer_keys
            .iter()
            .any(|key| find(before, *key) != find(after, *key))
    }

    /// Cuts `set` to slots that hold `requests` beside the daemons they run.
    pub fn cut_to_fit(
        &self,
        set: &mut BitSet,
        requests: &Amounts,
        wanted_ports: &[HostPort],
        held_ports: &[HostPort],
    ) {
        if !wanted_ports.is_empty() && crate::host_ports::conflict(wanted_ports, held_ports).is_some() {
            set.clear();
            return;
        }
        if let [group] = self.daemon_groups.as_slice() {
            if !wanted_ports.is_empty()
                && crate::host_ports::conflict(wanted_ports, &group.host_ports).is_some()
            {
                set.clear();
                return;
            }
            self.cut_group(set, requests, &group.overhead);
            return;
        }
        let mut result = BitSet::default();
        for group in &self.daemon_groups {
            if !wanted_ports.is_empty()
                && crate::host_ports::conflict(wanted_ports, &group.host_ports).is_some()
            {
                continue;
            }
            let mut own = set.clone();
            own.intersect_with(&group.slots);
            self.cut_group(&mut own, requests, &group.overhead);
            result.union_with(&own);
        }
        *set = result;
    }

    fn cut_group(&self, set: &mut BitSet, requests: &Amounts, overhead: &Amounts) {
        for (resource, index) in self.fits.iter().enumerate() {
            index.cut(set, amount(requests, resource) + amount(overhead, resource));
        }
    }

    /// Keys whose `minValues` the types left do not reach, with the number they do reach.
    pub fn unmet_min_values(
        &self,
        interner: &Interner,
        requirements: &ReqVec,
        slots: &BitSet,
    ) -> Vec<(Key, u32)> {
        let types: Vec<usize> = self.types_of(slots).collect();
        self.unmet_min_values_of(interner, requirements, &types)
    }

    pub fn unmet_min_values_of(
        &self,
        interner: &Interner,
        requirements: &ReqVec,
        types: &[usize],
    ) -> Vec<(Key, u32)> {
        let mut unmet = Vec::new();
        if types.is_empty() {
            return unmet;
        }
        for &(key, id) in requirements {
            let requirement = interner.get(id);
            let Some(least) = requirement.min_values else {
                continue;
            };
            let mut seen = std::collections::BTreeSet::new();
            for index in types {
                if let Some(own) = find(&self.types[*index].requirements, key) {
                    seen.extend(
                        interner
                            .get(own)
                            .values()
                            .iter()
                            .filter(|value| requirement.has(value)),
                    );
                }
                if seen.len() >= least as usize {
                    break;
                }
            }
            if seen.len() < least as usize {
                unmet.push((key, seen.len() as u32));
            }
        }
        unmet
    }

    /// How many of the first types are needed to reach every `minValues`.
    pub fn needed_for_min_values(
        &self,
        interner: &Interner,
        requirements: &ReqVec,
        types: &[usize],
    ) -> usize {
        (1..=types.len())
            .find(|count| {
                self.unmet_min_values_of(interner, requirements, &types[..*count])
                    .is_empty()
            })
            .unwrap_or(types.len())
    }

    /// Type indexes of a slot set, each once, ascending.
    pub fn types_of<'a>(&'a self, slots: &'a BitSet) -> impl Iterator<Item = usize> + 'a {
        let mut last = usize::MAX;
        slots
            .iter()
            .map(|slot| self.slots[slot].type_index)
            .filter(move |index| {
                let fresh = *index != last;
                last = *index;
                fresh
            })
    }

    /// The cheapest offering of a type that could be launched under these requirements.
    pub fn cheapest<'a>(
        &'a self,
        interner: &mut Interner,
        requirements: &ReqVec,
        type_index: usize,
    ) -> Option<&'a Offer> {
        let mut best: Option<&Offer> = None;
        for offer in &self.types[type_index].offers {
            if offer.launchable()
                && best.is_none_or(|best| offer.price < best.price)
                && interner.compatible(requirements, &offer.requirements, true)
            {
                best = Some(offer);
            }
        }
        best
    }

    /// What a claim of these types costs, as far as that can be told without looking at what else it requires: enough to
    /// tell which of several claims grows dearer.
    pub fn price_at_a_glance(&self, slots: &BitSet) -> f64 {
        slots.iter().next().map_or(0.0, |slot| self.prices[slot])
    }

    /// Types by the price of their cheapest launchable offering, in catalogue order where equal.
    pub fn by_price(&self, interner: &mut Interner, requirements: &ReqVec, slots: &BitSet) -> Vec<usize> {
        let mut priced: Vec<(f64, usize)> = Vec::new();
        for index in self.types_of(slots) {
            priced.push((
                self.cheapest(interner, requirements, index)
                    .map_or(f64::MAX, |offer| offer.price),
                index,
            ));
        }
        let place = |index: usize| self.types[index].place;
        priced.sort_by(|left, right| {
            left.0
                .total_cmp(&right.0)
                .then(place(left.1).cmp(&place(right.1)))
        });
        priced.into_iter().map(|(_, index)| index).collect()
    }

    /// Slots of types that could carry the volumes.
    pub fn cut_to_volumes(&self, set: &mut BitSet, volumes: &crate::storage::Volumes) {
        let carries = |kind: &Type| {
            volumes.iter().all(|(driver, names)| {
                kind.volume_limits
                    .get(driver)
                    .is_none_or(|limit| names.len() <= *limit as usize)
            })
        };
        let kept: BitSet = set
            .iter()
            .filter(|slot| carries(&self.types[self.slots[*slot].type_index]))
            .collect();
        *set = kept;
    }

    /// Slots of types that stay inside what is left of the limits.
    pub fn within_limits(&self, remaining: &[(usize, i128)]) -> BitSet {
        let mut set = self.usable.clone();
        for slot in self.usable.iter() {
            let capacity = &self.types[self.slots[slot].type_index].capacity;
            if remaining
                .iter()
                .any(|(resource, left)| amount(capacity, *resource) > *left)
            {
                set.remove(slot);
            }
        }
        set
    }
}

fn least_price(kind: &InstanceType) -> f64 {
    let available = kind.offerings.iter().filter(|offering| offering.available);
    available.map(|offering| offering.price).fold(f64::MAX, f64::min)
}

fn allocatable(
    kind: &InstanceType,
    capacity_override: &ResourceList,
    overhead_override: Option<&ResourceList>,
) -> ResourceList {
    let mut capacity = kind.capacity.clone();
    capacity.extend(
        capacity_override
            .iter()
            .map(|(name, quantity)| (name.clone(), *quantity)),
    );
    let mut overhead = kind.overhead.total();
    overhead.extend(
        overhead_override
            .into_iter()
            .flatten()
            .map(|(name, quantity)| (name.clone(), *quantity)),
    );
    let mut result = capacity.clone();
    for (name, quantity) in &mut result {
        if let Some(kept) = overhead.get(name) {
            *quantity -= *kept;
        }
    }
    // Huge pages are carved out of memory.
    for (name, quantity) in &capacity {
        if name.starts_with("hugepages-")
            && let Some(memory) = result.get_mut(crate::resources::MEMORY)
        {
            *memory = (*memory - *quantity).max(crate::quantity::Quantity::ZERO);
        }
    }
    result
}

/// Reserved capacity, by reservation. Several offerings may share one; the smallest count holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservations {
    pub names: Vec<String>,
    pub capacity: Vec<u32>,
}

impl Reservations {
    fn add(&mut self, name: String, capacity: u32) -> usize {
        if let Some(index) = self.names.iter().position(|known| *known == name) {
            self.capacity[index] = self.capacity[index].min(capacity);
            return index;
        }
        self.names.push(name);
        self.capacity.push(capacity);
        self.names.len() - 1
    }
}
