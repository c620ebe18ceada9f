//! A node that is about to be created: what it could still become, and whether it takes one more pod.

use std::sync::Arc;

use super::choice::Choice;
use super::equivalence_class::{AnswerKey, ClassId, PoolAnswer};
use super::intern::{ReqId, ReqVec};
use super::run::{Item, Run};
use crate::bits::BitSet;
use crate::host_ports::HostPort;
use crate::model::ReservedOfferingMode;
use crate::resources::{Amounts, add_amounts};
use crate::storage::Volumes;
use crate::taints;

#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub pool: usize,
    pub requirements: ReqVec,
    pub slots: BitSet,
    pub requests: Amounts,
    pub host_ports: Vec<HostPort>,
    pub volumes: Volumes,
    pub items: Vec<Item>,
    pub reserved: Vec<usize>,
    pub min_values_relaxed: bool,
}

impl Claim {
    pub fn new(pool: usize) -> Self {
        Claim {
            pool,
            requirements: ReqVec::new(),
            slots: BitSet::default(),
            requests: Amounts::new(),
            host_ports: Vec::new(),
            volumes: Volumes::new(),
            items: Vec::new(),
            reserved: Vec::new(),
            min_values_relaxed: false,
        }
    }
}

/// What a claim becomes when it takes the pod.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    pub requirements: ReqVec,
    pub slots: BitSet,
    pub reserved: Vec<usize>,
    pub min_values_relaxed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusal {
    /// Whatever else happens, this will not change in this run.
    pub for_good: bool,
    /// Reserved capacity would fit but is taken for the moment.
    pub reserved_pending: bool,
}

const FOR_GOOD: Refusal = Refusal {
    for_good: true,
    reserved_pending: false,
};
const NOT_NOW: Refusal = Refusal {
    for_good: false,
    reserved_pending: false,
};

impl Run<'_, '_> {
    /// Whether a host that has no name yet can meet the requirements on its name.
    fn allows_new_host(&self, requirements: &ReqVec) -> bool {
        super::intern::find(requirements, self.world.interner.hostname)
            .is_none_or(|id| self.world.interner.get(id).has("a host to be created"))
    }

    pub fn claim_takes(
        &mut self,
        claim: usize,
        class: ClassId,
        variant: usize,
        choice: &Choice,
    ) -> Result<Settled, Refusal> {
        let pool = self.claims[claim].pool;
        let label_missing = match **self.pool_answer(pool, class, variant) {
            PoolAnswer::Never => return Err(FOR_GOOD),
            PoolAnswer::LabelMissing => true,
            PoolAnswer::Maybe(_) => false,
        };
        let data = &self.claims[claim];
        let world = &mut *self.world;
        let class_data = &world.classes[class];
        let required = &class_data.variants[variant].requirements;
        if !world.interner.compatible(&data.requirements, required, true) {
            // A pod that excludes some values of the label gives the claim another one.
            return Err(if label_missing { NOT_NOW } else { FOR_GOOD });
        }
        let mut slots = data.slots.clone();
        let mut requests = data.requests.clone();
        add_amounts(&mut requests, &class_data.requests);
        world.pools[pool].cut_to_fit(&mut slots, &requests, &class_data.host_ports, &data.host_ports);
        if slots.is_empty() {
            return Err(FOR_GOOD);
        }
        if !class_data.volumes.is_empty() && world.pools[pool].has_volume_limits {
            let mut volumes = data.volumes.clone();
            for (driver, names) in &class_data.volumes {
                volumes
                    .entry(driver.clone())
                    .or_default()
                    .extend(names.iter().cloned());
            }
            world.pools[pool].cut_to_volumes(&mut slots, &volumes);
            if slots.is_empty() {
                return Err(FOR_GOOD);
            }
        }
        let merged = world.interner.merge(&data.requirements, required);
        let before = data.requirements.clone();
        let held = data.reserved.clone();
        let places = class_data.volume_places.clone();
        if places.is_empty() {
            return self.narrow_and_settle(pool, &before, merged, slots, choice, &held, false);
        }
        let mut refusal = FOR_GOOD;
        for place in places {
            if !self.allows_new_host(&place) {
                continue;
            }
            if !self.world.interner.compatible(&merged, &place, true) {
                if self.world.interner.lacks_label(&merged, &place) {
                    refusal = NOT_NOW;
                }
                continue;
            }
            let at_place = self.world.interner.merge(&merged, &place);
            match self.narrow_and_settle(pool, &before, at_place, slots.clone(), choice, &held, false) {
                Ok(settled) => return Ok(settled),
                Err(next) => {
                    refusal.for_good &= next.for_good;
                    refusal.reserved_pending |= next.reserved_pending;
                }
            }
        }
        Err(refusal)
    }

