//! The body of a PUT that changes what differs and keeps the rest: desired over observed, without what is Azure's own.

use serde_json::{Map, Value, json};

use super::{element_key, is_empty, is_keyed, member, record::Record};
use crate::resource::{Mapping, Shape};

/// Members of every answer that no request may hold.
const OURS_TO_READ: &[&str] = &[
    "id",
    "type",
    "systemData",
    "etag",
    "eTag",
    "provisioningState",
    "resourceGuid",
];

/// Lists of children that have requests of their own and that a PUT of the parent leaves alone when it does not name
/// them. (A virtual network's subnets are not among them: a PUT without them deletes them.)
const LEFT_OUT: &[(&str, &str)] = &[("Microsoft.ContainerService/managedClusters", "agentPoolProfiles")];

/// A body without the children that a PUT of the parent makes once and leaves alone afterwards.
pub fn without_children(mapping: &Mapping, body: &Value) -> Value {
    let mut body = body.clone();
    for (arm_type, children) in LEFT_OUT {
        if mapping.arm_type.eq_ignore_ascii_case(arm_type)
            && let Some(properties) = body.get_mut("properties").and_then(Value::as_object_mut)
        {
            properties.remove(*children);
        }
    }
    body
}

/// The body to send. With nothing observed it is what is desired.
pub fn merge(mapping: &Mapping, desired: &Value, observed: Option<&Value>, record: Option<&Record>) -> Value {
    let Some(observed) = observed else {
        return desired.clone();
    };
    let mut base = writable(observed, Shape::spec(mapping), Shape::status(mapping), 0);
    for (arm_type, children) in LEFT_OUT {
        if mapping.arm_type.eq_ignore_ascii_case(arm_type)
            && desired.pointer(&format!("/properties/{children}")).is_none()
            && let Some(properties) = base.get_mut("properties").and_then(Value::as_object_mut)
        {
            properties.remove(*children);
        }
    }
    if let Some(record) = record {
        remove(&mut base, desired, &record.sent, Shape::spec(mapping));
    }
    overlay(&mut base, desired, Shape::spec(mapping));
    base
}

/// Children a PUT of the parent would delete if it did not repeat them, whatever the table says about them.
const REPEATED: &[&str] = &[
    "subnets",
    "virtualNetworkPeerings",
    "routes",
    "securityRules",
    "inboundNatRules",
];

/// The part of an answer that may be sent back: all but what the table knows to be in answers only.
fn writable(observed: &Value, spec: Shape, status: Shape, depth: usize) -> Value {
    match observed {
        Value::Object(members) => {
            if spec.is_identities() {
                return Value::Object(members.keys().map(|id| (id.clone(), json!({}))).collect());
            }
            let mut kept = Map::new();
            for (name, value) in members {
                if REPEATED.contains(&name.as_str()) {
                    kept.insert(name.clone(), value.clone());
                    continue;
                }
                // A nested reference keeps its id, an identity its type; the resource's own are Azure's.
                let identifies = matches!(name.as_str(), "id" | "type") && depth > 0;
                if OURS_TO_READ.contains(&name.as_str()) && !identifies {
                    continue;
                }
                let (spec, status) = (spec.child(name), status.child(name));
                if !spec.is_known() && status.is_known() {
                    continue;
                }
                kept.insert(name.clone(), writable(value, spec, status, depth + 1));
            }
            Value::Object(kept)
        }
        Value::Array(list) => Value::Array(
            list.iter()
                .map(|element| writable(element, spec.element(), status.element(), depth + 1))
                .collect(),
        ),
        other => other.clone(),
    }
}

