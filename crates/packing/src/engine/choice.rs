//! Where topology lets a pod go right now: by key the domains, and masks over the nodes and claims worth trying.

use smallvec::SmallVec;

use super::equivalence_class::{ClassId, GroupId};
use super::group::{Group, GroupKind};
use super::intern::{Key, ReqId, find};
use super::world::World;
use crate::bits::BitSet;

/// Which of domains that suit a pod equally well is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EqualDomains {
    FirstByName,
    /// The one that the fewest claims could be in, then by name.
    FewestClaims,
}

/// Domains in the order to try them, each with its class: those of one class are equally good.
type Order = SmallVec<[(usize, usize); 8]>;

/// What the groups on one key leave.
#[derive(Clone, Debug)]
pub(crate) struct KeyChoice {
    pub key: Key,
    pub allowed: BitSet,
    /// The domain has to be decided when the pod is placed.
    pub pinned: Option<Order>,
}

/// What all groups leave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub keys: SmallVec<[KeyChoice; 2]>,
    /// Masks over hosts: nodes, then claims. None means everywhere.
    pub mask: Option<BitSet>,
    /// The group that rules out a host which does not exist yet.
    pub no_new_host: Option<GroupId>,
}

impl Choice {
    /// Whether a node or claim is worth trying.
    pub fn allows(&self, host: usize) -> bool {
        self.mask.as_ref().is_none_or(|mask| mask.contains(host))
    }

    /// Whether some domains are better than others that would do as well.
    pub fn has_second_best(&self) -> bool {
        let differ = |choice: &KeyChoice| {
            let pinned = choice.pinned.as_ref();
            pinned.is_some_and(|order| order.last().is_some_and(|(_, class)| *class > 0))
        };
        self.keys.iter().any(differ)
    }
}

/// The group that leaves nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoDomain(pub GroupId);

impl World<'_> {
    /// Works out where the groups of a variant let a pod go. `claims` is how many claims there are.
    pub fn choose(
        &mut self,
        class: ClassId,
        variant: usize,
        claims: usize,
        equal: EqualDomains,
    ) -> Result<Choice, NoDomain> {
        let mut choice = Choice::default();
        let group_count = self.classes[class].variants[variant].groups.len();
        let total = group_count + self.classes[class].kept_away_by.len();
        if total == 0 {
            return Ok(choice);
        }
        let mut ranks: SmallVec<[(Key, GroupId); 4]> = SmallVec::new();
        for position in 0..total {
            let class_data = &self.classes[class];
            let variant_data = &class_data.variants[variant];
            let id = if position < group_count {
                variant_data.groups[position]
            } else {
                class_data.kept_away_by[position - group_count]
            };
            let selects = class_data.counted_by.binary_search(&id).is_ok();
            let group = &self.groups[id];
            let key = group.spec.key;
            let own = find(&variant_data.strict, key);
            if key == self.interner.hostname {
                let mask = self.hosts_allowed(group, selects, own, claims);
                if let Some(mask) = mask {
                    if group.spec.kind == GroupKind::Affinity {
                        choice.no_new_host = Some(id);
                    }
                    match &mut choice.mask {
                        Some(combined) => combined.intersect_with(&mask),
                        None => choice.mask = Some(mask),
                    }
                }
                continue;
            }
            let pod_domains = match own {
                Some(own) => {
                    let domains = self.domains.get_mut(&key).expect("a group's key has domains");
                    Some(domains.set(&self.interner, own).clone())
                }
                None => None,
            };
            let group = &self.groups[id];
            let (allowed, pin) = allowed_domains(
                group,
                selects,
                pod_domains.as_ref(),
                self.options.improvements.commit_domains_early,
            );
            if allowed.is_empty() {
                return Err(NoDomain(id));
            }
            if pin && group.spec.kind == GroupKind::Spread {
                ranks.push((key, id));
            }
            match choice.keys.iter_mut().find(|choice| choice.key == key) {
                Some(present) => {
                    present.allowed.intersect_with(&allowed);
                    if pin {
                        present.pinned.get_or_insert_default();
                    }
                    if present.allowed.is_empty() {
                        return Err(NoDomain(id));
                    }
                }
                None => choice.keys.push(KeyChoice {
                    key,
                    allowed,
                    pinned: pin.then(Order::new),
                }),
            }
        }
        choice.keys.sort_unstable_by_key(|choice| choice.key);
        for key_choice in &mut choice.keys {
            if key_choice.pinned.is_some() {
                key_choice.pinned = Some(self.order(key_choice, &ranks, equal));
            }
            let domains = &self.domains[&key_choice.key];
            let mut mask = BitSet::default();
            for domain in key_choice.allowed.iter() {
                mask.union_with(&domains.nodes_in[domain]);
                union_shifted(&mut mask, &domains.claims_in[domain], self.first_claim_host);
            }
            match &mut choice.mask {
                Some(combined) => combined.intersect_with(&mask),
                None => choice.mask = Some(mask),
            }
        }
        Ok(choice)
    }

    /// Where a group by host lets a pod go that names these hosts itself, if it names any.
    fn hosts_allowed(
        &self,
        group: &Group,
        selects: bool,
        own: Option<ReqId>,
        claims: usize,
    ) -> Option<BitSet> {
        let named = own.map(|own| self.interner.get(own));
        let occupied_named = || match named {
            None => !group.is_unoccupied(),
            Some(named) => group
                .occupied
                .iter()
                .any(|host| self.nodes.get(host).is_some_and(|node| named.has(&node.hostname))),
        };
        host_mask(
            group,
            selects,
            occupied_named,
            self.first_claim_host + claims,
            self.options
                .improvements
                .hostname_spread_as_kube_scheduler
                .then_some(self.nodes.len()),
            self.first_claim_host,
        )
    }

    /// The allowed domains of a key, the least crowded first, each with the class of those that are as good.
    fn order(&self, choice: &KeyChoice, ranks: &[(Key, GroupId)], equal: EqualDomains) -> Order {
        let domains = &self.domains[&choice.key];
        let rank = |domain: usize| -> SmallVec<[i32; 4]> {
            ranks
                .iter()
                .filter(|(key, _)| *key == choice.key)
                .map(|(_, id)| self.groups[*id].count(domain))
                .collect()
        };
        let crowd = |domain: usize| match equal {
            EqualDomains::FirstByName => 0,
            EqualDomains::FewestClaims => domains.claims_in[domain].len(),
        };
        let mut ranked: Vec<(SmallVec<[i32; 4]>, usize, usize)> = choice
            .allowed
            .iter()
            .map(|domain| (rank(domain), crowd(domain), domain))
            .collect();
        ranked.sort();
        let mut class = 0;
        let mut order = Order::new();
        for (position, (own, _, domain)) in ranked.iter().enumerate() {
            class += usize::from(position > 0 && ranked[position - 1].0 != *own);
            order.push((*domain, class));
        }
        order
    }
}

