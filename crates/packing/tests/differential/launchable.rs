//! What a claim lists that could never be launched as it says itself. A claim of the peer's that goes into reservations
//! goes on to list types none of them holds; this crate leaves those out. Where that is all, both agree once they are left
//! out of the peer's too.

use std::collections::BTreeSet;

use serde_json::Value;

use super::generator::RESERVATION;

/// The peer's answer with only such types as the claim's reservations hold.
pub fn only_launchable(workload: &Value, answer: &Value) -> Value {
    let mut cleaned = answer.clone();
    let claims = cleaned.get_mut("newClaims").and_then(Value::as_array_mut);
    for claim in claims.into_iter().flatten() {
        let wanted = values(&claim["requirements"], RESERVATION);
        if wanted.is_empty() {
            continue;
        }
        let pool = claim["nodePool"].as_str().unwrap_or_default();
        let kinds = workload["instanceTypes"][pool].as_array();
        let held: BTreeSet<String> = kinds
            .into_iter()
            .flatten()
            .filter(|kind| {
                let mut offerings = kind["offerings"].as_array().into_iter().flatten();
                offerings.any(|offering| {
                    let own = values(&offering["requirements"], RESERVATION);
                    !own.is_disjoint(&wanted) && offering["available"] != false
                })
            })
            .filter_map(|kind| kind["name"].as_str().map(str::to_owned))
            .collect();
        if let Some(types) = claim.get_mut("instanceTypes").and_then(Value::as_array_mut) {
            types.retain(|name| name.as_str().is_some_and(|name| held.contains(name)));
        }
    }
    cleaned
}

/// The values a list of requirements names for a label.
fn values(requirements: &Value, key: &str) -> BTreeSet<String> {
    requirements
        .as_array()
        .into_iter()
        .flatten()
        .filter(|own| own["key"] == key && own["operator"] == "In")
        .flat_map(|own| own["values"].as_array().into_iter().flatten())
        .filter_map(|value| value.as_str().map(str::to_owned))
        .collect()
}
