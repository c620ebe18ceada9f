//! Which claim of the run under way takes a pod.

use super::choice::Choice;
use super::claim::Settled;
use super::equivalence_class::{ClassId, GroupId};
use super::group::GroupKind;
use super::run::{Item, Run};
use crate::bits::ones;

/// Go's sort keeps the order of equal elements up to this many.
pub(crate) const KEEP_THEIR_ORDER: usize = 12;
/// How many of equal claims that take a pod are compared.
const EQUALS_COMPARED: usize = 32;
/// How many that refuse it are asked once one is found that takes it.
const REFUSALS_TAKEN: usize = 64;
/// What a host that others can no longer use is worth, as a part of the cheapest node.
const PRICE_OF_A_HOST: f64 = 32.0;

impl Run<'_, '_> {
    /// The claims that hold the fewest pods first. Karpenter sorts them before every pod: a few keep their order where they
    /// hold as many, but of more than that it is left to chance which of them comes first. Here the price decides then.
    pub(super) fn try_claims(&mut self, item: Item, variant: usize, choice: &Choice) -> bool {
        let fullest_first = self.world.options.improvements.tighter_packing;
        let by_price = !fullest_first && self.claims.len() > KEEP_THEIR_ORDER;
        let sizes = self.by_size.len();
        for position in 0..sizes {
            let size = if fullest_first {
                sizes - 1 - position
            } else {
                position
            };
            let taken = if by_price {
                self.try_cheapest_first(size, item, variant, choice)
            } else if size < 2 || fullest_first {
                self.try_oldest_first(size, item, variant, choice)
            } else {
                self.try_last_grown_first(size, item, variant, choice)
            };
            if taken {
                return true;
            }
        }
        false
    }

    /// Claims of a size that may take the pod, in one word of the set.
    fn candidates(&self, size: usize, word: usize, item: Item, variant: usize, choice: &Choice) -> u64 {
        let dead = self.world.classes[item.class].variants[variant]
            .dead_claims
            .word(word);
        let candidates = self.by_size[size].word(word) & !dead;
        match &choice.mask {
            Some(mask) => candidates & mask.word(self.world.first_claim_host / 64 + word),
            None => candidates,
        }
    }

    fn try_oldest_first(&mut self, size: usize, item: Item, variant: usize, choice: &Choice) -> bool {
        for word in 0..self.by_size[size].word_count() {
            for bit in ones(self.candidates(size, word, item, variant, choice)) {
                if self.try_claim(word * 64 + bit, item, variant, choice) {
                    return true;
                }
            }
        }
        false
    }

    /// A claim that grows is put before those that had its new size already: what sorting claims by size before every
    /// pod comes to, when equal ones keep their order.
    fn try_last_grown_first(&mut self, size: usize, item: Item, variant: usize, choice: &Choice) -> bool {
        let mut claims: Vec<usize> = Vec::new();
        for word in 0..self.by_size[size].word_count() {
            let candidates = self.candidates(size, word, item, variant, choice);
            claims.extend(ones(candidates).map(|bit| word * 64 + bit));
        }
        let Some(first) = claims.iter().copied().max_by_key(|claim| self.grown[*claim]) else {
            return false;
        };
        if self.try_claim(first, item, variant, choice) {
            return true;
        }
        claims.retain(|claim| *claim != first);
        claims.sort_unstable_by_key(|claim| std::cmp::Reverse(self.grown[*claim]));
        claims
            .into_iter()
            .any(|claim| self.try_claim(claim, item, variant, choice))
    }

    /// Of equal claims the one that grows dearer by the least, and on which the pod is least in the way of others that
    /// spread over hosts. Looks at some that take the pod, from the oldest to the youngest: claims of about the same age hold
    /// pods of about the same size, and where one has no room to spare the next has none either.
    fn try_cheapest_first(&mut self, size: usize, item: Item, variant: usize, choice: &Choice) -> bool {
        let mut spread = std::mem::take(&mut self.spread);
        spread.refill(
            (0..self.by_size[size].word_count())
                .map(|word| self.candidates(size, word, item, variant, choice)),
        );
        let mut best: Option<(f64, usize, Settled)> = None;
        let (mut seen, mut refused) = (0, 0);
        for claim in spread.iter(EQUALS_COMPARED) {
            let Some(settled) = self.offer(claim, item, variant, choice) else {
                refused += 1;
                if best.is_some() && refused > REFUSALS_TAKEN {
                    break;
                }
                continue;
            };
            let data = &self.claims[claim];
            let pool = &self.world.pools[data.pool];
            let growth = pool.price_at_a_glance(&settled.slots) - pool.price_at_a_glance(&data.slots);
            let in_the_way = self.hosts_narrowed(claim, item.class) as f64;
            let cost = growth + in_the_way * pool.price_at_a_glance(&pool.usable) / PRICE_OF_A_HOST;
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, claim, settled));
            }
            seen += 1;
            if cost <= 0.0 || seen == EQUALS_COMPARED {
                break;
            }
        }
        self.spread = spread;
        let Some((_, claim, settled)) = best else {
            return false;
        };
        self.put_on_claim(claim, item, settled);
        true
    }

    /// For how many constraints that count the pod by host it would leave less room on this one.
    fn hosts_narrowed(&self, claim: usize, class: ClassId) -> usize {
        let world = &*self.world;
        let host = world.first_claim_host + claim;
        let narrowed = |id: &&GroupId| {
            let group = &world.groups[**id];
            group.spec.key == world.interner.hostname
                && match group.spec.kind {
                    GroupKind::Spread => group.count(host) <= group.spec.max_skew,
                    GroupKind::AntiAffinity => group.count(host) == 0,
                    GroupKind::Affinity => false,
                }
        };
        world.classes[class].counted_by.iter().filter(narrowed).count()
    }

    fn try_claim(&mut self, claim: usize, item: Item, variant: usize, choice: &Choice) -> bool {
        let Some(settled) = self.offer(claim, item, variant, choice) else {
            return false;
        };
        self.put_on_claim(claim, item, settled);
        true
    }

    /// What a claim would become with the pod. One that never takes it is not asked again.
    pub(super) fn offer(
        &mut self,
        claim: usize,
        item: Item,
        variant: usize,
        choice: &Choice,
    ) -> Option<Settled> {
        let refusal = match self.claim_takes(claim, item.class, variant, choice) {
            Ok(settled) => return Some(settled),
            Err(refusal) => refusal,
        };
        if refusal.for_good {
            self.world.classes[item.class].variants[variant]
                .dead_claims
                .insert(claim);
        }
        None
    }
}
