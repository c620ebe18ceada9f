//! Controllers in another cluster than the manager's own, reached by a kubeconfig file that the user named: they work
//! there, stop with the connection, and nothing of theirs stays open.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{conditions::Condition, wait::await_condition},
};
use serde_json::json;
use slipway_runtime::{
    Context, Controller, Next, ObjectKey, Reconciler,
    workload::{Access, WorkloadClusters},
};
use slipway_testbed::WorkloadCluster;

/// Only a guard against hanging; nothing here is measured.
const HANG: Duration = Duration::from_mins(2);
const MARK: &str = "test.slipway.dev/seen";

struct Annotate;

impl Reconciler for Annotate {
    type Object = ConfigMap;
    type Error = kube::Error;

    async fn reconcile(&self, map: Arc<ConfigMap>, context: &Context) -> Result<Next, kube::Error> {
        if map.name_any().starts_with("ours") && !map.annotations().contains_key(MARK) {
            context
                .patch(
                    map.as_ref(),
                    &json!({"metadata": {"annotations": {MARK: "true"}}}),
                )
                .await?;
        }
        Ok(Next::OnChange)
    }
}

fn is_annotated() -> impl Condition<ConfigMap> {
    |map: Option<&ConfigMap>| map.is_some_and(|map| map.annotations().contains_key(MARK))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_work_in_the_cluster_of_a_kubeconfig_file_and_stop_with_it() {
    let cluster = WorkloadCluster::builder().name("other").start().await.unwrap();
    let namespace = cluster.namespace("other").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), &namespace);
    let make = async |name: &str| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        maps.patch(name, &PatchParams::apply("test"), &Patch::Apply(map))
            .await
            .unwrap();
    };
    // The manager's own cluster has no part in it: whoever asks it is refused.
    let nobody = kube::Client::new(
        tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("the manager's own cluster"))
        }),
        "default",
    );
    let manager = Context::for_tests(nobody, 7);
    let clusters = WorkloadClusters::of(&manager);
    let key = ObjectKey::namespaced("default", "other");
    let access = Access::from_file(cluster.kubeconfig()).await.unwrap();
    let connected = clusters.connect_to(&key, &access).unwrap();
    connected.run_controllers("test", &manager, || {
        vec![Controller::new("configmap", Annotate).into_registration()]
    });
    make("ours-1").await;
    tokio::time::timeout(HANG, await_condition(maps.clone(), "ours-1", is_annotated()))
        .await
        .expect("it is reconciled")
        .unwrap();

    clusters.disconnect(&key);
    drop(connected);
    manager.background.close();
    tokio::time::timeout(HANG, manager.background.wait())
        .await
        .expect("the controllers end");
    make("ours-2").await;
    // Everything that could still write has ended: one look is enough.
    assert!(!maps.get("ours-2").await.unwrap().annotations().contains_key(MARK));
    assert!(clusters.is_empty());
    let closed = async {
        // The watch ends when its task has seen that it is to.
        while !manager
            .metrics
            .encode()
            .contains(r#"slipway_informers{kind="ConfigMap"} 0"#)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, closed)
        .await
        .expect("no watch stays open");
    cluster.stop();
}
