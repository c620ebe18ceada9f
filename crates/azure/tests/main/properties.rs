//! What must hold for any input: nothing panics, what is merged is no longer different, and ids survive.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use slipway_azure::{
    arm::{ErrorResponse, ResourceId, stable},
    credential::Certificate,
    diff::{Record, differences, merge},
    resource::{AsoObject, Mapping, Table, from_arm, needs},
};

/// JSON as ARM bodies have it: few names, so that two bodies meet.
fn body() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..5i64).prop_map(Value::from),
        "[ab]{0,2}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            members(inner).prop_map(Value::Object),
        ]
    });
    members(value).prop_map(Value::Object)
}

fn members(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    let name = prop::sample::select(vec![
        "name",
        "count",
        "tags",
        "mode",
        "a",
        "b",
        "nodeTaints",
        "nodeLabels",
    ]);
    prop::collection::btree_map(name, value, 0..4).prop_map(|members| {
        members
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    })
}

fn pool() -> Mapping {
    Table::get()
        .lookup(
            "containerservice.azure.com",
            "ManagedClustersAgentPool",
            "v1api20240901",
        )
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn what_is_merged_is_no_longer_different(desired in body(), observed in body(), sent in body()) {
        let mapping = pool();
        let desired = json!({"properties": desired});
        let observed = json!({"properties": observed});
        let record = Record::sent(&json!({"properties": sent}), &[]);
        let merged = merge(&mapping, &desired, Some(&observed), Some(&record));
        let left = differences(&mapping, &desired, &merged, None, &[]);
        prop_assert!(left.is_empty(), "{left:?}\n{desired}\n{observed}\n{merged}");
    }

    #[test]
    fn a_body_does_not_differ_from_itself_and_what_azure_made_of_it_is_accepted(desired in body(), observed in body()) {
        let mapping = pool();
        let desired = json!({"properties": desired});
        prop_assert!(differences(&mapping, &desired, &desired, None, &[]).is_empty());
        let observed = json!({"properties": observed});
        let record = Record::sent(&desired, &[]).settle(&mapping, &observed);
        let left = differences(&mapping, &desired, &observed, Some(&record), &[]);
        prop_assert!(left.is_empty(), "{left:?}\n{desired}\n{observed}\n{record:?}");
    }

    #[test]
    fn any_manifest_is_read_or_refused(spec in body(), kind in prop::sample::select(vec![
        ("containerservice.azure.com/v1api20240901", "ManagedCluster"),
        ("containerservice.azure.com/v20250801", "ManagedClustersAgentPool"),
        ("network.azure.com/v1api20201101", "VirtualNetwork"),
    ])) {
        let manifest = json!({"apiVersion": kind.0, "kind": kind.1, "metadata": {"name": "n"}, "spec": spec});
        let object = AsoObject::parse(&manifest).unwrap();
        let _ = needs(&object);
        let _ = from_arm(&object.mapping, &json!({"properties": manifest["spec"]}));
    }

    #[test]
    fn any_refusal_is_read_and_its_text_is_stable(body in prop::collection::vec(any::<u8>(), 0..200), status in 400u16..600) {
        let refusal = ErrorResponse::read(status, None, &body);
        prop_assert!(!refusal.code.is_empty() && !refusal.message.is_empty());
        prop_assert_eq!(stable(&refusal.message), refusal.message);
    }

    #[test]
    fn any_certificate_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), password in ".{0,8}") {
        prop_assert!(Certificate::read("i", &bytes, &password).is_err());
    }

    #[test]
    fn any_id_is_read_or_refused_and_reads_back(text in "(/?(subscriptions|resourceGroups|providers|a|M\\.N|%2e|\\.\\.)){0,9}") {
        if let Ok(id) = ResourceId::parse(&text) {
            prop_assert_eq!(ResourceId::parse(id.as_str()).unwrap(), id.clone());
            let _ = (id.parent(), id.provider(), id.resource_type(), id.name().to_owned());
        }
    }
}