    /// What a pool's template could do for a variant, whatever else is placed.
    pub fn pool_answer(&mut self, pool: usize, class: ClassId, variant: usize) -> &Arc<PoolAnswer> {
        if self.world.classes[class].variants[variant].pools[pool].is_none() {
            let answer = self.shared_pool_answer(pool, class, variant);
            self.world.classes[class].variants[variant].pools[pool] = Some(answer);
        }
        self.world.classes[class].variants[variant].pools[pool]
            .as_ref()
            .expect("just worked out")
    }

    /// Shapes that differ only in what they say about other pods share an answer.
    fn shared_pool_answer(&mut self, pool: usize, class: ClassId, variant: usize) -> Arc<PoolAnswer> {
        let data = &self.world.classes[class];
        if !data.host_ports.is_empty() || !data.volumes.is_empty() || !data.volume_places.is_empty() {
            return Arc::new(self.work_out_pool_answer(pool, class, variant));
        }
        let variant_data = &data.variants[variant];
        let question = AnswerKey {
            pool,
            requirements: variant_data.requirements.clone(),
            tolerations: variant_data.tolerations.clone(),
            requests: data.requests.clone(),
        };
        if let Some(answer) = self.world.pool_answers.get(&question) {
            return answer.clone();
        }
        let answer = Arc::new(self.work_out_pool_answer(pool, class, variant));
        self.world.pool_answers.insert(question, answer.clone());
        answer
    }

    fn work_out_pool_answer(&mut self, pool: usize, class: ClassId, variant: usize) -> PoolAnswer {
        if !self.allows_new_host(&self.world.classes[class].variants[variant].requirements) {
            return PoolAnswer::Never;
        }
        let world = &mut *self.world;
        let class_data = &world.classes[class];
        let variant_data = &class_data.variants[variant];
        let template = world.pools[pool].requirements.clone();
        if taints::untolerated(&world.pools[pool].taints, &variant_data.tolerations).is_some() {
            return PoolAnswer::Never;
        }
        if !world
            .interner
            .compatible(&template, &variant_data.requirements, true)
        {
            return if world.interner.lacks_label(&template, &variant_data.requirements) {
                PoolAnswer::LabelMissing
            } else {
                PoolAnswer::Never
            };
        }
        let merged = world.interner.merge(&template, &variant_data.requirements);
        let mut slots = world.pools[pool].usable.clone();
        world.pools[pool].cut_to_fit(&mut slots, &class_data.requests, &class_data.host_ports, &[]);
        if !class_data.volumes.is_empty() && world.pools[pool].has_volume_limits {
            world.pools[pool].cut_to_volumes(&mut slots, &class_data.volumes);
        }
        let places = class_data.volume_places.clone();
        let mut alternatives = Vec::new();
        if places.is_empty() {
            self.narrow_slots(pool, &template, &merged, &mut slots);
            if !slots.is_empty() {
                alternatives.push((merged, slots));
            }
        } else {
            for place in places {
                if self.allows_new_host(&place) && self.world.interner.compatible(&merged, &place, true) {
                    let at_place = self.world.interner.merge(&merged, &place);
                    let mut own = slots.clone();
                    self.narrow_slots(pool, &template, &at_place, &mut own);
                    if !own.is_empty() {
                        alternatives.push((at_place, own));
                    }
                }
            }
        }
        if alternatives.is_empty() {
            PoolAnswer::Never
        } else {
            PoolAnswer::Maybe(alternatives)
        }
    }

