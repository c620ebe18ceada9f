//! What a case expects after pods were placed.

use std::collections::{BTreeMap, BTreeSet};

use slipway_packing::labels;
use slipway_packing::model::{NewClaim, Node};
use slipway_packing::requirement::Requirement;
use slipway_packing::requirements::Requirements;

use super::environment::Environment;
use super::words;

const QUESTIONS: [&str; 23] = [
    "alike",
    "apart",
    "claim",
    "claims",
    "differ",
    "few-types",
    "fit",
    "gap",
    "left",
    "message",
    "no",
    "nodes",
    "ok",
    "on",
    "placed",
    "price",
    "refused",
    "requests",
    "same",
    "skew",
    "taints",
    "types-of",
    "used-pools",
];

impl Environment {
    /// One line that asks a question; false if the line is not of this kind.
    pub fn expect(&mut self, line: &[&str]) -> bool {
        if !QUESTIONS.contains(&line[0]) {
            return false;
        }
        self.asked += 1;
        self.settle();
        match line[0] {
            "ok" => {
                for name in self.all_names(&line[1..]) {
                    assert!(
                        self.pod(&name).is_some(),
                        "{name} is not scheduled: {:?}",
                        self.plan.unschedulable
                    );
                }
            }
            "no" => {
                for name in self.all_names(&line[1..]) {
                    assert!(self.pod(&name).is_none(), "{name} is scheduled");
                }
            }
            "on" => self.expect_labels(line[1], &line[2..]),
            "same" => {
                let nodes = self.nodes_of(&line[1..]);
                assert_eq!(nodes.iter().collect::<BTreeSet<_>>().len(), 1, "{nodes:?}");
            }
            "apart" => {
                let nodes = self.nodes_of(&line[1..]);
                assert_eq!(
                    nodes.iter().collect::<BTreeSet<_>>().len(),
                    nodes.len(),
                    "{nodes:?}"
                );
            }
            // The nodes of two pods differ in a label, or agree in it.
            "differ" | "alike" => {
                let key = words::key(line[1]);
                let values: Vec<String> = self
                    .nodes_of(&line[2..])
                    .iter()
                    .map(|node| self.node(node).metadata.labels[&key].clone())
                    .collect();
                let distinct = values.iter().collect::<BTreeSet<_>>().len();
                assert_eq!(
                    distinct,
                    if line[0] == "alike" { 1 } else { values.len() },
                    "{values:?}"
                );
            }
            "nodes" => number(self.snapshot.nodes.len(), line[1], "nodes"),
            "claims" => number(self.plan.new_claims.len(), line[1], "claims"),
            "placed" => number(self.snapshot.bound_pods.len(), line[1], "pods placed"),
            "left" => number(self.plan.unschedulable.len(), line[1], "pods left"),
            "skew" => self.expect_skew(&line[1..]),
            "gap" => {
                let counts = self.counts(line[1], line.get(3).copied());
                let gap = counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0);
                number(gap, line[2], "between the fullest domain and the emptiest");
            }
            "types-of" => {
                let mut types = self.claim(line[1]).instance_types.to_vec();
                types.sort();
                let mut expected: Vec<&str> = line[2..].to_vec();
                expected.sort_unstable();
                assert_eq!(types, expected);
            }
            "few-types" => number(self.claim(line[1]).instance_types.len(), line[2], "types"),
            "message" => {
                let text = line[2..].join(" ");
                let name = format!("default/{}", line[1]);
                let refusal = self.plan.unschedulable.iter().find(|refusal| refusal.pod == name);
                let refusal = refusal.unwrap_or_else(|| panic!("{} is not refused", line[1]));
                assert!(refusal.message.contains(&text), "{:?}", refusal.message);
            }
            "refused" => {
                let name = format!("default/{}", line[1]);
                let refusal = self.plan.unschedulable.iter().find(|refusal| refusal.pod == name);
                let refusal = refusal.unwrap_or_else(|| panic!("{} is not refused", line[1]));
                assert_eq!(format!("{:?}", refusal.reason), line[2], "{refusal:?}");
            }
            "claim" => self.expect_claim(line[1], &line[2..]),
            "requests" => {
                let claim = self.claim(line[1]);
                for (name, amount) in words::amounts(line[2]) {
                    assert_eq!(
                        claim.requests.get(&name),
                        Some(&amount),
                        "{name} of {:?}",
                        claim.requests
                    );
                }
            }
            "taints" => {
                let node = self.node(&self.node_name(line[1]));
                let own: Vec<String> = node
                    .spec
                    .taints
                    .iter()
                    .map(|taint| format!("{}={}:{}", taint.key, taint.value, taint.effect))
                    .collect();
                for taint in &line[2..] {
                    assert!(own.iter().any(|own| own == taint), "{taint} is not among {own:?}");
                }
                assert_eq!(own.len(), line.len() - 2, "{own:?}");
            }
            // The claim of a pod costs no more than the cheapest offering there is.
            "price" => {
                let least = self
                    .types
                    .iter()
                    .flat_map(|kind| &kind.offerings)
                    .map(|own| own.price)
                    .fold(f64::MAX, f64::min);
                let own = self.claim(line[1]).cheapest_price;
                assert!((own - least).abs() < 1e-9, "{own} is not {least}");
            }
            // Every type a claim lists has the label, or an offering with all of them.
            "fit" => self.expect_types_fit(line[1], &line[2..]),
            "used-pools" => {
                let mut own: Vec<&str> = self
                    .snapshot
                    .nodes
                    .iter()
                    .filter_map(|node| node.metadata.labels.get(labels::NODE_POOL).map(String::as_str))
                    .collect();
                own.sort_unstable();
                own.dedup();
                let mut expected = line[1..].to_vec();
                expected.sort_unstable();
                assert_eq!(own, expected);
            }
            other => panic!("unknown question {other}"),
        }
        true
    }

    fn all_names(&self, line: &[&str]) -> Vec<String> {
        line.iter().flat_map(|word| self.names(word)).collect()
    }

    fn nodes_of(&self, line: &[&str]) -> Vec<String> {
        line.iter()
            .flat_map(|word| {
                if word.starts_with('@') || !self.is_pod(word) {
                    return vec![self.node_name(word)];
                }
                self.names(word)
                    .iter()
                    .map(|name| self.node_name(&format!("@{name}")))
                    .collect()
            })
            .collect()
    }

    fn is_pod(&self, word: &str) -> bool {
        !self.snapshot.nodes.iter().any(|node| node.metadata.name == *word)
    }

    fn claim(&self, pod: &str) -> &NewClaim {
        let name = self
            .claim_of
            .get(pod)
            .or_else(|| self.claim_of.get(&format!("{pod}-0")));
        name.unwrap_or_else(|| panic!("{pod} is on no new claim: {:?}", self.plan.unschedulable))
    }

    fn expect_labels(&self, pod: &str, line: &[&str]) {
        for name in self.names(pod) {
            let node = self.node(&self.node_name(&format!("@{name}")));
            for word in line {
                assert!(
                    holds(node, word),
                    "{word} does not hold for the node of {name}: {:?}",
                    node.metadata.labels
                );
            }
        }
    }

    fn expect_claim(&self, pod: &str, line: &[&str]) {
        let claim = self.claim(pod);
        let own = Requirements::from_specs(&claim.requirements);
        for word in line {
            if let Some(name) = word.strip_prefix("pool:") {
                assert_eq!(claim.node_pool, name);
                continue;
            }
            if *word == "relaxed" {
                assert!(claim.min_values_relaxed, "{claim:?}");
                continue;
            }
            let spec = words::requirement(word);
            // A word like `!key` says that the claim does not mention the label.
            let expected = Requirement::new(&spec.key, spec.operator, spec.values.clone(), spec.min_values);
            // The types are listed beside the requirements.
            if spec.key == labels::INSTANCE_TYPE {
                let own: BTreeSet<&String> = claim.instance_types.iter().collect();
                assert_eq!(own, spec.values.iter().collect::<BTreeSet<_>>());
                continue;
            }
            match own.get(&spec.key) {
                None => assert!(
                    word.starts_with('!'),
                    "{word} is not among {:?}",
                    claim.requirements
                ),
                Some(own) => assert_eq!(own.to_string(), expected.to_string(), "{:?}", claim.requirements),
            }
        }
    }

    fn expect_types_fit(&self, pod: &str, line: &[&str]) {
        let claim = self.claim(pod);
        let required = Requirements::from_specs(
            &line
                .iter()
                .map(|word| words::requirement(word))
                .collect::<Vec<_>>(),
        );
        assert!(!claim.instance_types.is_empty());
        for name in &claim.instance_types {
            let kind = self.types.iter().find(|kind| kind.name == *name).expect("a type");
            let own = Requirements::from_specs(&kind.requirements);
            assert!(own.intersects(&required).is_ok(), "{name}");
            let offered = kind.offerings.iter().any(|offering| {
                offering.available
                    && Requirements::from_specs(&offering.requirements)
                        .intersects(&required)
                        .is_ok()
            });
            assert!(offered, "{name}");
        }
    }

    /// How many pods with these labels run in each domain, sorted.
    fn counts(&self, key: &str, by: Option<&str>) -> Vec<usize> {
        let key = words::key(key);
        let selected = words::label_map(by.map_or("", |by| by.strip_prefix("by=").expect("by=")));
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for bound in &self.snapshot.bound_pods {
            let counted = bound.is_active() && bound.metadata.namespace == "default";
            let matches = selected
                .iter()
                .all(|(key, value)| bound.metadata.labels.get(key) == Some(value));
            let node = self
                .snapshot
                .nodes
                .iter()
                .find(|node| node.metadata.name == bound.spec.node_name);
            let domain = node.and_then(|node| node.metadata.labels.get(&key));
            if counted
                && matches
                && let Some(domain) = domain
            {
                *counts.entry(domain).or_default() += 1;
            }
        }
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable();
        counts
    }

    /// `skew zone 1,1,2 by=app=web` or `skew host <=3`
    fn expect_skew(&self, line: &[&str]) {
        let counts = self.counts(line[0], line.get(2).copied());
        if let Some(most) = line[1].strip_prefix("<=") {
            let most: usize = most.parse().expect("a number");
            assert!(counts.iter().all(|count| *count <= most), "{counts:?}");
            return;
        }
        let mut expected: Vec<usize> = line[1]
            .split(',')
            .filter_map(|count| count.parse().ok())
            .collect();
        expected.sort_unstable();
        assert_eq!(
            counts,
            expected,
            "left: {:?}",
            self.plan
                .unschedulable
                .iter()
                .map(|own| &own.pod)
                .collect::<Vec<_>>()
        );
    }
}

/// Whether a node's labels agree with a requirement.
fn holds(node: &Node, word: &str) -> bool {
    let spec = words::requirement(word);
    let required = Requirement::new(&spec.key, spec.operator, spec.values.clone(), None);
    match node.metadata.labels.get(&spec.key) {
        Some(value) => required.has(value),
        None => required.allows_absence(),
    }
}

/// `5`, `<=5` or `>=5`
pub fn number(actual: usize, expected: &str, what: &str) {
    let parse = |text: &str| text.parse::<usize>().expect("a number");
    if let Some(most) = expected.strip_prefix("<=") {
        assert!(actual <= parse(most), "{actual} {what}");
    } else if let Some(least) = expected.strip_prefix(">=") {
        assert!(actual >= parse(least), "{actual} {what}");
    } else {
        assert_eq!(actual, parse(expected), "{what}");
    }
}
