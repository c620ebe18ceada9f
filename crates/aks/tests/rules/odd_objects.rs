//! Arbitrary objects: admission answers every one of them, and what it changes once it does not change again.

use proptest::prelude::*;
use serde_json::{Value, json};
use slipway_aks::{
    api::{AzureManagedControlPlane, AzureManagedControlPlaneTemplate, AzureManagedMachinePool},
    control_plane::admit::defaults,
    control_plane_template, pool,
};
use slipway_runtime::admission::Change;

use super::{control_plane_cases, object, pool_cases, request, table, verdict};

fn odd_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{0,20}",
        Just(String::new()),
        Just("10.0.0.0/8".to_owned()),
        Just("v1.99999999999999999999.1".to_owned()),
        Just("/x/privateDnsZones/".to_owned()),
        Just("é".to_owned()),
        "[0-9]{1,25}[smh]?",
    ]
}

/// Replaces every text leaf of a value by another, in order.
fn replaced(value: &Value, texts: &mut impl Iterator<Item = String>) -> Value {
    match value {
        Value::String(old) => json!(texts.next().unwrap_or_else(|| old.clone())),
        Value::Array(items) => items.iter().map(|item| replaced(item, texts)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, field)| (name.clone(), replaced(field, texts)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn odd_objects_are_answered(
        pick in any::<prop::sample::Index>(),
        texts in prop::collection::vec(odd_text(), 0..30),
        facts in (odd_text(), odd_text()),
    ) {
        let cases = [control_plane_cases::cases(), pool_cases::cases()].concat();
        let case = cases[pick.index(cases.len())];
        let rule = table::all().find(|rule| rule.id == case.rule).expect("a rule");
        for kind in rule.kinds {
            let mut texts = texts.clone().into_iter();
            let old = object(kind, "{}", "plane", None);
            let patch = if case.new == "DELETE" { "{}" } else { case.new };
            let mut new = object(kind, patch, "plane", case.status);
            new["spec"] = replaced(&new["spec"], &mut texts);
            let knowing = if kind.starts_with("amcp") { Some(format!("{};{}", facts.0, facts.1)) } else { None };
            for old in [None, Some(old)] {
                let request = request(old, Some(new.clone()), false);
                let _ = verdict(kind, &request, knowing.as_deref(), false);
                let _ = verdict(kind, &request, knowing.as_deref(), true);
            }
        }
    }

    #[test]
    fn defaulting_twice_is_defaulting_once(texts in prop::collection::vec(odd_text(), 0..12)) {
        let mut texts = texts.into_iter();
        let mut new = object("amcp", r#"{"sshPublicKey":"","extensions":[{"name":"e","extensionType":"t","plan":{"product":"p"}}]}"#, "plane", None);
        new["spec"] = replaced(&new["spec"], &mut texts);
        let Ok(change) = Change::<AzureManagedControlPlane>::read(&request(None, Some(new), false)) else { return Ok(()) };
        let mut once = change.new.expect("an object");
        defaults::control_plane(&mut once, None, || Ok("key".into()));
        let mut twice = once.clone();
        defaults::control_plane(&mut twice, Some(&once), || Ok("another".into()));
        prop_assert_eq!(once, twice);
    }
}

#[test]
fn a_control_plane_is_defaulted() {
    let new = json!({
        "metadata": {"name": "plane", "labels": {"cluster.x-k8s.io/cluster-name": "fleet"}},
        "spec": {
            "version": "1.31.0", "location": "westus", "identityRef": {}, "sku": {"tier": "Paid"}, "sshPublicKey": "",
            "networkPluginMode": "overlay", "fleetsMember": {"managerName": "m", "managerResourceGroup": "g"},
            "extensions": [{"name": "e", "extensionType": "t", "plan": {"product": "p"}}]
        }
    });
    let mut plane: AzureManagedControlPlane = serde_json::from_value(new).expect("a control plane");
    defaults::control_plane(&mut plane, None, || Ok("key".into()));
    let spec = json!(plane.spec);
    for (pointer, expected) in [
        ("/version", json!("v1.31.0")),
        ("/sku/tier", json!("Standard")),
        ("/fleetsMember/name", json!("fleet")),
        ("/sshPublicKey", json!("a2V5")),
        ("/resourceGroupName", json!("fleet")),
        ("/nodeResourceGroupName", json!("MC_fleet_plane_westus")),
        ("/virtualNetwork/name", json!("plane")),
        ("/virtualNetwork/cidrBlock", json!("10.224.0.0/12")),
        ("/virtualNetwork/resourceGroup", json!("fleet")),
        ("/virtualNetwork/subnet/name", json!("plane")),
        ("/virtualNetwork/subnet/cidrBlock", json!("10.224.0.0/16")),
        ("/oidcIssuerProfile", json!({})),
        ("/dnsPrefix", json!("plane")),
        ("/extensions/0/plan/name", json!("plane-p")),
    ] {
        assert_eq!(spec.pointer(pointer), Some(&expected), "{pointer}");
    }
    let mut long: AzureManagedControlPlane = plane.clone();
    long.spec.node_resource_group_name = None;
    long.metadata.name = Some("n".repeat(90));
    defaults::control_plane(&mut long, None, || Err("no randomness".into()));
    assert_eq!(long.spec.node_resource_group_name.expect("a group").len(), 80);
}

#[test]
fn templates_and_pools_are_defaulted() {
    let mut template: AzureManagedControlPlaneTemplate = serde_json::from_value(json!({
        "metadata": {"name": "t"},
        "spec": {"template": {"spec": {"version": "1.31.0", "identityRef": {}}}}
    }))
    .expect("a template");
    control_plane_template::admit::default(&mut template);
    let spec = json!(template.spec.template.spec);
    for (pointer, expected) in [
        ("/networkPlugin", json!("azure")),
        ("/loadBalancerSKU", json!("Standard")),
        ("/enablePreviewFeatures", json!(false)),
        ("/version", json!("v1.31.0")),
        ("/virtualNetwork/cidrBlock", json!("10.0.0.0/8")),
        ("/virtualNetwork/subnet/name", json!("t")),
        ("/virtualNetwork/subnet/cidrBlock", json!("10.240.0.0/16")),
        ("/sku/tier", json!("Free")),
    ] {
        assert_eq!(spec.pointer(pointer), Some(&expected), "{pointer}");
    }
    let mut pool: AzureManagedMachinePool =
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"mode": "System", "sku": "s"}}))
            .expect("a pool");
    pool::admit::default(&mut pool);
    assert_eq!(pool.spec.class.name.as_deref(), Some("p"));
    assert_eq!(pool.spec.class.os_type.as_deref(), Some("Linux"));
    assert_eq!(
        pool.metadata.labels.expect("labels")["azuremanagedmachinepool.infrastructure.cluster.x-k8s.io/agentpoolmode"],
        "System"
    );
}