fn overlay(base: &mut Value, desired: &Value, shape: Shape) {
    match (base, desired) {
        (Value::Object(base), Value::Object(desired)) => {
            if shape.is_identities() {
                // The list is the user's as a whole.
                base.retain(|id, _| desired.keys().any(|key| key.eq_ignore_ascii_case(id)));
            }
            for (key, value) in desired {
                let name = base
                    .keys()
                    .find(|name| *name == key || name.eq_ignore_ascii_case(key))
                    .cloned()
                    .unwrap_or_else(|| key.clone());
                match base.get_mut(&name) {
                    Some(place) => overlay(place, value, shape.child(key)),
                    None => {
                        base.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(base), Value::Array(desired)) if is_keyed(desired) && is_keyed(base) => {
            for value in desired {
                let key = element_key(value);
                match base.iter_mut().find(|element| element_key(element) == key) {
                    Some(place) => overlay(place, value, shape.element()),
                    None => base.push(value.clone()),
                }
            }
        }
        // An empty list of children must not delete the children others own.
        (Value::Array(base), Value::Array(desired)) if desired.is_empty() && is_keyed(base) => {}
        (base, desired) => *base = desired.clone(),
    }
}

/// Takes out what was sent before and is no longer desired.
fn remove(base: &mut Value, desired: &Value, sent: &Value, shape: Shape) {
    match (base, sent) {
        (Value::Object(base), Value::Object(sent)) => {
            for (key, before) in sent {
                let value = member(desired, key).filter(|value| !value.is_null());
                let below = shape.child(key);
                match value {
                    Some(value) => {
                        if let Some(place) = base.get_mut(key) {
                            remove(place, value, before, below);
                        }
                    }
                    // The list is the user's as a whole, and it is gone.
                    None if below.is_identities() => {
                        base.remove(key);
                    }
                    None if is_empty(before) => {}
                    None => match base.get_mut(key) {
                        // Collections Azure only empties when it is told so.
                        Some(place @ Value::Object(_)) if below.is_explicit_empty() => *place = json!({}),
                        Some(place @ Value::Array(_)) if below.is_explicit_empty() => *place = json!([]),
                        Some(place @ Value::Object(_)) if before.is_object() => {
                            remove(place, &json!({}), before, below);
                            // Half a reference is none.
                            if place.as_object().is_some_and(Map::is_empty) {
                                base.remove(key);
                            }
                        }
                        _ => {
                            base.remove(key);
                        }
                    },
                }
            }
        }
        (Value::Array(base), Value::Array(sent)) if is_keyed(sent) => {
            let keys: Vec<Option<String>> = desired
                .as_array()
                .map(|list| list.iter().map(element_key).collect())
                .unwrap_or_default();
            let before: Vec<Option<String>> = sent.iter().map(element_key).collect();
            base.retain(|element| {
                let key = element_key(element);
                keys.contains(&key) || !before.contains(&key)
            });
            // What stays may have lost something too.
            for place in base {
                let key = element_key(place);
                let is_same = |element: &&Value| element_key(element) == key;
                let value = desired.as_array().and_then(|list| list.iter().find(is_same));
                if let (Some(value), Some(before)) = (value, sent.iter().find(is_same)) {
                    remove(place, value, before, shape.element());
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{diff::differences, resource::Table};

    fn mapping(kind: &str, version: &str) -> Mapping {
        let group = if kind.starts_with("Virtual") {
            "network.azure.com"
        } else {
            "containerservice.azure.com"
        };
        Table::get().lookup(group, kind, version).unwrap()
    }

    fn compare(mapping: &Mapping, desired: &Value, observed: &Value, record: Option<&Record>) -> Vec<String> {
        differences(mapping, desired, observed, record, &[])
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_put_keeps_what_it_does_not_model_and_what_others_own() {
        let mapping = mapping("VirtualNetwork", "v1api20201101");
        let observed = json!({
            "id": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/v",
            "name": "v", "type": "Microsoft.Network/virtualNetworks", "etag": "W/\"1\"", "location": "westus2",
            "tags": {"policy": "added"},
            "properties": {
                "provisioningState": "Succeeded", "resourceGuid": "x", "newThing": {"on": true},
                "addressSpace": {"addressPrefixes": ["10.0.0.0/8"]},
                "subnets": [{"name": "a", "id": "/subscriptions/s/x/subnets/a", "etag": "W/\"1\"", "properties": {"addressPrefix": "10.1.0.0/16"}}],
            },
        });
        let desired = json!({"name": "v", "location": "West US 2", "properties": {"addressSpace": {"addressPrefixes": ["10.0.0.0/8", "11.0.0.0/8"]}}});
        assert_eq!(
            compare(&mapping, &desired, &observed, None),
            ["update properties.addressSpace.addressPrefixes"]
        );
        assert_eq!(
            merge(&mapping, &desired, Some(&observed), None),
            json!({
                "name": "v", "location": "West US 2", "tags": {"policy": "added"},
                "properties": {
                    "newThing": {"on": true},
                    "addressSpace": {"addressPrefixes": ["10.0.0.0/8", "11.0.0.0/8"]},
                    "subnets": [{"name": "a", "id": "/subscriptions/s/x/subnets/a", "etag": "W/\"1\"", "properties": {"addressPrefix": "10.1.0.0/16"}}],
                },
            })
        );
    }

    #[test]
    fn a_removed_field_is_seen_and_taken_out() {
        let mapping = mapping("ManagedClustersAgentPool", "v1api20240901");
        let before = json!({"name": "p", "properties": {"count": 3, "nodeLabels": {"a": "1", "b": "2"}, "nodeTaints": ["x=y:NoSchedule"], "tags": {"t": "1"}}});
        let record = Record::sent(&before, &[]);
        let observed = json!({"id": "/x", "name": "p", "properties": {
            "provisioningState": "Succeeded", "count": 3, "nodeLabels": {"a": "1", "b": "2", "server": "3"},
            "nodeTaints": ["x=y:NoSchedule"], "tags": {"t": "1"}, "maxPods": 110, "nodeImageVersion": "i", "powerState": {"code": "Running"}}});
        assert_eq!(compare(&mapping, &before, &observed, Some(&record)), [""; 0]);
        let desired = json!({"name": "p", "properties": {"count": 3, "nodeLabels": {"a": "1"}}});
        let mut found = compare(&mapping, &desired, &observed, Some(&record));
        found.sort();
        assert_eq!(
            found,
            [
                "remove properties.nodeLabels.b (\"2\")",
                "remove properties.nodeTaints",
                "remove properties.tags.t (\"1\")"
            ]
        );
        assert_eq!(
            merge(&mapping, &desired, Some(&observed), Some(&record)),
            json!({"name": "p", "properties": {"count": 3, "nodeLabels": {"a": "1", "server": "3"}, "nodeTaints": [], "tags": {}, "maxPods": 110, "powerState": {"code": "Running"}}})
        );
    }

    #[test]
    fn a_list_of_identities_goes_as_a_whole() {
        let mapping = mapping("ManagedCluster", "v1api20240901");
        let one = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/one";
        let before =
            json!({"name": "c", "identity": {"type": "UserAssigned", "userAssignedIdentities": {one: {}}}});
        let record = Record::sent(&before, &[]);
        let observed = json!({"name": "c", "identity": {"type": "UserAssigned",
            "userAssignedIdentities": {one: {"clientId": "c", "principalId": "p"}}}});
        let desired = json!({"name": "c", "identity": {"type": "SystemAssigned"}});
        assert_eq!(
            merge(&mapping, &desired, Some(&observed), Some(&record)),
            json!({"name": "c", "identity": {"type": "SystemAssigned"}})
        );
    }

    #[test]
    fn an_element_that_stays_loses_what_is_no_longer_desired() {
        let mapping = mapping("VirtualNetwork", "v1api20201101");
        let subnet = |properties: Value| json!({"name": "v", "properties": {"subnets": [{"name": "a", "properties": properties}]}});
        let before = subnet(json!({"addressPrefix": "10.1.0.0/16", "natGateway": {"id": "/n"}}));
        let record = Record::sent(&before, &[]);
        let desired = subnet(json!({"addressPrefix": "10.1.0.0/16"}));
        assert_eq!(
            merge(&mapping, &desired, Some(&before), Some(&record)),
            subnet(json!({"addressPrefix": "10.1.0.0/16"}))
        );
    }

    #[test]
    fn a_clusters_put_leaves_pools_to_their_own_requests() {
        let mapping = mapping("ManagedCluster", "v1api20240901");
        let observed = json!({"name": "c", "location": "westus2", "properties": {
            "kubernetesVersion": "1.29", "currentKubernetesVersion": "1.29.9", "fqdn": "c.example",
            "agentPoolProfiles": [{"name": "p", "count": 5}]},
            "identity": {"type": "SystemAssigned", "principalId": "p", "tenantId": "t"}, "sku": {"name": "Base", "tier": "Free"}});
        let desired = json!({"name": "c", "location": "westus2", "properties": {"kubernetesVersion": "1.29"},
            "identity": {"type": "SystemAssigned"}, "sku": {"name": "Base", "tier": "Standard"}});
        assert_eq!(
            compare(&mapping, &desired, &observed, None),
            ["update sku.tier (\"Free\" to \"Standard\")"]
        );
        assert_eq!(
            merge(&mapping, &desired, Some(&observed), None),
            json!({"name": "c", "location": "westus2", "properties": {"kubernetesVersion": "1.29"},
                "identity": {"type": "SystemAssigned"}, "sku": {"name": "Base", "tier": "Standard"}})
        );
    }

    #[test]
    fn azures_own_spelling_is_learned_once_and_drift_is_still_seen() {
        let mapping = mapping("ManagedCluster", "v1api20240901");
        let desired = json!({"name": "c", "properties": {"dnsPrefix": "Prefix", "windowsProfile": {"adminPassword": "p"}}});
        let secrets = ["/properties/windowsProfile/adminPassword".to_owned()];
        let observed = json!({"name": "c", "properties": {"dnsPrefix": "prefix", "windowsProfile": {}}});
        let run = |desired: &Value, observed: &Value, record: Option<&Record>| {
            differences(&mapping, desired, observed, record, &secrets).len()
        };
        assert_eq!(run(&desired, &observed, None), 2);
        let record = Record::sent(&desired, &secrets);
        assert!(!record.sent.to_string().contains("\"p\""));
        let settled = record.settle(&mapping, &observed);
        assert_eq!(run(&desired, &observed, Some(&settled)), 0);
        let drifted = json!({"name": "c", "properties": {"dnsPrefix": "other", "windowsProfile": {}}});
        assert_eq!(run(&desired, &drifted, Some(&settled)), 1);
        let rotated = json!({"name": "c", "properties": {"dnsPrefix": "Prefix", "windowsProfile": {"adminPassword": "q"}}});
        assert_eq!(run(&rotated, &observed, Some(&settled)), 1);
    }

    #[test]
    fn the_autoscalers_count_is_not_a_difference() {
        let mapping = mapping("ManagedClustersAgentPool", "v1api20240901");
        let desired = json!({"name": "p", "properties": {"count": 1, "enableAutoScaling": true, "minCount": 1, "maxCount": 5}});
        let observed = |count: u32| json!({"name": "p", "properties": {"count": count, "enableAutoScaling": true, "minCount": 1, "maxCount": 5}});
        assert_eq!(compare(&mapping, &desired, &observed(4), None), [""; 0]);
        assert_eq!(compare(&mapping, &desired, &observed(9), None).len(), 1);
    }
}