    pub fn pool_takes(
        &mut self,
        pool: usize,
        class: ClassId,
        variant: usize,
        choice: &Choice,
        relax_min_values: bool,
    ) -> Result<Settled, Refusal> {
        let answer = self.pool_answer(pool, class, variant).clone();
        let PoolAnswer::Maybe(alternatives) = &*answer else {
            return Err(FOR_GOOD);
        };
        if self.node_limit_reached(pool) {
            return Err(FOR_GOOD);
        }
        let limited = self.limited_slots(pool).cloned();
        let mut refusal = FOR_GOOD;
        for (before, slots) in alternatives {
            let mut slots = slots.clone();
            if let Some(limited) = &limited {
                slots.intersect_with(limited);
            }
            if slots.is_empty() {
                continue;
            }
            let requirements = before.clone();
            match self.narrow_and_settle(pool, before, requirements, slots, choice, &[], relax_min_values) {
                Ok(settled) => return Ok(settled),
                Err(next) => refusal = next,
            }
        }
        Err(refusal)
    }

    /// Cuts slots to what the keys that changed leave.
    fn narrow_slots(&mut self, pool: usize, before: &ReqVec, after: &ReqVec, slots: &mut BitSet) {
        let world = &mut *self.world;
        let data = &mut world.pools[pool];
        for &(key, requirement) in after {
            if super::intern::find(before, key) != Some(requirement) {
                slots.intersect_with(data.type_mask(&mut world.interner, requirement));
            }
        }
        if data.offer_key_changed(before, after) {
            slots.intersect_with(data.offer_mask(&mut world.interner, after));
        }
    }

    /// Narrows the types to the requirements, lets topology decide, and checks what is left. A refusal before
    /// topology had its say is for good.
    #[allow(clippy::too_many_arguments)]
    fn narrow_and_settle(
        &mut self,
        pool: usize,
        before: &ReqVec,
        requirements: ReqVec,
        mut slots: BitSet,
        choice: &Choice,
        held: &[usize],
        relax_min_values: bool,
    ) -> Result<Settled, Refusal> {
        self.narrow_slots(pool, before, &requirements, &mut slots);
        if slots.is_empty() {
            return Err(FOR_GOOD);
        }
        if self.world.pools[pool].has_min_values
            && !relax_min_values
            && !self.world.pools[pool]
                .unmet_min_values(&self.world.interner, &requirements, &slots)
                .is_empty()
        {
            return Err(FOR_GOOD);
        }
        let mut attempts = 0;
        self.settle_key(
            pool,
            requirements,
            slots,
            choice,
            0,
            held,
            relax_min_values,
            &mut attempts,
        )
    }

