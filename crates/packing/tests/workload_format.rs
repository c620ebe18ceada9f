//! The workload format reads what it writes and loses nothing on the way.

use slipway_packing::model::Workload;

#[test]
fn the_example_survives_a_round_trip() {
    let text = include_str!("data/example-workload.json");
    let workload: Workload = serde_json::from_str(text).expect("the example is a workload");
    assert_eq!(workload.pods.len(), 4);
    assert_eq!(workload.snapshot.instance_types["general"].len(), 3);
    assert_eq!(workload.snapshot.nodes[0].spec.provider_id, "example://1");
    let again: Workload = serde_json::from_value(serde_json::to_value(&workload).expect("it serializes"))
        .expect("it parses again");
    assert_eq!(again, workload);
}

#[test]
fn says_where_a_quantity_is_wrong() {
    let error = serde_json::from_str::<Workload>(r#"{"nodePools": [{"spec": {"limits": {"cpu": "ten"}}}]}"#)
        .expect_err("ten is no quantity");
    assert!(error.to_string().contains("\"ten\" is not a quantity"), "{error}");
}
