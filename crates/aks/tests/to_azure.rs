//! Every manifest, with every field set, is one that the ARM engine can send: each field has its place in the body of
//! the API version that is asked for, and the id is the one the plans use.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use slipway_aks::{api::AzureManagedControlPlane, control_plane::plan::id_of, render::Facts};
use slipway_azure::resource::{AsoObject, Reference, Resolver, to_arm};

use super::completeness::{manifests, sample, spec_schema};

struct NothingByName;

impl Resolver for NothingByName {
    fn subscription(&self) -> &'static str {
        "sub"
    }

    fn resource(&self, reference: &Reference) -> Option<String> {
        panic!("{reference} is looked up by name")
    }
}

/// A control plane with every field set, named so that ids can be made of the names.
fn full(preview: bool, variant: usize) -> Value {
    let mut plane = sample("", &spec_schema("azuremanagedcontrolplanes"), variant);
    let names = json!({
        "version": "v1.31.0", "enablePreviewFeatures": preview, "resourceGroupName": "group",
        "asoManagedClusterPatches": [],
        "fleetsMember": {"name": "member", "managerName": "fleet", "managerResourceGroup": "fleets"},
        "virtualNetwork": {"name": "network", "resourceGroup": "networks", "subnet": {"name": "nodes"}}
    });
    json_patch::merge(&mut plane, &names);
    plane["extensions"][0]["name"] = json!("extension");
    plane["virtualNetwork"]["subnet"]["privateEndpoints"][0]["name"] = json!("endpoint");
    plane
}

#[test]
fn every_manifest_can_be_sent() {
    let mut kinds = BTreeSet::new();
    let mut problems = Vec::new();
    for (preview, variant) in [(false, 0), (false, 1), (true, 0)] {
        let plane = full(preview, variant);
        let mut pool = sample("", &spec_schema("azuremanagedmachinepools"), variant);
        json_patch::merge(
            &mut pool,
            &json!({"name": "pool", "mode": "System", "subnetName": "nodes", "asoManagedClustersAgentPoolPatches": []}),
        );
        let object: AzureManagedControlPlane =
            serde_json::from_value(json!({"metadata": {"name": "plane"}, "spec": plane}))
                .expect("a control plane");
        let facts = Facts {
            plane: &object,
            cluster_name: "fleet",
            subscription: "sub",
            services: None,
            pods: None,
        };
        for manifest in manifests(&plane, &pool) {
            let sent = AsoObject::parse(&manifest).and_then(|object| to_arm(&object, &NothingByName));
            match sent {
                Ok(put) => {
                    assert!(
                        put.id.as_str().eq_ignore_ascii_case(&id_of(&facts, &manifest)),
                        "{} is {}",
                        id_of(&facts, &manifest),
                        put.id.as_str()
                    );
                    kinds.insert(manifest["kind"].as_str().unwrap_or_default().to_owned());
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert_eq!(kinds.len(), 8, "{kinds:?}");
}
