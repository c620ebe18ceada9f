//! One probe: what would become of the pods if these nodes went away.

use std::sync::Arc;

use super::candidates::Candidate;
use crate::engine::catalog::Pool;
use crate::engine::choice::EqualDomains;
use crate::engine::finish::Finished;
use crate::engine::intern::{Interner, ReqVec, find};
use crate::engine::run::{Item, Run, RunOptions};
use crate::engine::world::World;
use crate::labels;
use crate::model::{NewClaim, ReservedOfferingMode};
use crate::requirement::Requirement;

/// The fewest cheaper types that make replacing spot by spot worth it: fewer would be repeated again and again.
const SPOT_TO_SPOT_TYPES: usize = 15;

pub(crate) const NO_SPOT_TO_SPOT: &str =
    "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node";

/// The pods a probe places besides those of its candidates.
pub(crate) struct Others {
    /// Pods that wait anyway; they may go on waiting.
    pub pending: Vec<Item>,
    /// Pods of nodes that are going away already.
    pub leaving: Vec<Item>,
}

/// What a probe found.
pub(crate) enum Found {
    /// The nodes can go.
    Move(Move),
    Nothing(String),
}

/// What takes over when nodes go.
#[derive(Default)]
pub(crate) struct Move {
    pub replacements: Vec<Replacement>,
    /// Pods that go to nodes which stay.
    pub on_nodes: Vec<(usize, Item)>,
}

/// Life without the candidates.
pub(crate) struct Simulated {
    pub claims: Vec<Finished>,
    pub on_nodes: Vec<(usize, Item)>,
}

pub(crate) struct Replacement {
    pub finished: Finished,
}

impl Replacement {
    pub fn claim(&self, world: &World<'_>) -> NewClaim {
        let mut claim = self.finished.claim.clone();
        let pool = &world.pools[self.finished.pool];
        claim.instance_types = self
            .finished
            .types
            .iter()
            .map(|index| pool.types[*index].name.clone())
            .collect();
        claim.requirements = world
            .interner
            .to_requirements(&self.finished.requirements)
            .to_specs();
        claim
    }

    /// The price it would be launched at.
    pub fn price(&self, world: &mut World<'_>) -> f64 {
        let pool = &world.pools[self.finished.pool];
        let cheapest = self.finished.types.first();
        cheapest
            .and_then(|index| pool.cheapest(&mut world.interner, &self.finished.requirements, *index))
            .map_or(0.0, |offer| offer.price)
    }
}

/// How a probe is made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Probe {
    /// Nodes that have been busy lately are no destinations.
    pub spare_busy_nodes: bool,
    /// The reservation that the candidate gives a place back to; nothing is taken in place of reserved capacity then.
    pub freed_reservation: Option<usize>,
}

