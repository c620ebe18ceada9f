//! Topology groups: one spread constraint, affinity or anti-affinity term, whoever shares it, and how many pods it
//! counts in each domain.

use std::collections::BTreeSet;

use super::intern::{Key, ReqVec};
use crate::bits::BitSet;
use crate::model::{LabelSelector, StringMap, Toleration};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum GroupKind {
    Affinity,
    AntiAffinity,
    Spread,
}

impl GroupKind {
    pub fn describe(self) -> &'static str {
        match self {
            GroupKind::Affinity => "pod affinity",
            GroupKind::AntiAffinity => "pod anti-affinity",
            GroupKind::Spread => "topology spread",
        }
    }
}

/// Which nodes take part in a spread constraint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct NodeFilter {
    /// Any of these; none means every node.
    pub alternatives: Vec<ReqVec>,
    pub honor_affinity: bool,
    pub honor_taints: bool,
    pub tolerations: Vec<Toleration>,
}

impl NodeFilter {
    pub fn is_trivial(&self) -> bool {
        !self.honor_taints
            && (!self.honor_affinity
                || self.alternatives.is_empty()
                || self.alternatives.iter().any(ReqVec::is_empty))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupSpec {
    pub kind: GroupKind,
    pub key: Key,
    pub namespaces: BTreeSet<String>,
    /// A missing selector selects nothing.
    pub selector: Option<LabelSelector>,
    pub max_skew: i32,
    pub min_domains: Option<i32>,
    pub filter: NodeFilter,
}

impl GroupSpec {
    pub fn selects(&self, namespace: &str, labels: &StringMap) -> bool {
        self.namespaces.contains(namespace)
            && self
                .selector
                .as_ref()
                .is_some_and(|selector| selector.matches(labels))
    }
}

/// A domain the group does not know.
const UNKNOWN: i32 = -1;

#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub spec: GroupSpec,
    /// By domain of the key, or by host.
    counts: Vec<i32>,
    /// Domains with a pod.
    pub occupied: BitSet,
    occupied_count: usize,
    /// Hosts that hold `maxSkew` or more, and hosts that hold more.
    pub at_skew: BitSet,
    pub over_skew: BitSet,
}

impl Group {
    pub fn new(spec: GroupSpec) -> Self {
        Group {
            spec,
            counts: Vec::new(),
            occupied: BitSet::default(),
            occupied_count: 0,
            at_skew: BitSet::default(),
            over_skew: BitSet::default(),
        }
    }

    pub fn register(&mut self, domain: usize) {
        if domain >= self.counts.len() {
            self.counts.resize(domain + 1, UNKNOWN);
        }
        if self.counts[domain] == UNKNOWN {
            self.counts[domain] = 0;
        }
    }

    pub fn count(&self, domain: usize) -> i32 {
        self.counts.get(domain).copied().unwrap_or(0).max(0)
    }

    /// Registered domains with their counts.
    pub fn domains(&self) -> impl Iterator<Item = (usize, i32)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count != UNKNOWN)
            .map(|(domain, count)| (domain, *count))
    }

    pub fn is_unoccupied(&self) -> bool {
        self.occupied_count == 0
    }

    /// Counts pods in a domain, or takes them back. Says whether the group did not know the domain before.
    pub fn change(&mut self, domain: usize, by: i32) -> bool {
        let opened = self.counts.get(domain).is_none_or(|count| *count == UNKNOWN);
        self.register(domain);
        let count = &mut self.counts[domain];
        let before = *count;
        *count += by;
        let after = *count;
        if before <= 0 && after > 0 {
            self.occupied.insert(domain);
            self.occupied_count += 1;
        } else if before > 0 && after <= 0 {
            self.occupied.remove(domain);
            self.occupied_count -= 1;
        }
        if self.spec.kind == GroupKind::Spread {
            let skew = self.spec.max_skew;
            set(&mut self.at_skew, domain, after >= skew);
            set(&mut self.over_skew, domain, after > skew);
        }
        opened
    }

    /// A domain that was opened by a pod goes when the pod is taken back: an empty one would hold up others.
    pub fn forget(&mut self, domain: usize) {
        self.counts[domain] = UNKNOWN;
    }

    /// The least count over the domains the pod could go to, as the skew is measured against it.
    pub fn least(&self, supported: Option<&BitSet>) -> i32 {
        let mut least = i32::MAX;
        let mut domains = 0;
        for (domain, count) in self.domains() {
            if supported.is_none_or(|supported| supported.contains(domain)) {
                domains += 1;
                least = least.min(count);
            }
        }
        if self.spec.min_domains.is_some_and(|required| domains < required) {
            0
        } else {
            least
        }
    }
}

fn set(bits: &mut BitSet, bit: usize, value: bool) {
    if value { bits.insert(bit) } else { bits.remove(bit) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Group, GroupKind, GroupSpec, NodeFilter};
    use crate::engine::intern::Interner;

    #[test]
    fn a_domain_that_a_pod_opened_goes_when_the_pod_is_taken_back() {
        let mut interner = Interner::new(&[]);
        let mut group = Group::new(GroupSpec {
            kind: GroupKind::Spread,
            key: interner.key("rack"),
            namespaces: BTreeSet::new(),
            selector: None,
            max_skew: 1,
            min_domains: None,
            filter: NodeFilter::default(),
        });
        group.register(0);
        assert!(!group.change(0, 2), "known before");
        assert!(group.change(3, 1), "opened");
        assert!(!group.change(3, 1), "known by now");
        group.change(3, -1);
        group.change(3, -1);
        assert_eq!(group.least(None), 0, "the empty domain would hold up others");
        group.forget(3);
        assert_eq!(group.domains().collect::<Vec<_>>(), [(0, 2)]);
        assert_eq!(group.least(None), 2);
    }
}
