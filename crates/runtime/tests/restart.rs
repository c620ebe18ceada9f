//! A controller through restarts of the apiserver: every parent gets one child, and none gets two.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use slipway_testbed::WorkloadCluster;

use crate::family::{Family, Names, make_parents, wait_for_children};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_apiserver_misses_nothing_and_doubles_nothing() {
    let cluster = WorkloadCluster::builder().name("restart").start().await.unwrap();
    let namespace = cluster.namespace("restart").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), &namespace);
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &namespace);
    let config = cluster.config_as("testbed-admin", &["system:masters"]);
    let family = Family::start(config, &namespace, Names::New);

    make_parents(&maps, 0..40).await;
    // An answer lost on the wire would leave a child under a name that nobody noted, so nothing is in work now.
    wait_for_children(&secrets, 0..40).await;
    cluster.restart("kube-apiserver").await.unwrap();
    make_parents(&maps, 40..80).await;
    wait_for_children(&secrets, 0..80).await;
    cluster.restart("kube-apiserver").await.unwrap();
    make_parents(&maps, 80..100).await;
    wait_for_children(&secrets, 0..100).await;

    family.stop().await;
    wait_for_children(&secrets, 0..100).await;
    cluster.stop();
}
