//! From a body that Azure shows to the manifest that stands for it as it is: what may be written, in the table's newest version. Pure.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::{
    structs::{Form, Struct},
    table::{Mapping, Table},
    to_arm::NOT_SENT,
};

/// The spec that a body stands for. What Azure never shows (secrets) and what it only shows are left out; references are by
/// ARM id.
pub fn spec_of(mapping: &Mapping, body: &Value) -> Map<String, Value> {
    let mut spec = structure(Table::get().structure(mapping.spec), body);
    spec.retain(|key, _| !NOT_SENT.contains(&key.as_str()));
    spec
}

fn structure(structure: &Struct, body: &Value) -> Map<String, Value> {
    let mut spec = Map::new();
    if structure.is_union {
        let fits = structure.fields.iter().find_map(|field| {
            let found = value(&field.form, body)?;
            // What tells members apart is text that only one of them may have.
            let Form::Struct(index) = field.form else { return None };
            let tells = Table::get().structure(index).fields.iter().any(|inner| {
                let text = body.get(&inner.target).and_then(Value::as_str);
                matches!((&inner.form, text), (Form::Enum(known), Some(text)) if known.len() == 1 && known[0].eq_ignore_ascii_case(text))
            });
            tells.then(|| (field.name.clone(), found))
        });
        spec.extend(fits);
        return spec;
    }
    for field in &structure.fields {
        let place = match &field.below {
            Some(below) => body.get(below),
            None => Some(body),
        };
        let found = place.and_then(|place| place.get(&field.target));
        if let Some(value) = found.and_then(|found| value(&field.form, found)) {
            spec.insert(field.name.clone(), value);
        }
    }
    spec
}

