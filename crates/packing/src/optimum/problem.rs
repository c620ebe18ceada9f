//! A workload as the optimiser sees it: rows of pods that no offering tells apart, kinds of nodes that could be bought, and
//! caps on how many pods of some rows one node takes. Everything else is left to the engine, which places the pods.

use std::sync::Arc;

use ahash::AHashMap;
use smallvec::SmallVec;

use super::reach::{Compatible, Offered, Reach, offered, reach_of};
use crate::bits::BitSet;
use crate::engine::equivalence_class::{ClassId, GroupId, PoolAnswer};
use crate::engine::group::GroupKind;
use crate::engine::run::{Item, Run};
use crate::resources::amount;

/// Pods that ask for the same amounts, may go to the same offerings and count for the same caps.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// By resource; the largest node has one of each.
    pub size: SmallVec<[f64; 4]>,
    pub caps: SmallVec<[usize; 2]>,
    pub count: u32,
}

/// No node takes more than this many pods of the rows that carry the cap.
#[derive(Clone, Debug)]
pub(super) struct Cap {
    pub most: u32,
}

/// Offerings with the same room for the same rows, at the price of the cheapest.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub pool: usize,
    pub slot: usize,
    pub price: f64,
    pub room: Vec<f64>,
    /// Rows that could come to such a node in some valid plan.
    pub rows: BitSet,
    /// Rows that should: of a pool no lighter than the heaviest that takes them, without giving up a preference.
    pub desired: BitSet,
    /// Set for reserved capacity, of which there is only so much.
    pub reservation: Option<usize>,
}

pub(super) struct Problem {
    pub rows: Vec<Row>,
    pub caps: Vec<Cap>,
    pub kinds: Vec<Kind>,
    /// Row by class, and the first variant that a new node could take; none for pods that no new node takes.
    pub row_of: Vec<Option<(usize, usize)>>,
    /// By resource, what the largest node has.
    scale: Vec<(usize, f64)>,
}

/// All by which classes are told apart.
type RowKey = (Vec<i128>, usize, Vec<usize>);

impl Problem {
    pub fn new(run: &mut Run<'_, '_>, items: &[Item]) -> Self {
        let mut counts = vec![0; run.world.classes.len()];
        for item in items {
            counts[item.class] += 1;
        }
        let offers = offered(run);
        let scale = scale(run, &offers, &counts);
        let (cap_ids, caps) = caps(run, &counts);
        let mut compatible = Compatible::default();
        let mut reaches: Vec<Reach> = Vec::new();
        let mut reach_ids: AHashMap<Vec<usize>, usize> = AHashMap::new();
        let mut answers: Vec<Arc<PoolAnswer>> = Vec::new();
        let mut row_ids: AHashMap<RowKey, usize> = AHashMap::new();
        let mut problem = Problem {
            rows: Vec::new(),
            caps,
            kinds: Vec::new(),
            row_of: vec![None; counts.len()],
            scale,
        };
        let mut reach_of_row: Vec<usize> = Vec::new();
        for (class, count) in counts.iter().copied().enumerate() {
            if count == 0 {
                continue;
            }
            let last = last_variant(run, class, items.len());
            let mut question: Vec<usize> = Vec::new();
            for pool in 0..run.world.pools.len() {
                for variant in 0..=last {
                    let answer = run.pool_answer(pool, class, variant).clone();
                    question.push(Arc::as_ptr(&answer) as usize);
                    // Kept, so that no other answer comes to stand in its place.
                    answers.push(answer);
                }
            }
            question.push(last);
            let reach = *reach_ids.entry(question).or_insert_with(|| {
                reaches.push(reach_of(run, class, last, &offers, &mut compatible));
                reaches.len() - 1
            });
            if reaches[reach].possible.is_empty() {
                continue;
            }
            let requests: Vec<i128> = problem
                .scale
                .iter()
                .map(|(resource, _)| amount(&run.world.classes[class].requests, *resource))
                .collect();
            let own: Vec<usize> = own_caps(run, class, last, &cap_ids);
            let size = problem.scaled(&requests).into_iter().collect();
            let rows = &mut problem.rows;
            let row = *row_ids.entry((requests, reach, own.clone())).or_insert_with(|| {
                rows.push(Row {
                    size,
                    caps: own.into_iter().collect(),
                    count: 0,
                });
                reach_of_row.push(reach);
                rows.len() - 1
            });
            problem.rows[row].count += count;
            problem.row_of[class] = Some((row, reaches[reach].variant));
        }
        problem.kinds = kinds(&problem, &offers, &reaches, &reach_of_row);
        problem
    }