/// Simulates life without the candidates.
pub(crate) fn simulate(
    world: &mut World<'_>,
    candidates: &[&Candidate<'_>],
    others: &Others,
    probe: Probe,
    order: &dyn Fn(&World<'_>, &mut Vec<Item>),
) -> Result<Simulated, String> {
    let mut items: Vec<Item> = Vec::new();
    items.extend(&others.pending);
    items.extend(&others.leaving);
    items.extend(candidates.iter().flat_map(|candidate| &candidate.items));
    order(world, &mut items);
    let options = RunOptions {
        reserved: match probe.freed_reservation {
            Some(_) => ReservedOfferingMode::Strict,
            None => ReservedOfferingMode::Fallback,
        },
        freed_reservation: probe.freed_reservation,
        spare_busy_nodes: probe.spare_busy_nodes,
        equal_domains: EqualDomains::FirstByName,
        least_cost: false,
    };
    let mut run = Run::new(world, options);
    for candidate in candidates {
        run.excluded.insert(candidate.node);
        let gives_back = !run.world.options.improvements.replacements_within_limits;
        if let Some(pool) = candidate.pool_index.filter(|_| gives_back) {
            let mut capacity = run.world.nodes[candidate.node].state.capacity();
            capacity.insert(crate::resources::NODES.to_owned(), crate::resources::ONE);
            let capacity = run.world.resources.amounts(&capacity);
            if let Some(limits) = &mut run.limits[pool] {
                for (resource, left) in limits {
                    *left += crate::resources::amount(&capacity, *resource);
                }
            }
        }
        for item in &candidate.items {
            if !run.world.classes[item.class].example.is_terminating() {
                run.count_on_node(candidate.node, item.class, -1);
            }
        }
    }
    let left = run.solve(&items);
    let is_pending = |item: &Item| others.pending.iter().any(|pending| pending.pod == item.pod);
    let stranded: Vec<&Item> = left
        .iter()
        .map(|(item, _)| item)
        .filter(|item| !is_pending(item))
        .collect();
    let problem = if let Some(item) = stranded.first() {
        let (message, _) = run.explain(item.class);
        Some(format!(
            "not all pods would schedule, {} => {message}",
            run.world.classes[item.class].example.metadata.reference()
        ))
    } else {
        // A node that has not come up yet is no place to count on.
        let from_leaving = |item: &Item| others.leaving.iter().any(|leaving| leaving.pod == item.pod);
        run.on_nodes
            .iter()
            .find(|(node, item)| {
                let data = &run.world.nodes[*node];
                !data.initialized && data.state.claim.is_some() && !from_leaving(item) && !is_pending(item)
            })
            .map(|(node, _)| {
                let state = &run.world.nodes[*node].state;
                let claim = state
                    .claim
                    .map(|claim| format!("nodeclaim/{}", claim.metadata.name));
                let node = state.node.map(|node| format!("node/{}", node.metadata.name));
                let names: Vec<String> = claim.into_iter().chain(node).collect();
                format!("would schedule against uninitialized {}", names.join(", "))
            })
    };
    let result = match problem {
        Some(problem) => Err(problem),
        None => launchable(&mut run, &is_pending).map(|claims| Simulated {
            claims,
            on_nodes: std::mem::take(&mut run.on_nodes),
        }),
    };
    run.undo();
    result
}

/// The claims of a run. One that could not be written out leaves its pods without a place: pods that wait may go on
/// waiting, others must not.
fn launchable(run: &mut Run<'_, '_>, is_pending: &dyn Fn(&Item) -> bool) -> Result<Vec<Finished>, String> {
    let mut claims = run.finish_claims(&|item| format!("{}", item.pod));
    for finished in &claims {
        if let Some(problem) = &finished.problem
            && let Some(item) = finished.items.iter().find(|item| !is_pending(item))
        {
            return Err(format!(
                "not all pods would schedule, {} => {problem}",
                run.world.classes[item.class].example.metadata.reference()
            ));
        }
    }
    claims.retain(|finished| finished.problem.is_none());
    Ok(claims)
}

/// Whether giving up these nodes saves money, and what replaces them.
pub(crate) fn consolidate(
    world: &mut World<'_>,
    candidates: &[&Candidate<'_>],
    others: &Others,
    order: &dyn Fn(&World<'_>, &mut Vec<Item>),
) -> Found {
    let probe = Probe {
        spare_busy_nodes: !world.options.improvements.busy_destinations,
        ..Probe::default()
    };
    let Simulated { claims, on_nodes } = match simulate(world, candidates, others, probe, order) {
        Ok(simulated) => simulated,
        Err(problem) => return Found::Nothing(problem),
    };
    let replacements = match cheaper(world, candidates, claims, candidates.len() > 1) {
        Ok(replacements) => replacements,
        Err(why) => return Found::Nothing(why),
    };
    Found::Move(Move {
        replacements,
        on_nodes,
    })
}

/// What to launch so that money is saved, or why none is. `types_follow` leaves types in it that cannot be launched, for the
/// caller to take out.
fn cheaper(
    world: &mut World<'_>,
    candidates: &[&Candidate<'_>],
    claims: Vec<Finished>,
    types_follow: bool,
) -> Result<Vec<Replacement>, String> {
    let budget: f64 = candidates.iter().map(|candidate| candidate.price).sum();
    let many = world.options.improvements.many_to_many_consolidation && candidates.len() > claims.len();
    match claims.len() {
        0 => return Ok(Vec::new()),
        1 => {}
        _ if many => return many_to_many(world, claims, budget),
        count => return Err(format!("Can't remove without creating {count} candidates")),
    }
    let mut finished = claims.into_iter().next().expect("there is one");
    let all_spot = candidates
        .iter()
        .all(|candidate| candidate.capacity_type == labels::CAPACITY_SPOT);
    if all_spot && allows(world, &finished.requirements, labels::CAPACITY_SPOT) {
        return spot_to_spot(world, candidates, finished, budget);
    }
    keep_cheaper(world, &mut finished, budget)?;
    if allows_both(world, &finished.requirements) {
        prefer_spot(world, &mut finished, types_follow)?;
    }
    Ok(vec![Replacement { finished }])
}

/// The same whatever their number is, as long as it is cheaper.
pub(crate) fn cheaper_in_any_number(
    world: &mut World<'_>,
    candidates: &[&Candidate<'_>],
    claims: Vec<Finished>,
) -> Result<Vec<Replacement>, String> {
    if claims.len() < 2 {
        return cheaper(world, candidates, claims, false);
    }
    let all_spot = candidates
        .iter()
        .all(|candidate| candidate.capacity_type == labels::CAPACITY_SPOT);
    if all_spot && !world.options.spot_to_spot_consolidation {
        for finished in &claims {
            if allows(world, &finished.requirements, labels::CAPACITY_SPOT) {
                return Err(NO_SPOT_TO_SPOT.to_owned());
            }
        }
    }
    let budget: f64 = candidates.iter().map(|candidate| candidate.price).sum();
    many_to_many(world, claims, budget)
}

/// Whether what comes may be of this capacity type.
fn allows(world: &mut World<'_>, requirements: &ReqVec, value: &str) -> bool {
    let capacity_type = world.interner.key(labels::CAPACITY_TYPE);
    find(requirements, capacity_type).is_none_or(|id| world.interner.get(id).has(value))
}

fn allows_both(world: &mut World<'_>, requirements: &ReqVec) -> bool {
    allows(world, requirements, labels::CAPACITY_SPOT)
        && allows(world, requirements, labels::CAPACITY_ON_DEMAND)
}

fn only_spot(world: &mut World<'_>, requirements: &mut ReqVec) {
    let capacity_type = world.interner.key(labels::CAPACITY_TYPE);
    let spot = Requirement::one_of(labels::CAPACITY_TYPE, [labels::CAPACITY_SPOT]);
    let spot = world.interner.requirement(spot);
    world.interner.narrow(requirements, capacity_type, spot);
}

/// Where a type can be had as spot, the saving was worked out for that: if there is none, nothing should be launched in
/// its place. Types that are only to be had on demand are left out then, because nothing could be launched as them; where
/// there are no others, it is on demand. If several nodes go, what becomes of their own types is decided first.
fn prefer_spot(world: &mut World<'_>, finished: &mut Finished, types_follow: bool) -> Result<(), String> {
    let mut pinned = finished.requirements.clone();
    only_spot(world, &mut pinned);
    let pool = &world.pools[finished.pool];
    let types: Vec<usize> = finished
        .types
        .iter()
        .copied()
        .filter(|index| pool.cheapest(&mut world.interner, &pinned, *index).is_some())
        .collect();
    let cheapest_is_launched = world.options.improvements.cheapest_is_launched;
    let mut least = |requirements: &ReqVec| {
        let prices = finished.types.iter().map(|index| {
            worst_price(
                pool,
                &mut world.interner,
                requirements,
                *index,
                cheapest_is_launched,
            )
        });
        prices.min_by(f64::total_cmp).unwrap_or(f64::MAX)
    };
    // Whoever launches the cheapest would not take spot where that is the dearer one.
    let spot_is_dearer = cheapest_is_launched && least(&pinned) > least(&finished.requirements);
    if types.is_empty() || spot_is_dearer {
        return Ok(());
    }
    finished.requirements = pinned;
    if types_follow {
        return Ok(());
    }
    finished.types = Arc::new(types);
    meets_min_values(world, finished)
}

/// Several replacements, as long as together they cost less in the worst case.
fn many_to_many(
    world: &mut World<'_>,
    claims: Vec<Finished>,
    budget: f64,
) -> Result<Vec<Replacement>, String> {
    let mut total = 0.0;
    let mut kept = Vec::new();
    let cheapest = world.options.improvements.cheapest_is_launched;
    for mut finished in claims {
        // The cheapest type of each, so that the sum is what it will be; more where `minValues` asks for them.
        let pool = &world.pools[finished.pool];
        let needed = if pool.has_min_values {
            pool.needed_for_min_values(&world.interner, &finished.requirements, &finished.types)
        } else {
            1
        };
        Arc::make_mut(&mut finished.types).truncate(needed.max(1));
        if allows_both(world, &finished.requirements) {
            prefer_spot(world, &mut finished, false)?;
        }
        let pool = &world.pools[finished.pool];
        let worst = finished
            .types
            .iter()
            .map(|index| {
                worst_price(
                    pool,
                    &mut world.interner,
                    &finished.requirements,
                    *index,
                    cheapest,
                )
            })
            .max_by(f64::total_cmp);
        total += worst.unwrap_or(f64::MAX);
        meets_min_values(world, &finished)?;
        kept.push(Replacement { finished });
    }
    if total < budget {
        Ok(kept)
    } else {
        Err("Can't replace with cheaper nodes".to_owned())
    }
}

fn spot_to_spot(
    world: &mut World<'_>,
    candidates: &[&Candidate<'_>],
    mut finished: Finished,
    budget: f64,
) -> Result<Vec<Replacement>, String> {
    if !world.options.spot_to_spot_consolidation {
        return Err(NO_SPOT_TO_SPOT.to_owned());
    }
    only_spot(world, &mut finished.requirements);
    keep_cheaper(world, &mut finished, budget)?;
    if candidates.len() == 1 {
        if finished.types.len() < SPOT_TO_SPOT_TYPES {
            return Err(format!(
                "SpotToSpotConsolidation requires {SPOT_TO_SPOT_TYPES} cheaper instance type options than the current \
                 candidate to consolidate, got {}",
                finished.types.len()
            ));
        }
        let pool = &world.pools[finished.pool];
        let needed = if pool.has_min_values {
            pool.needed_for_min_values(&world.interner, &finished.requirements, &finished.types)
        } else {
            0
        };
        Arc::make_mut(&mut finished.types).truncate(needed.max(SPOT_TO_SPOT_TYPES));
    }
    Ok(vec![Replacement { finished }])
}

/// Keeps types whose worst launch price is below `budget`.
pub(crate) fn keep_cheaper(
    world: &mut World<'_>,
    finished: &mut Finished,
    budget: f64,
) -> Result<(), String> {
    let pool = &world.pools[finished.pool];
    let cheapest = world.options.improvements.cheapest_is_launched;
    let requirements = finished.requirements.clone();
    Arc::make_mut(&mut finished.types)
        .retain(|index| worst_price(pool, &mut world.interner, &requirements, *index, cheapest) < budget);
    meets_min_values(world, finished)?;
    if finished.types.is_empty() {
        return Err("Can't replace with a cheaper node".to_owned());
    }
    Ok(())
}

fn meets_min_values(world: &World<'_>, finished: &Finished) -> Result<(), String> {
    let pool = &world.pools[finished.pool];
    let unmet = pool.unmet_min_values_of(&world.interner, &finished.requirements, &finished.types);
    if !unmet.is_empty() {
        let keys: Vec<&str> = unmet
            .iter()
            .map(|(key, _)| world.interner.key_name(*key))
            .collect();
        return Err(format!(
            "Filtering by price: minValues requirement is not met for label(s) (label(s)=[{}])",
            keys.join(" ")
        ));
    }
    Ok(())
}

/// What a type costs at most, in the capacity type it would be launched as: reserved, else spot, else on demand.
pub(crate) fn worst_price(
    pool: &Pool,
    interner: &mut Interner,
    requirements: &ReqVec,
    type_index: usize,
    cheapest_is_launched: bool,
) -> f64 {
    let mut worst: [Option<f64>; 3] = [None; 3];
    let mut cheapest = f64::MAX;
    for offer in &pool.types[type_index].offers {
        if !offer.launchable() || !interner.compatible(requirements, &offer.requirements, true) {
            continue;
        }
        let rank = if offer.reserved {
            0
        } else if offer.spot {
            1
        } else if offer.on_demand {
            2
        } else {
            continue;
        };
        cheapest = cheapest.min(offer.price);
        worst[rank] = Some(worst[rank].map_or(offer.price, |price: f64| price.max(offer.price)));
    }
    if cheapest_is_launched {
        return cheapest;
    }
    worst.into_iter().flatten().next().unwrap_or(f64::MAX)
}
