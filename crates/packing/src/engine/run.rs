//! One run over a world: pods in, placements out. What a run changes in the world it can take back.

use super::choice::{Choice, EqualDomains, NoDomain};
use super::claim::Claim;
use super::equivalence_class::{ClassId, GroupId};
use super::group::GroupKind;
use super::intern::ReqVec;
use super::spread_out::SpreadOut;
use super::world::World;
use crate::bits::{BitSet, ones};
use crate::model::{MinValuesPolicy, ReservedOfferingMode};
use crate::resources::{add_amounts, subtract_amounts};

/// A pod to place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// The caller's name for it.
    pub pod: usize,
    pub class: ClassId,
}

/// Why a pod was placed nowhere, as far as the queue needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Nothing takes it now.
    Unschedulable,
    /// Reserved capacity is taken for the moment.
    ReservedPending,
}

/// What a run changed in the world, newest last.
enum Undo {
    Count {
        group: GroupId,
        domain: usize,
        /// The group did not know the domain before.
        opened: bool,
    },
    Uncount {
        group: GroupId,
        domain: usize,
    },
    Node {
        node: usize,
        item: Item,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOptions {
    pub reserved: ReservedOfferingMode,
    /// A reservation that gets a place back before anything is placed.
    pub freed_reservation: Option<usize>,
    /// Nodes that have been busy lately take only pods that wait.
    pub spare_busy_nodes: bool,
    pub equal_domains: EqualDomains,
    /// Among claims and new nodes what costs least is taken, and not the claim that holds the fewest pods.
    pub least_cost: bool,
}

pub(crate) struct Run<'w, 'a> {
    pub world: &'w mut World<'a>,
    pub options: RunOptions,
    pub claims: Vec<Claim>,
    /// Claims by how many pods they hold.
    pub(super) by_size: Vec<BitSet>,
    /// When each claim got its last pod.
    pub(super) grown: Vec<u64>,
    growths: u64,
    /// The claims one pod is offered to, kept for its memory.
    pub(super) spread: SpreadOut,
    /// Nodes that take no part: candidates of a consolidation.
    pub excluded: BitSet,
    /// Pods put on nodes.
    pub on_nodes: Vec<(usize, Item)>,
    /// What is left of the limits, by pool, and the slots inside it.
    pub limits: Vec<Option<Vec<(usize, i128)>>>,
    limit_masks: Vec<Option<BitSet>>,
    pub reservations: Vec<u32>,
    /// Look only at the domains that are best for the pod.
    pub(super) best_domains_only: bool,
    /// Some pod could have gone to another domain just as well.
    pub domains_were_equal: bool,
    placed: u64,
    changes: Vec<Undo>,
    changed_nodes: BitSet,
    touched: Vec<(ClassId, usize)>,
}

impl<'w, 'a> Run<'w, 'a> {
    pub fn new(world: &'w mut World<'a>, options: RunOptions) -> Self {
        let limits = world.pools.iter().map(|pool| pool.limits.clone()).collect();
        let limit_masks = vec![None; world.pools.len()];
        let mut reservations = world.reservations.capacity.clone();
        if let Some(freed) = options.freed_reservation {
            reservations[freed] += 1;
        }
        Run {
            world,
            options,
            claims: Vec::new(),
            by_size: Vec::new(),
            grown: Vec::new(),
            growths: 0,
            spread: SpreadOut::default(),
            excluded: BitSet::default(),
            on_nodes: Vec::new(),
            limits,
            limit_masks,
            reservations,
            best_domains_only: false,
            domains_were_equal: false,
            placed: 0,
            changes: Vec::new(),
            changed_nodes: BitSet::default(),
            touched: Vec::new(),
        }
    }

    /// Places what can be placed, as long as there is progress. Returns what is left.
    pub fn solve(&mut self, items: &[Item]) -> Vec<(Item, Refused)> {
        let mut queue: std::collections::VecDeque<(Item, usize)> =
            items.iter().map(|item| (*item, 0)).collect();
        let mut refusals: Vec<Option<Refused>> = Vec::new();
        while let Some((item, length_when_pushed)) = queue.front().copied() {
            if length_when_pushed == queue.len() {
                break;
            }
            queue.pop_front();
            if let Err(refused) = self.place(item) {
                let length = queue.len() + 1;
                queue.push_back((item, length));
                if refusals.len() <= item.pod {
                    refusals.resize(item.pod + 1, None);
                }
                refusals[item.pod] = Some(refused);
            }
        }
        queue
            .into_iter()
            .map(|(item, _)| {
                let refused = refusals
                    .get(item.pod)
                    .copied()
                    .flatten()
                    .unwrap_or(Refused::Unschedulable);
                (item, refused)
            })
            .collect()
    }

    fn place(&mut self, item: Item) -> Result<(), Refused> {
        // Nothing was placed since a pod of this class failed: it would fail again.
        if self.world.classes[item.class].failed_at == Some(self.placed) {
            return Err(Refused::Unschedulable);
        }
        for variant in 0..self.world.classes[item.class].variants.len() {
            match self.try_variant(item, variant) {
                Ok(()) => {
                    self.note_placed();
                    return Ok(());
                }
                // It may fit later as it is: keep its preferences.
                Err(Refused::ReservedPending) => return Err(Refused::ReservedPending),
                Err(Refused::Unschedulable) => {}
            }
        }
        self.world.classes[item.class].failed_at = Some(self.placed);
        Err(Refused::Unschedulable)
    }

    /// Notes what is to be forgotten about a variant when the run is undone.
    pub(super) fn touch(&mut self, class: ClassId, variant: usize) {
        self.touched.push((class, variant));
    }

    pub(super) fn note_placed(&mut self) {
        self.placed += 1;
    }

    fn try_variant(&mut self, item: Item, variant: usize) -> Result<(), Refused> {
        self.touch(item.class, variant);
        let claims = self.claims.len();
        let choice = match self
            .world
            .choose(item.class, variant, claims, self.options.equal_domains)
        {
            Ok(choice) => choice,
            Err(NoDomain(_)) => return Err(Refused::Unschedulable),
        };
        if self.try_nodes(item, variant, &choice) {
            return Ok(());
        }
        // Where the best domain is out of reach of everything, the next best will do.
        self.best_domains_only = choice.has_second_best();
        let placed = self.try_claims_and_pools(item, variant, &choice);
        if std::mem::take(&mut self.best_domains_only) && placed == Err(Refused::Unschedulable) {
            return self.try_claims_and_pools(item, variant, &choice);
        }
        placed
    }

    fn try_claims_and_pools(&mut self, item: Item, variant: usize, choice: &Choice) -> Result<(), Refused> {
        if self.options.least_cost {
            return self.try_least_cost(item, variant, choice);
        }
        if self.try_claims(item, variant, choice) {
            return Ok(());
        }
        self.try_pools(item, variant, choice)
    }

    pub(super) fn try_nodes(&mut self, item: Item, variant: usize, choice: &Choice) -> bool {
        let count = self.world.nodes.len();
        for word in 0..count.div_ceil(64) {
            let state = &self.world.classes[item.class].variants[variant];
            let mut candidates =
                !state.dead_nodes.word(word) & !state.dead_nodes_now.word(word) & !self.excluded.word(word);
            if let Some(mask) = &choice.mask
                && !self.world.hosts_shared
            {
                candidates &= mask.word(word);
            }
            if word == count / 64 {
                candidates &= (1 << (count % 64)) - 1;
            }
            for bit in ones(candidates) {
                let node = word * 64 + bit;
                if let Some(mask) = &choice.mask
                    && self.world.hosts_shared
                    && !(mask.contains(self.world.host_of[node]) && self.in_chosen_domains(node, choice))
                {
                    continue;
                }
                if self.options.spare_busy_nodes
                    && self.world.nodes[node].lately_busy
                    && !self.world.classes[item.class].waits
                {
                    continue;
                }
                if self.world.node_takes(node, item.class, variant).is_ok() {
                    self.put_on_node(node, item);
                    return true;
                }
                // Refusals here do not depend on what is placed elsewhere, only on what was put on this node.
                let changed = self.changed_nodes.contains(node);
                let state = &mut self.world.classes[item.class].variants[variant];
                if changed {
                    state.dead_nodes_now.insert(node);
                } else {
                    state.dead_nodes.insert(node);
                }
            }
        }
        false
    }

    fn in_chosen_domains(&self, node: usize, choice: &Choice) -> bool {
        choice.keys.iter().all(|choice| {
            self.world.domains[&choice.key].of_node[node]
                .is_some_and(|domain| choice.allowed.contains(domain))
        })
    }

    fn try_pools(&mut self, item: Item, variant: usize, choice: &Choice) -> Result<(), Refused> {
        let cheapest = self.world.options.improvements.price_aware;
        let (_, pool, settled) = self.new_claim(item, variant, choice, cheapest)?;
        self.open_claim(pool, item, settled);
        Ok(())
    }

    /// A new claim of the heaviest pools that take the pod, the cheapest of them or the first, with what it costs.
    pub(super) fn new_claim(
        &mut self,
        item: Item,
        variant: usize,
        choice: &Choice,
        cheapest: bool,
    ) -> Result<(f64, usize, super::claim::Settled), Refused> {
        let relax_min_values = self.world.options.min_values_policy == MinValuesPolicy::BestEffort;
        // A new host is empty: a pod that has to join others cannot start there.
        if choice.no_new_host.is_some() {
            return Err(Refused::Unschedulable);
        }
        let mut best: Option<(f64, i32, usize, super::claim::Settled)> = None;
        for pool in 0..self.world.pools.len() {
            let weight = self.world.pools[pool].weight;
            if best
                .as_ref()
                .is_some_and(|(_, best_weight, ..)| *best_weight != weight)
            {
                break;
            }
            match self.pool_takes(pool, item.class, variant, choice, relax_min_values) {
                Ok(settled) if !cheapest => return Ok((0.0, pool, settled)),
                Ok(settled) => {
                    let price = self.cheapest_price(pool, &settled.requirements, &settled.slots);
                    if best.as_ref().is_none_or(|(best_price, ..)| price < *best_price) {
                        best = Some((price, weight, pool, settled));
                    }
                }
                Err(refusal) if refusal.reserved_pending => return Err(Refused::ReservedPending),
                Err(_) => {}
            }
        }
        best.map(|(price, _, pool, settled)| (price, pool, settled))
            .ok_or(Refused::Unschedulable)
    }

    pub fn cheapest_price(&mut self, pool: usize, requirements: &ReqVec, slots: &BitSet) -> f64 {
        let world = &mut *self.world;
        let data = &world.pools[pool];
        data.types_of(slots)
            .filter_map(|index| data.cheapest(&mut world.interner, requirements, index))
            .map(|offer| offer.price)
            .fold(f64::MAX, f64::min)
    }

    /// Slots of a pool that stay inside its limits; none when its node count is used up.
    pub fn limited_slots(&mut self, pool: usize) -> Option<&BitSet> {
        let limits = self.limits[pool].as_ref()?;
        if self.limit_masks[pool].is_none() {
            self.limit_masks[pool] = Some(self.world.pools[pool].within_limits(limits));
        }
        self.limit_masks[pool].as_ref()
    }

    /// Whether the pool's node limit is used up.
    pub fn node_limit_reached(&mut self, pool: usize) -> bool {
        let nodes = self.world.resources.index(crate::resources::NODES);
        let exact = self.world.options.improvements.exact_node_limits;
        self.limits[pool].as_ref().is_some_and(|limits| {
            limits
                .iter()
                .any(|(resource, left)| *resource == nodes && (*left == 0 || (exact && *left < 0)))
        })
    }

    pub(super) fn open_claim(&mut self, pool: usize, item: Item, settled: super::claim::Settled) {
        let claim = self.claims.len();
        self.claims.push(Claim::new(pool));
        self.grown.push(0);
        if let Some(limits) = &mut self.limits[pool] {
            let data = &self.world.pools[pool];
            let nodes = self.world.resources.index(crate::resources::NODES);
            for (resource, left) in limits.iter_mut() {
                let most = data
                    .types_of(&settled.slots)
                    .map(|index| crate::resources::amount(&data.types[index].capacity, *resource))
                    .max()
                    .unwrap_or(0);
                *left -= most;
                if *resource == nodes && self.world.options.improvements.exact_node_limits {
                    *left -= crate::resources::ONE.nanos();
                }
            }
            self.limit_masks[pool] = None;
        }
        if self.by_size.is_empty() {
            self.by_size.push(BitSet::default());
        }
        self.by_size[0].insert(claim);
        for domains in self.world.domains.values_mut() {
            domains.place_claim(&self.world.interner, claim, &settled.requirements);
        }
        self.put_on_claim(claim, item, settled);
    }

    pub(super) fn put_on_claim(&mut self, claim: usize, item: Item, settled: super::claim::Settled) {
        let size = self.claims[claim].items.len();
        self.by_size[size].remove(claim);
        if self.by_size.len() <= size + 1 {
            self.by_size.push(BitSet::default());
        }
        self.by_size[size + 1].insert(claim);
        self.growths += 1;
        self.grown[claim] = self.growths;
        let world = &mut *self.world;
        let data = &mut self.claims[claim];
        if data.requirements != settled.requirements {
            for domains in world.domains.values_mut() {
                let before = super::intern::find(&data.requirements, domains.key);
                if before != super::intern::find(&settled.requirements, domains.key) {
                    domains.place_claim(&world.interner, claim, &settled.requirements);
                }
            }
            data.requirements = settled.requirements;
        }
        let class = &world.classes[item.class];
        data.slots = settled.slots;
        data.min_values_relaxed |= settled.min_values_relaxed;
        add_amounts(&mut data.requests, &class.requests);
        data.host_ports.extend(class.host_ports.iter().cloned());
        for (driver, names) in &class.volumes {
            data.volumes
                .entry(driver.clone())
                .or_default()
                .extend(names.iter().cloned());
        }
        data.items.push(item);
        // Reservations that are no longer possible become free for others.
        for reservation in &settled.reserved {
            if !data.reserved.contains(reservation) {
                self.reservations[*reservation] -= 1;
            }
        }
        for reservation in &data.reserved {
            if !settled.reserved.contains(reservation) {
                self.reservations[*reservation] += 1;
            }
        }
        data.reserved = settled.reserved;
        self.record_on_claim(claim, item.class);
    }

    fn record_on_claim(&mut self, claim: usize, class: ClassId) {
        let world = &mut *self.world;
        let data = &self.claims[claim];
        let host = world.first_claim_host + claim;
        let taints = &world.pools[data.pool].taints;
        for position in 0..world.classes[class].counted_by.len() + world.classes[class].keeps_away.len() {
            let class = &world.classes[class];
            let (id, keeps_away) = match class.counted_by.get(position) {
                Some(id) => (*id, false),
                None => (class.keeps_away[position - class.counted_by.len()], true),
            };
            let group = &mut world.groups[id];
            if !group.spec.filter.is_trivial()
                && !World::filter_matches(
                    &mut world.interner,
                    &group.spec.filter,
                    &data.requirements,
                    taints,
                )
            {
                continue;
            }
            let key = group.spec.key;
            if key == world.interner.hostname {
                let opened = group.change(host, 1);
                self.changes.push(Undo::Count {
                    group: id,
                    domain: host,
                    opened,
                });
                continue;
            }
            let Some(requirement) = super::intern::find(&data.requirements, key) else {
                continue;
            };
            if world.interner.get(requirement).is_complement() {
                continue;
            }
            let domains = world.domains.get_mut(&key).expect("a group's key has domains");
            let could_be_in = domains.set(&world.interner, requirement);
            // A pod that could be anywhere keeps others away from everywhere; it counts only where it surely is.
            let everywhere = keeps_away || group.spec.kind == GroupKind::AntiAffinity;
            if everywhere || could_be_in.len() == 1 {
                for domain in could_be_in.iter() {
                    let opened = group.change(domain, 1);
                    self.changes.push(Undo::Count {
                        group: id,
                        domain,
                        opened,
                    });
                }
            }
        }
    }

    fn put_on_node(&mut self, node: usize, item: Item) {
        let world = &mut *self.world;
        let class = &world.classes[item.class];
        let data = &mut world.nodes[node];
        subtract_amounts(&mut data.remaining, &class.requests);
        data.host_ports.extend(class.host_ports.iter().cloned());
        for (driver, names) in &class.volumes {
            data.volumes
                .entry(driver.clone())
                .or_default()
                .extend(names.iter().cloned());
        }
        self.changes.push(Undo::Node { node, item });
        self.changed_nodes.insert(node);
        self.on_nodes.push((node, item));
        self.count_on_node(node, item.class, 1);
    }

    /// Counts a pod where its node is; `by` is minus one for a pod that leaves.
    pub fn count_on_node(&mut self, node: usize, class: ClassId, by: i32) {
        for position in
            0..self.world.classes[class].counted_by.len() + self.world.classes[class].keeps_away.len()
        {
            let data = &self.world.classes[class];
            let id = match data.counted_by.get(position) {
                Some(id) => *id,
                None => data.keeps_away[position - data.counted_by.len()],
            };
            let key = self.world.groups[id].spec.key;
            let Some(domain) = self.world.domain_of_node(key, node) else {
                continue;
            };
            let world = &mut *self.world;
            let group = &mut world.groups[id];
            let (_, labels, taints) = &world.all_nodes[node];
            if group.spec.filter.is_trivial()
                || World::filter_matches(&mut world.interner, &group.spec.filter, labels, taints)
            {
                let opened = group.change(domain, by);
                for position in 0..by.abs() {
                    self.changes.push(if by > 0 {
                        Undo::Count {
                            group: id,
                            domain,
                            opened: opened && position == 0,
                        }
                    } else {
                        Undo::Uncount { group: id, domain }
                    });
                }
            }
        }
    }

    /// Leaves the world as it was before the run.
    pub fn undo(self) {
        let world = self.world;
        for change in self.changes.into_iter().rev() {
            match change {
                Undo::Count {
                    group,
                    domain,
                    opened,
                } => {
                    world.groups[group].change(domain, -1);
                    if opened {
                        world.groups[group].forget(domain);
                    }
                }
                Undo::Uncount { group, domain } => {
                    world.groups[group].change(domain, 1);
                }
                Undo::Node { node, item } => {
                    let class = &world.classes[item.class];
                    let data = &mut world.nodes[node];
                    add_amounts(&mut data.remaining, &class.requests);
                    data.host_ports
                        .truncate(data.host_ports.len() - class.host_ports.len());
                    if !class.volumes.is_empty() {
                        world.restore_volumes(node);
                    }
                }
            }
        }
        for (class, variant) in self.touched {
            let class = &mut world.classes[class];
            class.failed_at = None;
            let state = &mut class.variants[variant];
            state.dead_claims.clear();
            state.dead_nodes_now.clear();
        }
        for domains in world.domains.values_mut() {
            for claims in &mut domains.claims_in {
                claims.clear();
            }
        }
    }
}