/// A value as the spec has it; `None`: there is nothing that could be said.
fn value(form: &Form, found: &Value) -> Option<Value> {
    match (form, found) {
        (_, Value::Null) | (Form::Secret | Form::SecretMap | Form::Config, _) => None,
        (Form::Struct(index), Value::Object(_)) => {
            let members = structure(Table::get().structure(*index), found);
            (!members.is_empty()).then_some(Value::Object(members))
        }
        (Form::List(inner), Value::Array(items)) => {
            let items: Vec<Value> = items.iter().filter_map(|item| value(inner, item)).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        (Form::Map(inner), Value::Object(members)) => {
            let members: Map<String, Value> = members
                .iter()
                .filter_map(|(key, member)| Some((key.clone(), value(inner, member)?)))
                .collect();
            (!members.is_empty()).then_some(Value::Object(members))
        }
        (Form::Reference, Value::String(id)) => (!id.is_empty()).then(|| json!({"armId": id})),
        (Form::WellKnown, Value::String(text)) => Some(if text.starts_with('/') {
            json!({"armId": text})
        } else {
            json!({"wellKnownName": text})
        }),
        (Form::Identities, Value::Object(identities)) => {
            let references: Vec<Value> = identities
                .keys()
                .map(|id| json!({"reference": {"armId": id}}))
                .collect();
            (!references.is_empty()).then_some(Value::Array(references))
        }
        (Form::Enum(known), Value::String(text)) => {
            let exact = known.iter().find(|known| known.eq_ignore_ascii_case(text));
            Some(Value::String(exact.unwrap_or(text).clone()))
        }
        (Form::Plain | Form::ByRule, found) => Some(found.clone()),
        // Another type than the table has: it could not be written.
        _ => None,
    }
}

/// A name for an object that stands for a resource of this name: what Kubernetes lets be one.
pub fn object_name(azure_name: &str) -> String {
    let mut name = String::new();
    for letter in azure_name.chars() {
        match letter {
            'a'..='z' | '0'..='9' | '-' => name.push(letter),
            'A'..='Z' => name.push(letter.to_ascii_lowercase()),
            _ => name.push('-'),
        }
    }
    let name = name.trim_matches('-');
    let mut name: String = name.chars().take(60).collect();
    while name.ends_with('-') {
        name.pop();
    }
    if name.is_empty() {
        let _ = name.write_str("resource");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{AsoObject, Reference, Resolver, to_arm};

    struct Nothing;

    impl Resolver for Nothing {
        fn subscription(&self) -> &'static str {
            "s"
        }

        fn resource(&self, _: &Reference) -> Option<String> {
            None
        }
    }

    /// What is read from Azure, written back: nothing changes in what it holds.
    fn round_trip(group: &str, kind: &str, body: &Value) -> Value {
        let mapping = Table::get().newest(group, kind).unwrap();
        let mut spec = spec_of(&mapping, body);
        spec.insert("azureName".to_owned(), body["name"].clone());
        spec.insert(
            "owner".to_owned(),
            json!({"armId": "/subscriptions/s/resourceGroups/g"}),
        );
        let manifest = json!({"apiVersion": format!("{group}/{}", mapping.version), "kind": kind,
            "metadata": {"name": "n"}, "spec": spec});
        to_arm(&AsoObject::parse(&manifest).unwrap(), &Nothing)
            .unwrap()
            .body
    }

    #[test]
    fn what_azure_shows_is_written_back_as_it_is_without_what_it_only_shows() {
        let cluster = json!({
            "name": "fleet", "location": "westus3", "tags": {"team": "a"},
            "id": "/subscriptions/s/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/fleet",
            "sku": {"name": "Base", "tier": "Standard"},
            "identity": {"type": "UserAssigned", "principalId": "shown", "userAssignedIdentities": {"/subscriptions/s/i": {"clientId": "shown"}}},
            "properties": {
                "provisioningState": "Succeeded", "fqdn": "fleet.example", "kubernetesVersion": "1.33.3", "dnsPrefix": "fleet",
                "windowsProfile": {"adminUsername": "admin"},
                "networkProfile": {"networkPlugin": "azure", "serviceCidr": "10.0.0.0/16", "loadBalancerSku": "standard"},
                "oidcIssuerProfile": {"enabled": true, "issuerURL": "https://shown"},
            },
        });
        let body = round_trip("containerservice.azure.com", "ManagedCluster", &cluster);
        assert_eq!(
            body["properties"]["networkProfile"],
            cluster["properties"]["networkProfile"]
        );
        assert_eq!(
            body["identity"],
            json!({"type": "UserAssigned", "userAssignedIdentities": {"/subscriptions/s/i": {}}})
        );
        assert_eq!(body["properties"]["oidcIssuerProfile"], json!({"enabled": true}));
        assert_eq!(
            body["properties"]["windowsProfile"],
            json!({"adminUsername": "admin"})
        );
        assert_eq!(body["properties"].get("fqdn"), None);
        assert_eq!(body["properties"].get("provisioningState"), None);
        assert_eq!(body["tags"], cluster["tags"]);

        let pool = json!({"name": "user", "properties": {"count": 3, "mode": "user", "vmSize": "Standard_D2s_v3",
            "vnetSubnetID": "/subscriptions/s/subnet", "nodeLabels": {"a": "b"}, "nodeTaints": ["a=b:NoSchedule"], "upgradeSettings": {"maxSurge": "10%"},
            "currentOrchestratorVersion": "1.33.3", "powerState": {"code": "Running"}}});
        let body = round_trip("containerservice.azure.com", "ManagedClustersAgentPool", &pool);
        assert_eq!(body["properties"]["vnetSubnetID"], "/subscriptions/s/subnet");
        assert_eq!(body["properties"]["mode"], "User");
        assert_eq!(body["properties"].get("currentOrchestratorVersion"), None);
    }

    #[test]
    fn the_newest_version_that_is_no_preview_is_taken() {
        for (group, kind) in [
            ("containerservice.azure.com", "ManagedCluster"),
            ("containerservice.azure.com", "FleetsMember"),
            ("containerservice.azure.com", "MaintenanceConfiguration"),
            ("kubernetesconfiguration.azure.com", "Extension"),
            ("managedidentity.azure.com", "UserAssignedIdentity"),
            ("managedidentity.azure.com", "FederatedIdentityCredential"),
            ("network.azure.com", "VirtualNetwork"),
            ("network.azure.com", "VirtualNetworksSubnet"),
            ("resources.azure.com", "ResourceGroup"),
        ] {
            let mapping = Table::get()
                .newest(group, kind)
                .unwrap_or_else(|| panic!("{kind}"));
            assert!(
                mapping.exact && !mapping.api_version.contains("preview"),
                "{mapping:?}"
            );
        }
        assert_eq!(Table::get().newest("containerservice.azure.com", "Nothing"), None);
    }

    #[test]
    fn names_of_objects_are_what_kubernetes_allows() {
        for (azure, object) in [
            ("Fleet_1", "fleet-1"),
            ("_x_", "x"),
            ("a.b", "a-b"),
            ("___", "resource"),
        ] {
            assert_eq!(object_name(azure), object);
        }
        assert_eq!(object_name(&"a".repeat(90)).len(), 60);
    }
}
