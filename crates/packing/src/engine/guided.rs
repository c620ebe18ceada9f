//! A run that follows a shopping list: nodes to create with how many pods of each row they are meant to hold. Whether a pod
//! may go there is asked of the same rules as ever; what does not fit the list goes where it costs least.

use super::choice::Choice;
use super::claim::Settled;
use super::equivalence_class::ClassId;
use super::group::GroupKind;
use super::run::{Item, Refused, Run};

/// How many claims are compared for a pod that is not on the list.
const COMPARED: usize = 96;

/// How often pods that were refused are offered to the nodes of the list again, and to the gaps that are left.
const ASKED_AGAIN: usize = 6;
const GAPS_ASKED: usize = 2;

/// A node on the list.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub pool: usize,
    /// What it is meant to be.
    pub slot: usize,
    /// How many pods of each row it still takes.
    pub quota: Vec<(usize, u32)>,
    claim: Option<usize>,
}

impl Target {
    pub fn new(pool: usize, slot: usize, quota: Vec<(usize, u32)>) -> Self {
        Target {
            pool,
            slot,
            quota,
            claim: None,
        }
    }
}

/// How often the list is made longer for pods that found nothing on it.
const LONGER: usize = 3;

/// The row of each class by which the list says what nodes hold, and the variant it is placed as.
pub(crate) type Rows<'r> = &'r [Option<(usize, usize)>];

impl Run<'_, '_> {
    /// Places pods as the list says, as far as they may. Those that found nothing on it fill what is left of its nodes, then
    /// nodes that `more` adds for them, and at last go where it costs least. Returns what is left.
    pub fn solve_guided(
        &mut self,
        items: &[Item],
        row_of: Rows<'_>,
        more: &mut dyn FnMut(&[Item]) -> Vec<Target>,
    ) -> Vec<(Item, Refused)> {
        let mut rest: Vec<Item> = items.to_vec();
        for round in 0..=LONGER {
            let mut targets = more(&rest);
            let rows = row_of.iter().flatten().map(|(row, _)| row + 1).max();
            let mut takers: Vec<Vec<usize>> = vec![Vec::new(); rows.unwrap_or(0)];
            for (index, target) in targets.iter().enumerate() {
                for (row, _) in &target.quota {
                    takers[*row].push(index);
                }
            }
            let before = rest.len();
            if round == 0 {
                rest.retain(|item| {
                    !row_of[item.class].is_some_and(|(_, variant)| self.is_taken_by_a_node(*item, variant))
                });
            }
            // Where topology lets a pod go changes with every pod that is placed: what was refused is asked again.
            for _ in 0..ASKED_AGAIN {
                let waiting = rest.len();
                rest.retain(|item| {
                    let Some((row, variant)) = row_of[item.class] else {
                        return true;
                    };
                    !self.place_as_listed(*item, variant, row, &mut targets, &mut takers[row])
                });
                if rest.len() == waiting {
                    break;
                }
            }
            for _ in 0..GAPS_ASKED {
                let waiting = rest.len();
                rest.retain(|item| {
                    !row_of[item.class].is_some_and(|(_, variant)| self.fills_a_gap(*item, variant))
                });
                if rest.len() == waiting {
                    break;
                }
            }
            if rest.is_empty() || rest.len() == before {
                break;
            }
        }
        self.solve(&rest)
    }

    /// Whether a claim takes the pod without growing dearer.
    fn fills_a_gap(&mut self, item: Item, variant: usize) -> bool {
        let claims = self.claims.len();
        let Ok(choice) = self
            .world
            .choose(item.class, variant, claims, self.options.equal_domains)
        else {
            return false;
        };
        match self.least_growth(item, variant, &choice) {
            Some((growth, claim, settled)) if growth <= 0.0 => {
                self.put_on_claim(claim, item, settled);
                self.note_placed();
                true
            }
            _ => false,
        }
    }

    /// Whether a node that stands takes the pod, with no more given up than a new node asks for.
    fn is_taken_by_a_node(&mut self, item: Item, last: usize) -> bool {
        for variant in 0..=last {
            let claims = self.claims.len();
            let choice = self
                .world
                .choose(item.class, variant, claims, self.options.equal_domains);
            self.touch(item.class, variant);
            if choice.is_ok_and(|choice| self.try_nodes(item, variant, &choice)) {
                self.note_placed();
                return true;
            }
        }
        false
    }

    fn place_as_listed(
        &mut self,
        item: Item,
        variant: usize,
        row: usize,
        targets: &mut [Target],
        takers: &mut Vec<usize>,
    ) -> bool {
        let claims = self.claims.len();
        let Ok(choice) = self
            .world
            .choose(item.class, variant, claims, self.options.equal_domains)
        else {
            return false;
        };
        // Claims that are there first, those on which the pod crowds others least; then the next that the list has.
        let mut opened: Vec<(i32, usize)> = Vec::new();
        let counted = self.is_counted_by_domain(item.class);
        for (position, index) in takers.iter().enumerate() {
            if let Some(claim) = targets[*index].claim
                && choice.allows(self.world.first_claim_host + claim)
            {
                let crowding = if counted {
                    self.crowding(claim, item.class)
                } else {
                    0
                };
                opened.push((crowding, position));
            }
        }
        if counted {
            opened.sort_unstable();
        }
        let next = takers.iter().position(|index| targets[*index].claim.is_none());
        for position in opened.into_iter().map(|(_, position)| position).chain(next) {
            let index = takers[position];
            if self.offer_target(&mut targets[index], item, variant, &choice) {
                self.note_placed();
                use_up(&mut targets[index], row, takers, position);
                return true;
            }
        }
        false
    }

