//! What hosts are told where it does not come from the control plane alone: pools and datastores.

use kube::api::PostParams;
use serde_json::json;
use slipway_k3s::api::KThreesConfig;

use super::base64_of;
use crate::{
    driver::{Driver, NEW},
    environment::{NAMESPACE, create, is_absent},
};

/// S-24: the config of a machine pool gets the version of the pool's template, and its data is made once the control
/// plane is there.
#[tokio::test(start_paused = true)]
async fn a_machine_pool_gets_its_bootstrap_data() {
    let mut driver = Driver::standing(1, NEW).await;
    let pool = create(
        &driver.dynamic("cluster.x-k8s.io", "v1beta2", "MachinePool"),
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool",
            "metadata": {"name": "pool", "namespace": NAMESPACE},
            "spec": {"clusterName": "edge", "template": {"spec": {"clusterName": "edge", "version": "v1.34.0+k3s1",
                "bootstrap": {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KThreesConfig", "name": "pool"}}}}}}),
    )
    .await;
    let config: KThreesConfig = serde_json::from_value(json!({
        "metadata": {"name": "pool", "namespace": NAMESPACE,
            "labels": {"cluster.x-k8s.io/cluster-name": "edge"},
            "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool", "name": "pool",
                "uid": pool.metadata.uid, "controller": true}]},
        "spec": {"agentConfig": {"nodeLabels": ["tier=pool"]}}}))
    .expect("a config");
    driver
        .configs()
        .create(&PostParams::default(), &config)
        .await
        .expect("it is created");
    driver.rounds(2).await;
    let secret = driver.secrets().get("pool").await.expect("the data");
    let userdata = String::from_utf8(secret.data.expect("data")["value"].0.clone()).expect("text");
    assert!(
        userdata.contains("INSTALL_K3S_VERSION=v1.34.0+k3s1"),
        "{userdata}"
    );
    assert!(userdata.contains("- tier=pool") && userdata.contains("k3s-install.sh agent"));
    let status = driver
        .configs()
        .get("pool")
        .await
        .expect("it")
        .status
        .expect("a status");
    assert_eq!(status.data_secret_name.as_deref(), Some("pool"));
}

/// S-53: an external datastore: its connection string reaches the servers from the secret, no CA of etcd is made,
/// and an even number of servers heals without a read of etcd.
#[tokio::test(start_paused = true)]
async fn an_external_datastore_is_used_and_healed() {
    let spec = json!({"kthreesConfigSpec": {"serverConfig": {"datastore": {
        "endpointFrom": {"secret": {"name": "database", "key": "url"}}, "caFile": "/etc/database.crt"}}}});
    let mut driver = Driver::with(2, NEW, spec).await;
    driver.rounds(3).await;
    assert!(driver.model.lock().hosts.is_empty(), "the secret is waited for");
    let secret = serde_json::from_value(json!({"metadata": {"name": "database"},
        "data": {"url": base64_of("postgres://fleet:hunter2@10.0.0.9/k3s")}}))
    .expect("a secret");
    driver
        .secrets()
        .create(&PostParams::default(), &secret)
        .await
        .expect("it is created");
    for _ in 0..40 {
        driver.round().await;
        if driver.model.lock().nodes.len() == 2 {
            break;
        }
    }
    driver.rounds(3).await;
    let names = driver.names().await;
    assert_eq!(names.len(), 2);
    let userdata = driver.userdata_of(&names[0]);
    assert!(
        userdata.contains("datastore-endpoint: postgres://fleet:hunter2@10.0.0.9/k3s")
            && userdata.contains("datastore-cafile: /etc/database.crt"),
        "{userdata}"
    );
    assert!(is_absent(&driver.secrets(), "edge-etcd").await);
    let plane = serde_json::to_string(&driver.planes().get("edge").await.expect("it")).unwrap_or_default();
    assert!(
        !plane.contains("hunter2"),
        "the password is nowhere in the status"
    );
    let keeper = driver.model.lock().members[0].host.clone();
    let victim = names
        .iter()
        .find(|name| **name != keeper)
        .expect("the other")
        .clone();
    driver.model.lock().kill(&victim);
    driver.rounds(5).await;
    driver.hand_over(&victim).await;
    for _ in 0..30 {
        driver.round().await;
        let names = driver.names().await;
        if names.len() == 2 && !names.contains(&victim) && driver.model.lock().nodes.len() == 2 {
            break;
        }
    }
    let names = driver.names().await;
    assert!(
        names.len() == 2 && !names.contains(&victim),
        "the dead one is replaced: {names:?}"
    );
}
