//! The fake core does to a Machine and its infrastructure what Cluster API's does.

use serde_json::json;
use slipway_apiserver_sim::Apiserver;
use slipway_kit::{
    core::{FakeCore, kinds},
    objects::{create, delete, find, is_deleting, merge, merge_status},
};
use slipway_runtime::Clock;

#[tokio::test(start_paused = true)]
async fn a_machine_learns_from_its_infrastructure_and_outlives_it() {
    let server = Apiserver::new(Clock::system());
    server.install(&kinds::of_core(), &[], &[]);
    let hull = kinds::foreign(kinds::INFRASTRUCTURE, "v1beta2", "Hull");
    server.install(&[hull], &[], &[]);
    let core = FakeCore::new(server.clone(), Clock::system());
    let seen = |kind: &str| server.look(|objects| find(objects, kind, "north").cloned());
    let made = [
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "north"}}),
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": {"name": "north"},
            "spec": {"clusterName": "north", "infrastructureRef": {"kind": "Hull", "name": "north"}}}),
        json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Hull",
            "metadata": {"name": "north", "finalizers": ["hull"]}, "spec": {"providerID": "hull://north"}}),
    ];
    for object in &made {
        create(&server, object).await;
    }
    core.reconcile().await;
    let (machine, hull) = (
        seen("Machine").expect("it is there"),
        seen("Hull").expect("it is there"),
    );
    assert_eq!(
        hull["metadata"]["ownerReferences"][0]["uid"],
        machine["metadata"]["uid"]
    );
    assert!(
        machine["spec"]["providerID"].is_null(),
        "not before it is provisioned"
    );

    let addresses = json!([{"type": "InternalIP", "address": "10.0.0.1"}]);
    let status = json!({"initialization": {"provisioned": true}, "addresses": addresses});
    merge_status(&server, &hull, status).await;
    core.reconcile().await;
    let machine = seen("Machine").expect("it is there");
    assert_eq!(machine["spec"]["providerID"], "hull://north");
    assert_eq!(
        machine["status"]["initialization"]["infrastructureProvisioned"],
        true
    );
    assert_eq!(machine["status"]["addresses"], addresses);

    delete(&server, &machine).await;
    for _ in 0..3 {
        core.reconcile().await;
    }
    assert!(is_deleting(&seen("Hull").expect("its finalizer holds it")));
    assert!(seen("Machine").is_some(), "it waits for its infrastructure");
    merge(&server, &hull, json!({"metadata": {"finalizers": null}})).await;
    core.reconcile().await;
    assert!(seen("Machine").is_none());
}
