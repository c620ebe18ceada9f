//! NodePools that hold so many nodes, whatever pods there are (`spec.replicas`).

use std::collections::BTreeSet;

use crate::disrupt::{is_asked_to_stay, reschedule_cost};
use crate::engine::nodes::{self, StateNode};
use crate::labels;
use crate::model::{InstanceType, NewClaim, NodePool, Offering, Pod, Snapshot};
use crate::requirement::Requirement;
use crate::requirements::{Requirements, Undefined};
use crate::resources;

/// What a static NodePool needs to hold as many nodes as it says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replicas {
    pub create: Vec<NewClaim>,
    /// Names of NodeClaims that are too many.
    pub delete: Vec<String>,
    /// How many nodes are missing that `limits.nodes` does not allow, or that no instance type can be had for.
    pub missing: usize,
}

/// What is to be created or deleted so that a static NodePool holds what it says. Nodes that are being replaced count as long
/// as their replacements may still be on their way, but no node goes because of them.
pub fn replicas(snapshot: &Snapshot, name: &str) -> Replicas {
    let Some(pool) = snapshot
        .node_pools
        .iter()
        .find(|pool| pool.metadata.name == name && pool.metadata.deletion_timestamp.is_none())
    else {
        return Replicas::default();
    };
    let Some(desired) = pool.spec.replicas else {
        return Replicas::default();
    };
    let desired = usize::try_from(desired).unwrap_or(0);
    let own = StaticPool::new(snapshot, pool);
    if own.active.len() > desired {
        return Replicas {
            delete: own.first_to_go(own.active.len() - desired),
            ..Replicas::default()
        };
    }
    if own.active.len() + own.replaced >= desired || !is_ready(pool) {
        return Replicas::default();
    }
    let lacking = desired - own.active.len();
    let create: Vec<NewClaim> = match own.claim() {
        Some(claim) => vec![claim; lacking.min(own.room())],
        None => Vec::new(),
    };
    Replicas {
        missing: lacking - create.len(),
        create,
        delete: Vec::new(),
    }
}

/// A static NodePool as it stands.
pub(crate) struct StaticPool<'a> {
    snapshot: &'a Snapshot,
    pool: &'a NodePool,
    requirements: Requirements,
    /// Claims that stay.
    active: Vec<StateNode<'a>>,
    /// Claims that wait for their replacements.
    replaced: usize,
    deleting: usize,
}

impl<'a> StaticPool<'a> {
    pub fn new(snapshot: &'a Snapshot, pool: &'a NodePool) -> Self {
        let name = &pool.metadata.name;
        let mut own = StaticPool {
            snapshot,
            pool,
            requirements: template(pool),
            active: Vec::new(),
            replaced: 0,
            deleting: 0,
        };
        for state in nodes::join(snapshot) {
            let Some(claim) = state.claim else { continue };
            if claim.metadata.labels.get(labels::NODE_POOL) != Some(name) {
                continue;
            }
            if claim.metadata.deletion_timestamp.is_some() || claim.is_true("InstanceTerminating") {
                own.deleting += 1;
            } else if state.marked {
                own.replaced += 1;
            } else {
                own.active.push(state);
            }
        }
        own
    }

    /// Whether it has more nodes than it should: what is replaced now would only be too many.
    pub fn scales_down(&self) -> bool {
        let desired = usize::try_from(self.pool.spec.replicas.unwrap_or(0)).unwrap_or(0);
        self.active.len() + self.replaced > desired
    }

    /// How many more nodes `limits.nodes` leaves.
    pub fn room(&self) -> usize {
        let Some(limit) = self.pool.spec.limits.get(resources::NODES) else {
            return usize::MAX;
        };
        let limit = usize::try_from(limit.value()).unwrap_or(0);
        limit.saturating_sub(self.active.len() + self.replaced + self.deleting)
    }

    /// A node of the pool's template, if one can be launched.
    pub fn claim(&self) -> Option<NewClaim> {
        let mut priced: Vec<(f64, usize, &InstanceType, &Offering)> = Vec::new();
        for (place, kind) in self.types().enumerate() {
            let cheapest = self
                .offerings(kind)
                .filter(|offering| is_launchable(offering))
                .min_by(|left, right| left.price.total_cmp(&right.price));
            if let Some(offering) = cheapest {
                priced.push((offering.price, place, kind, offering));
            }
        }
        priced.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
        priced.truncate(self.snapshot.options.max_instance_types);
        let (price, _, _, cheapest) = *priced.first()?;
        let one = |key: &str| {
            let own = cheapest.requirements.iter().find(|own| own.key == key);
            own.and_then(|own| own.values.first().cloned())
                .unwrap_or_default()
        };
        Some(NewClaim {
            node_pool: self.pool.metadata.name.clone(),
            requirements: self.requirements.to_specs(),
            instance_types: priced.iter().map(|(_, _, kind, _)| kind.name.clone()).collect(),
            cheapest_price: price,
            cheapest_zone: one(labels::ZONE),
            cheapest_capacity_type: one(labels::CAPACITY_TYPE),
            ..NewClaim::default()
        })
    }

