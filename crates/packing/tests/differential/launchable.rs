//! What a claim lists that could never be launched as it says itself. A claim of Karpenter's that goes into reservations
//! goes on to list types none of them holds, or holds only where the claim may no longer go; this crate leaves those out.
//! Where that is all, both agree once they are left out of Karpenter's too.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::generator::RESERVATION;

/// Karpenter's answer with only such types as the claim's reservations hold where the claim may still go.
pub fn only_launchable(workload: &Value, answer: &Value) -> Value {
    let mut cleaned = answer.clone();
    let claims = cleaned.get_mut("newClaims").and_then(Value::as_array_mut);
    for claim in claims.into_iter().flatten() {
        let requirements = claim["requirements"].clone();
        if !list(&requirements).any(|own| own["key"] == RESERVATION) {
            continue;
        }
        let pool = claim["nodePool"].as_str().unwrap_or_default();
        let launchable = |offering: &Value| {
            offering["available"] != false
                && offering["reservationCapacity"].as_u64().unwrap_or(0) > 0
                && list(&offering["requirements"]).all(|own| {
                    let mut values = list(&own["values"]).filter_map(Value::as_str);
                    values.any(|value| allows(&requirements, &own["key"], value))
                })
        };
        let held: BTreeSet<&str> = list(&workload["instanceTypes"][pool])
            .filter(|kind| list(&claim["instanceTypes"]).any(|listed| *listed == kind["name"]))
            .filter(|kind| list(&kind["offerings"]).any(launchable))
            .filter_map(|kind| kind["name"].as_str())
            .collect();
        if !min_values_met(&workload["instanceTypes"][pool], &requirements, &held) {
            continue;
        }
        if let Some(types) = claim.get_mut("instanceTypes").and_then(Value::as_array_mut) {
            types.retain(|name| name.as_str().is_some_and(|name| held.contains(name)));
        }
    }
    cleaned
}

/// Whether these types have as many values of every label as the requirements want at least: where not, this crate keeps the
/// others too.
fn min_values_met(kinds: &Value, requirements: &Value, held: &BTreeSet<&str>) -> bool {
    list(requirements).all(|required| {
        let least = required["minValues"].as_u64().unwrap_or(0) as usize;
        let values: BTreeSet<&str> = list(kinds)
            .filter(|kind| kind["name"].as_str().is_some_and(|name| held.contains(name)))
            .flat_map(|kind| list(&kind["requirements"]))
            .filter(|own| own["key"] == required["key"])
            .flat_map(|own| list(&own["values"]))
            .filter_map(Value::as_str)
            .filter(|value| allows(requirements, &required["key"], value))
            .collect();
        values.len() >= least
    })
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Whether a list of requirements leaves a label this value.
fn allows(requirements: &Value, key: &Value, value: &str) -> bool {
    let mut own = list(requirements).filter(|own| own["key"] == *key);
    own.all(|own| {
        let named = list(&own["values"]).any(|named| named == value);
        match own["operator"].as_str() {
            Some("In") => named,
            Some("NotIn") => !named,
            Some("DoesNotExist") => false,
            _ => true,
        }
    })
}

#[test]
fn a_reservation_counts_only_where_the_claim_may_go() {
    let zone = "topology.kubernetes.io/zone";
    let offering = |id: &str, place: &str, left: u64| {
        json!({"available": true, "reservationCapacity": left, "requirements": [
            {"key": RESERVATION, "operator": "In", "values": [id]},
            {"key": zone, "operator": "In", "values": [place]}]})
    };
    let family = |value: &str| json!([{"key": "family", "operator": "In", "values": [value]}]);
    let workload = json!({"instanceTypes": {"pool": [
        {"name": "here", "requirements": family("here"), "offerings": [offering("a", "zone-1", 1)]},
        {"name": "elsewhere", "requirements": family("elsewhere"), "offerings": [offering("a", "zone-2", 1)]},
        {"name": "full", "requirements": family("full"), "offerings": [offering("a", "zone-1", 0)]},
        {"name": "another", "requirements": family("another"), "offerings": [offering("b", "zone-1", 1)]}]}});
    let of_types = |requirements: Value, types: Value| {
        let answer = json!({"newClaims": [{"nodePool": "pool", "requirements": requirements,
            "instanceTypes": types}]});
        only_launchable(&workload, &answer)["newClaims"][0]["instanceTypes"].clone()
    };
    let types = |requirements: Value| of_types(requirements, json!(["here", "elsewhere", "full", "another"]));
    let in_zone = json!({"key": zone, "operator": "In", "values": ["zone-1"]});
    let into = json!({"key": RESERVATION, "operator": "In", "values": ["a"]});
    assert_eq!(types(json!([into, in_zone])), json!(["here"]));
    assert_eq!(types(json!([into])), json!(["here", "elsewhere"]));
    let two = json!({"key": "family", "operator": "Exists", "minValues": 2});
    assert_eq!(types(json!([into, two])), json!(["here", "elsewhere"]));
    // What the claim does not list does not help it.
    assert_eq!(
        of_types(json!([into, two]), json!(["here", "full"])),
        json!(["here", "full"])
    );
    assert_eq!(
        types(json!([into, in_zone, two])),
        json!(["here", "elsewhere", "full", "another"])
    );
    assert_eq!(
        types(json!([in_zone])),
        json!(["here", "elsewhere", "full", "another"])
    );
}