    fn is_counted_by_domain(&self, class: ClassId) -> bool {
        let world = &*self.world;
        world.classes[class].counted_by.iter().any(|id| {
            let spec = &world.groups[*id].spec;
            spec.key != world.interner.hostname && spec.kind == GroupKind::Spread
        })
    }

    /// By how much a pod of the class makes domains fuller that are full already, of constraints that count it.
    fn crowding(&mut self, claim: usize, class: ClassId) -> i32 {
        let world = &mut *self.world;
        let mut crowding = 0;
        for id in &world.classes[class].counted_by {
            let group = &world.groups[*id];
            let key = group.spec.key;
            if key == world.interner.hostname || group.spec.kind != GroupKind::Spread {
                continue;
            }
            let Some(requirement) = super::intern::find(&self.claims[claim].requirements, key) else {
                continue;
            };
            let domains = world.domains.get_mut(&key).expect("a group's key has domains");
            let could_be_in = domains.set(&world.interner, requirement);
            if let (Some(domain), 1) = (could_be_in.iter().next(), could_be_in.len()) {
                crowding += group.count(domain) - group.least(None);
            }
        }
        crowding
    }

    fn offer_target(&mut self, target: &mut Target, item: Item, variant: usize, choice: &Choice) -> bool {
        match target.claim {
            Some(claim) => match self.claim_takes(claim, item.class, variant, choice) {
                Ok(settled) if settled.slots.contains(target.slot) => {
                    self.put_on_claim(claim, item, settled);
                    true
                }
                _ => false,
            },
            None => {
                if choice.no_new_host.is_some() {
                    return false;
                }
                match self.pool_takes(target.pool, item.class, variant, choice, false) {
                    Ok(settled) if settled.slots.contains(target.slot) => {
                        target.claim = Some(self.claims.len());
                        self.open_claim(target.pool, item, settled);
                        true
                    }
                    _ => false,
                }
            }
        }
    }

    /// Of some claims that take the pod, the one that grows dearer by the least, and by how much.
    fn least_growth(&mut self, item: Item, variant: usize, choice: &Choice) -> Option<(f64, usize, Settled)> {
        let mut spread = std::mem::take(&mut self.spread);
        let words = self.claims.len().div_ceil(64);
        spread.refill((0..words).map(|word| self.open_to(word, item, variant, choice)));
        let mut best: Option<(f64, usize, Settled)> = None;
        let mut seen = 0;
        for claim in spread.iter(COMPARED) {
            let Some(settled) = self.offer(claim, item, variant, choice) else {
                continue;
            };
            let data = &self.claims[claim];
            let pool = &self.world.pools[data.pool];
            let growth = pool.price_at_a_glance(&settled.slots) - pool.price_at_a_glance(&data.slots);
            if best.as_ref().is_none_or(|(least, ..)| growth < *least) {
                best = Some((growth, claim, settled));
            }
            seen += 1;
            if growth <= 0.0 || seen == COMPARED {
                break;
            }
        }
        self.spread = spread;
        best
    }

    /// Into the claim that grows dearer by the least, or a new one if that costs no more.
    pub(super) fn try_least_cost(
        &mut self,
        item: Item,
        variant: usize,
        choice: &Choice,
    ) -> Result<(), Refused> {
        let best = self.least_growth(item, variant, choice);
        let new_node = self.new_claim(item, variant, choice, true);
        match (best, new_node) {
            (Some((growth, claim, settled)), Ok((price, ..))) if growth <= price => {
                self.put_on_claim(claim, item, settled);
                Ok(())
            }
            (_, Ok((_, pool, settled))) => {
                self.open_claim(pool, item, settled);
                Ok(())
            }
            (Some((_, claim, settled)), Err(_)) => {
                self.put_on_claim(claim, item, settled);
                Ok(())
            }
            (None, Err(refused)) => Err(refused),
        }
    }

    /// Claims that may take the pod, in one word of the set.
    fn open_to(&self, word: usize, item: Item, variant: usize, choice: &Choice) -> u64 {
        let count = self.claims.len();
        let all = if (word + 1) * 64 <= count {
            u64::MAX
        } else {
            (1 << (count % 64)) - 1
        };
        let dead = self.world.classes[item.class].variants[variant]
            .dead_claims
            .word(word);
        let mask = match &choice.mask {
            Some(mask) => mask.word(self.world.first_claim_host / 64 + word),
            None => u64::MAX,
        };
        all & !dead & mask
    }
}

fn use_up(target: &mut Target, row: usize, takers: &mut Vec<usize>, position: usize) {
    if let Some((_, left)) = target.quota.iter_mut().find(|(own, _)| *own == row) {
        *left -= 1;
        if *left == 0 {
            takers.remove(position);
        }
    }
}
