//! Domains that nobody can open a node in. Karpenter may pick one for a spread constraint, because a NodePool names it, and
//! then finds no instance type there; this crate goes on to the next best. And anti-affinity of pods that come does not
//! know, to Karpenter, of domains that only standing nodes have: such a node it never takes. Where that is the cause, both
//! agree as soon as NodePools name, and nodes stand in, only domains that some instance type is to be had in.

use std::collections::BTreeSet;

use serde_json::Value;

use super::generator::ZONE;

/// The workload with only such domains; none if there are no others.
pub fn only_offered_domains(workload: &Value) -> Option<Value> {
    let mut changed = workload.clone();
    let mut anywhere: BTreeSet<String> = BTreeSet::new();
    for pool in changed["nodePools"].as_array_mut().into_iter().flatten() {
        let name = pool["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let offered = zones_of(&workload["instanceTypes"][&name]);
        let requirements = pool
            .pointer_mut("/spec/template/spec/requirements")
            .and_then(Value::as_array_mut);
        let mut allowed = offered.clone();
        for own in requirements.into_iter().flatten() {
            if own["key"] == ZONE
                && own["operator"] == "In"
                && let Some(values) = own["values"].as_array_mut()
            {
                let offered = |value: &Value| value.as_str().is_some_and(|zone| offered.contains(zone));
                if values.iter().any(offered) {
                    values.retain(offered);
                }
                let named: BTreeSet<&str> = values.iter().filter_map(Value::as_str).collect();
                allowed.retain(|zone| named.contains(zone.as_str()));
            }
        }
        anywhere.extend(allowed);
    }
    let mut gone: BTreeSet<String> = BTreeSet::new();
    let mut gone_ids: BTreeSet<String> = BTreeSet::new();
    if let Some(nodes) = changed.get_mut("nodes").and_then(Value::as_array_mut) {
        nodes.retain(|node| {
            let zone = node["metadata"]["labels"][ZONE].as_str();
            let stays = zone.is_none_or(|zone| anywhere.contains(zone));
            if !stays {
                gone.extend(node["metadata"]["name"].as_str().map(str::to_owned));
                gone_ids.extend(node["spec"]["providerID"].as_str().map(str::to_owned));
            }
            stays
        });
    }
    if let Some(claims) = changed.get_mut("nodeClaims").and_then(Value::as_array_mut) {
        claims.retain(|claim| {
            let id = claim["status"]["providerID"].as_str().unwrap_or_default();
            !gone_ids.contains(id)
        });
    }
    if let Some(pods) = changed.get_mut("boundPods").and_then(Value::as_array_mut) {
        pods.retain(|pod| {
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            !gone.contains(node)
        });
    }
    (changed != *workload).then_some(changed)
}

/// Zones in which some type of a list can be had.
fn zones_of(types: &Value) -> BTreeSet<String> {
    let offerings = types
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|kind| kind["offerings"].as_array().into_iter().flatten());
    offerings
        .filter(|offering| offering["available"] != false)
        .flat_map(|offering| offering["requirements"].as_array().into_iter().flatten())
        .filter(|own| own["key"] == ZONE)
        .flat_map(|own| own["values"].as_array().into_iter().flatten())
        .filter_map(|zone| zone.as_str().map(str::to_owned))
        .collect()
}