    /// Whether nothing but places in reservations would do, and none is free.
    pub fn reservations_are_full(&self) -> bool {
        self.types()
            .flat_map(|kind| self.offerings(kind))
            .all(|offering| is_reserved(offering) && !is_launchable(offering))
    }

    /// Whether a node that goes leaves a place in a reservation that is still offered.
    pub fn gives_back_a_place(&self, capacity_type: &str, reservation: Option<&str>) -> bool {
        let label = &self.snapshot.options.reservation_label;
        let offered: BTreeSet<&str> = self
            .types()
            .flat_map(|kind| self.offerings(kind))
            .filter(|offering| offering.available && is_reserved(offering))
            .flat_map(|offering| &offering.requirements)
            .filter(|own| own.key == *label)
            .flat_map(|own| own.values.iter().map(String::as_str))
            .collect();
        capacity_type == labels::CAPACITY_RESERVED && reservation.is_some_and(|id| offered.contains(id))
    }

    fn types(&self) -> impl Iterator<Item = &'a InstanceType> + '_ {
        let all = self.snapshot.instance_types.get(&self.pool.metadata.name);
        all.into_iter().flatten().filter(|kind| {
            let own = Requirements::from_specs(&kind.requirements);
            self.requirements.intersects(&own).is_ok()
        })
    }

    fn offerings(&self, kind: &'a InstanceType) -> impl Iterator<Item = &'a Offering> + '_ {
        let well_known = Undefined::WellKnown(&self.snapshot.options.well_known_labels);
        kind.offerings.iter().filter(move |offering| {
            let own = Requirements::from_specs(&offering.requirements);
            self.requirements.compatible(&own, well_known).is_ok()
        })
    }

    /// The claims that are least missed: never launched, then empty, then what is moved most easily; last those with pods that
    /// ask to be left alone.
    fn first_to_go(&self, count: usize) -> Vec<String> {
        let rank = |state: &StateNode<'a>| -> (u8, f64) {
            if state
                .claim
                .is_some_and(|claim| claim.status.provider_id.is_empty())
            {
                return (0, 0.0);
            }
            let name = state.node.map_or("", |node| node.metadata.name.as_str());
            let pods: Vec<&Pod> = self
                .snapshot
                .bound_pods
                .iter()
                .filter(|pod| !name.is_empty() && pod.spec.node_name == name && !pod.is_terminal())
                .collect();
            let now = self.snapshot.options.now.as_deref();
            let stays = pods.iter().any(|pod| is_asked_to_stay(pod, now));
            let empty = pods.iter().all(|pod| pod.is_owned_by_daemon_set());
            let rank = if stays { 3 } else { 2 - u8::from(empty) };
            (rank, if empty { 0.0 } else { reschedule_cost(pods) })
        };
        let mut ranked: Vec<((u8, f64), &str)> = self
            .active
            .iter()
            .filter_map(|state| Some((rank(state), state.claim?.metadata.name.as_str())))
            .collect();
        ranked.sort_by(|(left, one), (right, other)| {
            left.0
                .cmp(&right.0)
                .then(left.1.total_cmp(&right.1))
                .then_with(|| one.cmp(other))
        });
        ranked
            .into_iter()
            .take(count)
            .map(|(_, name)| name.to_owned())
            .collect()
    }
}

/// What every node of a pool has.
pub(crate) fn template(pool: &NodePool) -> Requirements {
    let template = &pool.spec.template;
    let mut requirements = Requirements::from_specs(&template.spec.requirements);
    requirements.add_all(&Requirements::from_labels(&template.metadata.labels));
    requirements.add(Requirement::one_of(
        labels::NODE_POOL,
        [pool.metadata.name.as_str()],
    ));
    if let Some(class) = &template.spec.node_class_ref {
        let key = format!("{}/{}", class.group, class.kind.to_lowercase());
        requirements.add(Requirement::one_of(&key, [class.name.as_str()]));
    }
    requirements
}

/// Whether somebody fills the pool up again when a node is gone.
pub(crate) fn is_refilled(pool: &NodePool) -> bool {
    is_ready(pool) && pool.metadata.deletion_timestamp.is_none()
}

fn is_ready(pool: &NodePool) -> bool {
    let conditions = &pool.status.conditions;
    !conditions
        .iter()
        .any(|condition| condition.kind == "Ready" && condition.status != "True")
}

fn is_reserved(offering: &Offering) -> bool {
    offering.requirements.iter().any(|own| {
        own.key == labels::CAPACITY_TYPE && own.values.iter().any(|value| value == labels::CAPACITY_RESERVED)
    })
}

/// Whether a node could be launched into it now: a full reservation is healthy but takes nothing.
fn is_launchable(offering: &Offering) -> bool {
    offering.available && (!is_reserved(offering) || offering.reservation_capacity > 0)
}
