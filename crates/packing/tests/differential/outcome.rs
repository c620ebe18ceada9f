//! What two schedulers must agree on, free of the names and orders in which neither promises anything.

use std::collections::BTreeMap;

use serde_json::Value;
use slipway_packing::model::Plan;

/// One line: how many pods on which node, how many per new claim, the sets of instance types, how many claims a zone got,
/// the cost per hour, and which pods are left.
pub fn of_plan(plan: &Plan) -> String {
    of_json(&serde_json::to_value(plan).expect("a plan is JSON"))
}

/// Of a plan in the form of docs/packing.md, ours or Karpenter's.
pub fn of_json(plan: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let claims = list(&plan["newClaims"]);
    let mut sizes: Vec<usize> = claims.iter().map(|claim| list(&claim["pods"]).len()).collect();
    sizes.sort_unstable();
    let mut types: Vec<String> = claims
        .iter()
        .map(|claim| {
            let mut names: Vec<String> = list(&claim["instanceTypes"]).iter().map(short).collect();
            names.sort();
            format!("{}:{}", short(&claim["nodePool"]), names.join("."))
        })
        .collect();
    types.sort();
    let mut zones: BTreeMap<String, usize> = BTreeMap::new();
    for claim in &claims {
        *zones.entry(zone_values(claim).join("+")).or_default() += 1;
    }
    let mut by_zone: Vec<usize> = zones.into_values().collect();
    by_zone.sort_unstable();
    // In millionths, so that it does not depend on the order of the claims.
    let cost: f64 = claims
        .iter()
        .filter_map(|claim| claim["cheapestPrice"].as_f64())
        .map(|price| (price * 1e6).round())
        .fold(0.0, |sum, price| sum + price)
        / 1e6;
    let mut existing: Vec<String> = list(&plan["existing"])
        .iter()
        .map(|node| format!("{}:{}", short(&node["node"]), list(&node["pods"]).len()))
        .collect();
    existing.sort();
    let mut left: BTreeMap<String, usize> = BTreeMap::new();
    for refusal in list(&plan["unschedulable"]) {
        let name = refusal["pod"].as_str().unwrap_or_default();
        let name = name.rsplit('/').next().unwrap_or(name);
        let group = name.rsplit_once('-').map_or(name, |(group, _)| group);
        *left.entry(group.to_owned()).or_default() += 1;
    }
    let left: Vec<String> = left
        .into_iter()
        .map(|(group, count)| format!("{group}*{count}"))
        .collect();
    format!(
        "nodes[{}] claims{sizes:?} types[{}] zones{by_zone:?} cost[{cost:.4}] left[{}]",
        existing.join(" "),
        types.join(" "),
        left.join(" ")
    )
    .replace(", ", ",")
}

fn short(name: &Value) -> String {
    let name = name.as_str().unwrap_or_default();
    name.trim_start_matches("node-")
        .trim_start_matches("pool-")
        .trim_start_matches('t')
        .to_owned()
}

/// The zones a claim's requirement names, to take or to avoid: Karpenter prints them, ours are in its requirements.
fn zone_values(claim: &Value) -> Vec<String> {
    let listed = match claim.get("zones") {
        Some(zones) => zones.as_array().cloned().unwrap_or_default(),
        None => claim["requirements"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|own| own["key"] == super::generator::ZONE)
            .flat_map(|own| own["values"].as_array().cloned().unwrap_or_default())
            .collect(),
    };
    let mut names: Vec<String> = listed
        .iter()
        .filter_map(|zone| zone.as_str().map(str::to_owned))
        .collect();
    names.sort();
    names
}

/// What of an outcome can be better or worse.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub claims: usize,
    pub left: usize,
    cost: f64,
}

impl Figures {
    pub fn of(outcome: &str) -> Self {
        let part = |name: &str| {
            let rest = outcome
                .split_once(&format!(" {name}["))
                .map_or("", |(_, rest)| rest);
            rest.split(']').next().unwrap_or_default()
        };
        let left = part("left")
            .split_whitespace()
            .filter_map(|group| group.rsplit_once('*'));
        Figures {
            claims: part("claims").split(',').filter(|size| !size.is_empty()).count(),
            left: left.filter_map(|(_, count)| count.parse::<usize>().ok()).sum(),
            cost: part("cost").parse().unwrap_or(f64::MAX),
        }
    }

    /// Whether this leaves fewer pods, or as many with no more claims and at no higher cost.
    pub fn are_no_worse_than(&self, other: &Figures) -> bool {
        self.left < other.left
            || (self.left == other.left && self.claims <= other.claims && self.cost <= other.cost + 1e-9)
    }
}

#[test]
fn figures_are_read_back() {
    let figures = Figures::of("nodes[a:1] claims[1,2] types[0:1 0:2] zones[2] cost[0.2577] left[g1*3 g2*4]");
    assert_eq!((figures.claims, figures.left), (2, 7));
    let dearer = Figures { cost: 0.3, ..figures };
    assert!(figures.are_no_worse_than(&dearer) && !dearer.are_no_worse_than(&figures));
}