    #[allow(clippy::too_many_arguments)]
    fn settle_key(
        &mut self,
        pool: usize,
        requirements: ReqVec,
        slots: BitSet,
        choice: &Choice,
        position: usize,
        held: &[usize],
        relax_min_values: bool,
        attempts: &mut usize,
    ) -> Result<Settled, Refusal> {
        let Some(key_choice) = choice.keys.get(position) else {
            *attempts += 1;
            return self.settle(pool, requirements, slots, held, relax_min_values);
        };
        let key = key_choice.key;
        let mut options: smallvec::SmallVec<[ReqId; 8]> = smallvec::SmallVec::new();
        {
            let world = &mut *self.world;
            let domains = world.domains.get_mut(&key).expect("a group's key has domains");
            let mut reachable = key_choice.allowed.clone();
            if let Some(own) = domains.set_of(&world.interner, &requirements) {
                reachable.intersect_with(&own);
            }
            if reachable.is_empty() {
                return Err(NOT_NOW);
            }
            match &key_choice.pinned {
                Some(order) => {
                    let pins = || order.iter().filter(|(domain, _)| reachable.contains(*domain));
                    let best = pins().next().map(|(_, class)| *class);
                    self.domains_were_equal |= pins().filter(|(_, class)| Some(*class) == best).count() > 1;
                    let allowed = pins().filter(|(_, class)| !self.best_domains_only || Some(*class) == best);
                    options.extend(allowed.map(|(domain, _)| domains.pins[*domain]));
                }
                None => options.push(domains.choice(&mut world.interner, &reachable)),
            }
        }
        let mut refusal = NOT_NOW;
        for option in options {
            let mut narrowed = requirements.clone();
            self.world.interner.narrow(&mut narrowed, key, option);
            let mut own = slots.clone();
            self.narrow_slots(pool, &requirements, &narrowed, &mut own);
            if own.is_empty() {
                continue;
            }
            match self.settle_key(
                pool,
                narrowed,
                own,
                choice,
                position + 1,
                held,
                relax_min_values,
                attempts,
            ) {
                Ok(settled) => return Ok(settled),
                Err(next) => refusal.reserved_pending |= next.reserved_pending,
            }
            // Several keys multiply; a bound keeps one pod from holding up the rest.
            if *attempts > 64 {
                break;
            }
        }
        Err(refusal)
    }

    fn settle(
        &mut self,
        pool: usize,
        mut requirements: ReqVec,
        slots: BitSet,
        held: &[usize],
        relax_min_values: bool,
    ) -> Result<Settled, Refusal> {
        let mut min_values_relaxed = false;
        if self.world.pools[pool].has_min_values {
            let unmet = self.world.pools[pool].unmet_min_values(&self.world.interner, &requirements, &slots);
            if !unmet.is_empty() {
                if !relax_min_values {
                    return Err(NOT_NOW);
                }
                min_values_relaxed = true;
                for (key, reached) in unmet {
                    for (own, id) in &mut requirements {
                        if *own == key {
                            let mut lowered = self.world.interner.get(*id).clone();
                            lowered.min_values = Some(reached);
                            *id = self.world.interner.requirement(lowered);
                        }
                    }
                }
            }
        }
        let reserved = if self.world.pools[pool].has_reserved {
            self.reserve(pool, &requirements, &slots, held)?
        } else {
            Vec::new()
        };
        Ok(Settled {
            requirements,
            slots,
            reserved,
            min_values_relaxed,
        })
    }

    /// The reservations the claim could launch into. Provisioning waits for them rather than pay for something else.
    fn reserve(
        &mut self,
        pool: usize,
        requirements: &ReqVec,
        slots: &BitSet,
        held: &[usize],
    ) -> Result<Vec<usize>, Refusal> {
        let world = &mut *self.world;
        let data = &world.pools[pool];
        let strict = self.options.reserved == ReservedOfferingMode::Strict;
        let (mut with_capacity, mut full, mut fallback) = (false, false, false);
        let mut reserved: Vec<usize> = Vec::new();
        for index in data.types_of(slots) {
            for offer in &data.types[index].offers {
                if !offer.available || !world.interner.compatible(requirements, &offer.requirements, true) {
                    continue;
                }
                let Some(reservation) = offer.reservation else {
                    fallback = true;
                    continue;
                };
                if offer.reservation_capacity == 0 && self.options.freed_reservation != Some(reservation) {
                    full = true;
                    continue;
                }
                with_capacity = true;
                if (held.contains(&reservation) || self.reservations[reservation] > 0)
                    && !reserved.contains(&reservation)
                {
                    reserved.push(reservation);
                }
            }
        }
        let pending = Refusal {
            for_good: false,
            reserved_pending: true,
        };
        if strict && with_capacity && reserved.is_empty() {
            return Err(pending);
        }
        if full && !with_capacity && !fallback {
            return Err(if strict { pending } else { NOT_NOW });
        }
        if strict && !held.is_empty() && reserved.is_empty() {
            return Err(pending);
        }
        Ok(reserved)
    }
}