    fn scaled(&self, amounts: &[i128]) -> Vec<f64> {
        self.scale
            .iter()
            .zip(amounts)
            .map(|((_, most), amount)| *amount as f64 / most)
            .collect()
    }

    /// What a place has left, as rows are measured.
    pub fn room(&self, amounts: &crate::resources::Amounts) -> Vec<f64> {
        self.scale
            .iter()
            .map(|(resource, most)| amount(amounts, *resource) as f64 / most)
            .collect()
    }
}

/// The last variant that a class can come to: one that a new node always takes is not given up. Where nothing is known of the
/// kind it is the last there is.
fn last_variant(run: &mut Run<'_, '_>, class: ClassId, pods: usize) -> usize {
    let variants = run.world.classes[class].variants.len();
    let world = &*run.world;
    let hosts_only = |ids: &[GroupId]| {
        ids.iter().all(|id| {
            let spec = &world.groups[*id].spec;
            spec.key == world.interner.hostname && spec.kind != GroupKind::Affinity
        })
    };
    if !hosts_only(&world.classes[class].kept_away_by) {
        return variants - 1;
    }
    let candidates: Vec<usize> = (0..variants)
        .filter(|variant| hosts_only(&world.classes[class].variants[*variant].groups))
        .collect();
    for variant in candidates {
        for pool in 0..run.world.pools.len() {
            let data = &run.world.pools[pool];
            let plain = !data.has_min_values && !data.has_reserved;
            if plain
                && never_full(run, pool, pods)
                && matches!(**run.pool_answer(pool, class, variant), PoolAnswer::Maybe(_))
            {
                return variant;
            }
        }
    }
    variants - 1
}

/// Whether a pool has room for a node of its largest type for every pod.
fn never_full(run: &Run<'_, '_>, pool: usize, pods: usize) -> bool {
    let data = &run.world.pools[pool];
    let Some(limits) = &data.limits else {
        return true;
    };
    limits.iter().all(|(resource, left)| {
        let most = data
            .types
            .iter()
            .map(|kind| amount(&kind.capacity, *resource))
            .max()
            .unwrap_or(0);
        // The pseudo resource of the node count is in no type's capacity.
        most > 0 && most.saturating_mul(pods as i128 + 1) <= *left
    })
}

/// Resources that some pod asks for, with the most that a node has of it.
fn scale(run: &Run<'_, '_>, offers: &[Offered], counts: &[u32]) -> Vec<(usize, f64)> {
    let classes = &run.world.classes;
    (0..run.world.resources.len())
        .filter(|resource| {
            let asks = |class: usize| counts[class] > 0 && amount(&classes[class].requests, *resource) > 0;
            (0..classes.len()).any(asks)
        })
        .map(|resource| {
            let most = offers
                .iter()
                .map(|offer| amount(&offer.room, resource))
                .max()
                .unwrap_or(0);
            (resource, most.max(1) as f64)
        })
        .collect()
}

/// Groups by host that no valid plan puts more than so many pods of on one new node.
fn caps(run: &Run<'_, '_>, counts: &[u32]) -> (AHashMap<GroupId, usize>, Vec<Cap>) {
    let world = &*run.world;
    let as_kube_scheduler = world.options.improvements.hostname_spread_as_kube_scheduler;
    let mut ids = AHashMap::new();
    let mut caps = Vec::new();
    let mut groups: Vec<GroupId> = Vec::new();
    for (data, _) in world.classes.iter().zip(counts).filter(|(_, count)| **count > 0) {
        groups.extend(data.variants.iter().flat_map(|variant| &variant.groups));
    }
    groups.sort_unstable();
    groups.dedup();
    for id in groups {
        let spec = &world.groups[id].spec;
        if spec.key != world.interner.hostname || !spec.filter.is_trivial() {
            continue;
        }
        let most = match spec.kind {
            GroupKind::Affinity => continue,
            GroupKind::AntiAffinity => 1,
            GroupKind::Spread if as_kube_scheduler => continue,
            GroupKind::Spread => u32::try_from(spec.max_skew).unwrap_or(1).max(1),
        };
        ids.insert(id, caps.len());
        caps.push(Cap { most });
    }
    (ids, caps)
}

