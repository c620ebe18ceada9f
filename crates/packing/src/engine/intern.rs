//! Labels and requirements as small integers, with every answer of the algebra remembered: the hot path compares
//! numbers, and each distinct question about requirements is worked out once.

use ahash::AHashMap;
use smallvec::SmallVec;

use crate::labels;
use crate::requirement::Requirement;
use crate::requirements::Requirements;

/// A label key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key(pub u32);

/// A requirement on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReqId(pub u32);

/// Requirements by key, sorted by key.
pub(crate) type ReqVec = SmallVec<[(Key, ReqId); 10]>;

#[derive(Clone, Debug)]
struct KeyInfo {
    name: String,
    well_known: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Interner {
    keys: Vec<KeyInfo>,
    key_ids: AHashMap<String, Key>,
    requirements: Vec<Requirement>,
    requirement_keys: Vec<Key>,
    absence_allowed: Vec<bool>,
    undefined_allowed: Vec<bool>,
    requirement_ids: AHashMap<Requirement, ReqId>,
    intersections: AHashMap<(ReqId, ReqId), ReqId>,
    agreements: AHashMap<(ReqId, ReqId), bool>,
    extra_well_known: Vec<String>,
    pub hostname: Key,
}

impl Interner {
    pub fn new(extra_well_known: &[String]) -> Self {
        let mut interner = Interner {
            keys: Vec::new(),
            key_ids: AHashMap::new(),
            requirements: Vec::new(),
            requirement_keys: Vec::new(),
            absence_allowed: Vec::new(),
            undefined_allowed: Vec::new(),
            requirement_ids: AHashMap::new(),
            intersections: AHashMap::new(),
            agreements: AHashMap::new(),
            extra_well_known: extra_well_known.to_vec(),
            hostname: Key(0),
        };
        interner.hostname = interner.key(labels::HOSTNAME);
        interner
    }

    pub fn key(&mut self, name: &str) -> Key {
        let name = labels::normalized(name);
        if let Some(key) = self.key_ids.get(name) {
            return *key;
        }
        let key = Key(self.keys.len() as u32);
        self.keys.push(KeyInfo {
            name: name.to_owned(),
            well_known: labels::is_well_known(name, &self.extra_well_known),
        });
        self.key_ids.insert(name.to_owned(), key);
        key
    }

    pub fn key_name(&self, key: Key) -> &str {
        &self.keys[key.0 as usize].name
    }

    pub fn is_well_known(&self, key: Key) -> bool {
        self.keys[key.0 as usize].well_known
    }

    pub fn requirement(&mut self, requirement: Requirement) -> ReqId {
        if let Some(id) = self.requirement_ids.get(&requirement) {
            return *id;
        }
        let id = ReqId(self.requirements.len() as u32);
        let key = self.key(&requirement.key);
        self.absence_allowed.push(requirement.allows_absence());
        self.undefined_allowed.push(requirement.allows_undefined());
        self.requirement_keys.push(key);
        self.requirements.push(requirement.clone());
        self.requirement_ids.insert(requirement, id);
        id
    }

    pub fn get(&self, id: ReqId) -> &Requirement {
        &self.requirements[id.0 as usize]
    }

    pub fn allows_absence(&self, id: ReqId) -> bool {
        self.absence_allowed[id.0 as usize]
    }

    pub fn intern(&mut self, requirements: &Requirements) -> ReqVec {
        let mut result: ReqVec = requirements
            .iter()
            .map(|requirement| (self.key(&requirement.key), self.requirement(requirement.clone())))
            .collect();
        result.sort_unstable();
        result
    }

    pub fn intersection(&mut self, left: ReqId, right: ReqId) -> ReqId {
        if left == right {
            return left;
        }
        let pair = (left.min(right), left.max(right));
        if let Some(id) = self.intersections.get(&pair) {
            return *id;
        }
        let merged = self.get(left).intersection(self.get(right));
        let id = self.requirement(merged);
        self.intersections.insert(pair, id);
        id
    }

    /// Whether two requirements on one key can be met together, absence of the label included.
    pub fn agrees(&mut self, left: ReqId, right: ReqId) -> bool {
        if left == right && !self.get(left).is_empty() {
            return true;
        }
        let pair = (left.min(right), left.max(right));
        if let Some(answer) = self.agreements.get(&pair) {
            return *answer;
        }
        let answer = self.get(left).agrees_with(self.get(right));
        self.agreements.insert(pair, answer);
        answer
    }

    /// Whether `existing` can also meet `incoming`. The hostname is left to the caller. What is still to be created may
    /// get labels of which `existing` says nothing.
    pub fn compatible(&mut self, existing: &ReqVec, incoming: &ReqVec, to_be_created: bool) -> bool {
        for &(key, required) in incoming {
            if key == self.hostname {
                continue;
            }
            let met = if let Some(present) = find(existing, key) {
                self.agrees(present, required)
            } else if to_be_created {
                self.is_well_known(key) || self.undefined_allowed[required.0 as usize]
            } else {
                self.allows_absence(required)
            };
            if !met {
                return false;
            }
        }
        true
    }

    /// Whether `incoming` asks for a label of which `existing` says nothing and that nobody else resolves.
    pub fn lacks_label(&self, existing: &ReqVec, incoming: &ReqVec) -> bool {
        incoming.iter().any(|&(key, required)| {
            key != self.hostname
                && find(existing, key).is_none()
                && !self.is_well_known(key)
                && !self.undefined_allowed[required.0 as usize]
        })
    }

    /// `base` narrowed by `added`; the hostname is left out.
    pub fn merge(&mut self, base: &ReqVec, added: &ReqVec) -> ReqVec {
        let mut result = base.clone();
        for &(key, required) in added {
            if key != self.hostname {
                self.narrow(&mut result, key, required);
            }
        }
        result
    }

    pub fn narrow(&mut self, requirements: &mut ReqVec, key: Key, required: ReqId) {
        match requirements.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(index) => requirements[index].1 = self.intersection(requirements[index].1, required),
            Err(index) => requirements.insert(index, (key, required)),
        }
    }

    pub fn to_requirements(&self, requirements: &ReqVec) -> Requirements {
        requirements.iter().map(|(_, id)| self.get(*id).clone()).collect()
    }
}

pub(crate) fn find(requirements: &ReqVec, key: Key) -> Option<ReqId> {
    requirements
        .binary_search_by_key(&key, |(key, _)| *key)
        .ok()
        .map(|index| requirements[index].1)
}
