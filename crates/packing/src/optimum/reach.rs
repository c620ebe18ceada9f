//! Which offerings the pods of a class could end up on, and on which of them they should.

use ahash::AHashMap;

use crate::bits::BitSet;
use crate::engine::equivalence_class::{ClassId, PoolAnswer};
use crate::engine::intern::ReqVec;
use crate::engine::run::Run;
use crate::model::ReservedOfferingMode;
use crate::resources::{Amounts, subtract_amounts};

/// An offering of a type, with one of the type's sets of amounts.
pub(super) struct Offered {
    pub pool: usize,
    pub slot: usize,
    offer: usize,
    /// What a plan says that a node of it costs.
    pub price: f64,
    /// Free beside the daemons.
    pub room: Amounts,
    /// Set where only so many nodes can be launched into it.
    pub reservation: Option<usize>,
    /// A node can be launched into it.
    launchable: bool,
    reserved: bool,
}

/// Sets of offerings.
pub(super) struct Reach {
    pub possible: BitSet,
    pub desired: BitSet,
    /// The first variant that a new node could take: no preference is given up beyond it.
    pub variant: usize,
}

pub(super) fn offered(run: &Run<'_, '_>) -> Vec<Offered> {
    let world = &*run.world;
    let waits = run.options.reserved == ReservedOfferingMode::Strict && world.options.reserved_capacity;
    let mut offers = Vec::new();
    for (pool, data) in world.pools.iter().enumerate() {
        for slot in data.usable.iter() {
            let mut room = data.slots[slot].allocatable.clone();
            if let Some(group) = data.daemon_groups.iter().find(|group| group.slots.contains(slot)) {
                subtract_amounts(&mut room, &group.overhead);
            }
            // A plan names the cheapest offering of a type, whichever of its amounts the pods need.
            for (index, offer) in data.types[data.slots[slot].type_index].offers.iter().enumerate() {
                if offer.available {
                    offers.push(Offered {
                        pool,
                        slot,
                        offer: index,
                        price: if offer.launchable() {
                            offer.price.max(0.0)
                        } else {
                            0.0
                        },
                        room: room.clone(),
                        reservation: offer.reservation.filter(|_| waits),
                        launchable: offer.launchable(),
                        reserved: offer.reserved,
                    });
                }
            }
        }
    }
    offers
}

/// Offerings that requirements leave in a pool, remembered.
#[derive(Default)]
pub(super) struct Compatible {
    known: AHashMap<(usize, ReqVec), BitSet>,
}

impl Compatible {
    fn with(
        &mut self,
        run: &mut Run<'_, '_>,
        pool: usize,
        requirements: &ReqVec,
        offers: &[Offered],
    ) -> &BitSet {
        self.known.entry((pool, requirements.clone())).or_insert_with(|| {
            let world = &mut *run.world;
            let data = &world.pools[pool];
            let fits = |offered: &Offered| {
                let kind = data.slots[offered.slot].type_index;
                let offer = &data.types[kind].offers[offered.offer];
                world.interner.compatible(requirements, &offer.requirements, true)
            };
            let mut fits = fits;
            let own = offers
                .iter()
                .enumerate()
                .filter(|(_, offered)| offered.pool == pool);
            own.filter(|(_, offered)| fits(offered))
                .map(|(index, _)| index)
                .collect()
        })
    }
}

/// The offerings that a class can reach with the first preferences given up, up to `last`.
pub(super) fn reach_of(
    run: &mut Run<'_, '_>,
    class: ClassId,
    last: usize,
    offers: &[Offered],
    compatible: &mut Compatible,
) -> Reach {
    let mut reach = Reach {
        possible: BitSet::default(),
        desired: BitSet::default(),
        variant: 0,
    };
    let opens = |answer: &PoolAnswer| matches!(answer, PoolAnswer::Maybe(_));
    let pools = run.world.pools.len();
    let first =
        (0..=last).find(|variant| (0..pools).any(|pool| opens(run.pool_answer(pool, class, *variant))));
    reach.variant = first.unwrap_or(0);
    let mut heaviest: Option<i32> = None;
    for pool in 0..run.world.pools.len() {
        for variant in 0..=last {
            let answer = run.pool_answer(pool, class, variant).clone();
            let alternatives = match &*answer {
                PoolAnswer::Never => continue,
                // A claim that got the label from another pod may be of any type.
                PoolAnswer::LabelMissing => {
                    let data = &run.world.pools[pool];
                    vec![(data.requirements.clone(), data.usable.clone())]
                }
                PoolAnswer::Maybe(alternatives) => alternatives.clone(),
            };
            let weight = run.world.pools[pool].weight;
            let desired =
                variant == reach.variant && opens(&answer) && *heaviest.get_or_insert(weight) == weight;
            for (requirements, slots) in &alternatives {
                let left = compatible.with(run, pool, requirements, offers);
                for index in left.iter().filter(|index| slots.contains(offers[*index].slot)) {
                    reach.possible.insert(index);
                    if desired && offers[index].launchable && !offers[index].reserved {
                        reach.desired.insert(index);
                    }
                }
            }
        }
    }
    reach
}