/// The caps of a class: of groups that it owns whatever it gives up, and that count its own pods.
fn own_caps(run: &Run<'_, '_>, class: ClassId, last: usize, ids: &AHashMap<GroupId, usize>) -> Vec<usize> {
    let data = &run.world.classes[class];
    let mut own: Vec<usize> = data.variants[0]
        .groups
        .iter()
        .filter(|id| data.counted_by.binary_search(id).is_ok())
        .filter(|id| {
            data.variants[..=last]
                .iter()
                .all(|variant| variant.groups.contains(id))
        })
        .filter_map(|id| ids.get(id).copied())
        .collect();
    own.sort_unstable();
    own
}

/// Offerings that take the same rows with the same room are one kind; one that another beats in everything is left out.
fn kinds(problem: &Problem, offers: &[Offered], reaches: &[Reach], reach_of_row: &[usize]) -> Vec<Kind> {
    let rows_of = |offer: usize, of: fn(&Reach) -> &BitSet| -> BitSet {
        (0..reach_of_row.len())
            .filter(|row| of(&reaches[reach_of_row[*row]]).contains(offer))
            .collect()
    };
    let mut by_signature: AHashMap<(BitSet, BitSet, Vec<u64>, Option<usize>), usize> = AHashMap::new();
    let mut by_reach: AHashMap<(Vec<bool>, Vec<bool>), (BitSet, BitSet)> = AHashMap::new();
    let mut kinds: Vec<Kind> = Vec::new();
    for (index, offer) in offers.iter().enumerate() {
        let reached: Vec<bool> = reaches
            .iter()
            .map(|reach| reach.possible.contains(index))
            .collect();
        let wished: Vec<bool> = reaches
            .iter()
            .map(|reach| reach.desired.contains(index))
            .collect();
        let (rows, desired) = by_reach
            .entry((reached, wished))
            .or_insert_with(|| {
                (
                    rows_of(index, |reach| &reach.possible),
                    rows_of(index, |reach| &reach.desired),
                )
            })
            .clone();
        if rows.is_empty() {
            continue;
        }
        let room = problem.room(&offer.room);
        let bits = room.iter().map(|room| room.to_bits()).collect();
        let known = by_signature
            .entry((rows.clone(), desired.clone(), bits, offer.reservation))
            .or_insert_with(|| {
                kinds.push(Kind {
                    pool: offer.pool,
                    slot: offer.slot,
                    price: f64::MAX,
                    room,
                    rows,
                    desired,
                    reservation: offer.reservation,
                });
                kinds.len() - 1
            });
        let kind = &mut kinds[*known];
        if offer.price < kind.price {
            (kind.price, kind.pool, kind.slot) = (offer.price, offer.pool, offer.slot);
        }
    }
    without_beaten(kinds)
}

fn without_beaten(mut kinds: Vec<Kind>) -> Vec<Kind> {
    kinds.sort_by(|left, right| {
        left.price
            .total_cmp(&right.price)
            .then(left.slot.cmp(&right.slot))
            .then(left.pool.cmp(&right.pool))
    });
    let covers = |large: &BitSet, small: &BitSet| {
        let mut rest = small.clone();
        rest.subtract(large);
        rest.is_empty()
    };
    let mut kept: Vec<Kind> = Vec::new();
    for kind in kinds {
        let beaten = kept.iter().any(|other| {
            other.reservation.is_none()
                && other.room.iter().zip(&kind.room).all(|(other, own)| other >= own)
                && covers(&other.rows, &kind.rows)
                && covers(&other.desired, &kind.desired)
        });
        if !beaten {
            kept.push(kind);
        }
    }
    kept
}