/// Adds a claim set to a host set; claims start at a word's boundary.
fn union_shifted(mask: &mut BitSet, claims: &BitSet, first_claim_host: usize) {
    if claims.is_empty() {
        return;
    }
    mask.union_words(claims, first_claim_host / 64);
}

fn host_mask(
    group: &Group,
    selects: bool,
    occupied: impl Fn() -> bool,
    hosts: usize,
    as_kube_scheduler: Option<usize>,
    first_claim_host: usize,
) -> Option<BitSet> {
    let without = |excluded: &BitSet| {
        let mut mask = BitSet::full(hosts);
        mask.subtract(excluded);
        mask
    };
    match group.spec.kind {
        GroupKind::Affinity => {
            let starts = selects && (group.is_unoccupied() || !occupied());
            (!starts).then(|| group.occupied.clone())
        }
        GroupKind::AntiAffinity => Some(without(&group.occupied)),
        GroupKind::Spread => {
            let Some(nodes) = as_kube_scheduler else {
                return Some(without(if selects { &group.at_skew } else { &group.over_skew }));
            };
            // The emptiest host there is sets the least; a host that could be created is not there yet.
            let known = || (0..nodes).chain(first_claim_host..hosts);
            let least = known().map(|host| group.count(host)).min().unwrap_or(0);
            let own = i32::from(selects);
            Some(
                known()
                    .filter(|host| group.count(*host) + own - least <= group.spec.max_skew)
                    .collect(),
            )
        }
    }
}

/// The domains a group allows, and whether one has to be picked at once.
fn allowed_domains(
    group: &Group,
    selects: bool,
    pod_domains: Option<&BitSet>,
    commit_early: bool,
) -> (BitSet, bool) {
    let required = |domain: usize| pod_domains.is_none_or(|domains| domains.contains(domain));
    match group.spec.kind {
        GroupKind::Spread => {
            let least = i64::from(group.least(pod_domains));
            let own = i64::from(selects);
            let within = |count: i32| i64::from(count) + own - least <= i64::from(group.spec.max_skew);
            (
                group
                    .domains()
                    .filter(|(_, count)| within(*count))
                    .map(|(domain, _)| domain)
                    .collect(),
                true,
            )
        }
        GroupKind::Affinity => {
            let occupied: BitSet = group.occupied.iter().filter(|domain| required(*domain)).collect();
            if occupied.is_empty() && selects {
                let any = group
                    .domains()
                    .map(|(domain, _)| domain)
                    .filter(|domain| required(*domain))
                    .collect();
                return (any, true);
            }
            (occupied, false)
        }
        GroupKind::AntiAffinity => {
            let free = |(domain, count): &(usize, i32)| *count == 0 && required(*domain);
            (
                group.domains().filter(free).map(|(domain, _)| domain).collect(),
                commit_early,
            )
        }
    }
}
