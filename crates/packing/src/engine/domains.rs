//! The domains of a topology key: which there are, who offers them, and which nodes and claims could be in them.

use ahash::AHashMap;

use super::intern::{Interner, Key, ReqId, ReqVec, find};
use crate::bits::BitSet;
use crate::requirement::Requirement;

#[derive(Clone, Debug)]
pub(crate) struct Domains {
    pub key: Key,
    /// Sorted, so that ties always fall the same way.
    pub names: Vec<String>,
    /// `key In [domain]`, by domain.
    pub pins: Vec<ReqId>,
    /// Pools that offer the domain, by domain.
    pub pools: Vec<BitSet>,
    /// Domain of every node, target or not.
    pub of_node: Vec<Option<usize>>,
    pub nodes_in: Vec<BitSet>,
    /// Claims of the run under way that could still end up in the domain.
    pub claims_in: Vec<BitSet>,
    sets: AHashMap<ReqId, BitSet>,
    choices: AHashMap<BitSet, ReqId>,
}

impl Domains {
    pub fn build(key: Key, names: Vec<String>, interner: &mut Interner) -> Self {
        let key_name = interner.key_name(key).to_owned();
        let pins = names
            .iter()
            .map(|name| interner.requirement(Requirement::one_of(&key_name, [name.as_str()])))
            .collect();
        Domains {
            key,
            pins,
            pools: vec![BitSet::default(); names.len()],
            of_node: Vec::new(),
            nodes_in: vec![BitSet::default(); names.len()],
            claims_in: vec![BitSet::default(); names.len()],
            names,
            sets: AHashMap::new(),
            choices: AHashMap::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn index(&self, name: &str) -> Option<usize> {
        self.names.binary_search_by(|known| known.as_str().cmp(name)).ok()
    }

    /// The domains a requirement allows.
    pub fn set(&mut self, interner: &Interner, requirement: ReqId) -> &BitSet {
        self.sets.entry(requirement).or_insert_with(|| {
            let requirement = interner.get(requirement);
            (0..self.names.len())
                .filter(|index| requirement.has(&self.names[*index]))
                .collect()
        })
    }

    /// The domains a requirement list allows; none means all.
    pub fn set_of(&mut self, interner: &Interner, requirements: &ReqVec) -> Option<BitSet> {
        find(requirements, self.key).map(|requirement| self.set(interner, requirement).clone())
    }

    /// `key In [these]`.
    pub fn choice(&mut self, interner: &mut Interner, domains: &BitSet) -> ReqId {
        if let Some(id) = self.choices.get(domains) {
            return *id;
        }
        let key_name = interner.key_name(self.key).to_owned();
        let names = domains.iter().map(|index| self.names[index].as_str());
        let id = interner.requirement(Requirement::one_of(&key_name, names));
        self.choices.insert(domains.clone(), id);
        id
    }

    /// Notes where a claim could be after its requirements changed.
    pub fn place_claim(&mut self, interner: &Interner, claim: usize, requirements: &ReqVec) {
        let allowed = self.set_of(interner, requirements);
        for (domain, claims) in self.claims_in.iter_mut().enumerate() {
            if allowed.as_ref().is_none_or(|allowed| allowed.contains(domain)) {
                claims.insert(claim);
            } else {
                claims.remove(claim);
            }
        }
    }
}
