//! A controller through a restart of the apiserver: every parent gets one child, and none gets two.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, ObjectMeta, PostParams},
};
use slipway_runtime::{
    Context, Controller, Informer, Metrics, Next, Reconciler, Scope, Settings, informer::WATCH_FILTER_LABEL,
    instrumented_client,
};
use slipway_testbed::WorkloadCluster;
use tokio_util::sync::CancellationToken;

/// Only a guard against hanging; nothing here is measured.
const HANG: Duration = Duration::from_mins(2);

/// Gives each map a secret under a new name, if the cache shows none: a stale cache would make it two.
struct OneChild;

impl Reconciler for OneChild {
    type Object = ConfigMap;
    type Error = kube::Error;

    async fn reconcile(&self, parent: Arc<ConfigMap>, context: &Context) -> Result<Next, kube::Error> {
        let secrets: Informer<Secret> = context.informers.get(Scope::of_namespace(&context.settings));
        let uid = parent.uid().unwrap_or_default();
        let is_child = |secret: &Arc<Secret>| secret.owner_references().iter().any(|owner| owner.uid == uid);
        if !secrets.list().iter().any(is_child) {
            let mut owner = parent.owner_ref(&()).expect("it comes from the server");
            owner.controller = Some(true);
            let child = Secret {
                metadata: ObjectMeta {
                    name: Some(format!("{}-{}", parent.name_any(), context.random.name_suffix(5))),
                    namespace: parent.namespace(),
                    owner_references: Some(vec![owner]),
                    ..ObjectMeta::default()
                },
                ..Secret::default()
            };
            context.create(&child).await?;
        }
        Ok(Next::OnChange)
    }
}

async fn make_parents(maps: &Api<ConfigMap>, names: std::ops::Range<usize>) {
    for number in names {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(format!("parent-{number}")),
                labels: Some(BTreeMap::from([(
                    WATCH_FILTER_LABEL.to_owned(),
                    "restart".to_owned(),
                )])),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        maps.create(&PostParams::default(), &map)
            .await
            .expect("the apiserver answers");
    }
}

async fn wait_for_children(secrets: &Api<Secret>, count: usize) {
    let enough = async {
        while secrets
            .list(&ListParams::default())
            .await
            .map_or(0, |list| list.items.len())
            < count
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(HANG, enough)
        .await
        .expect("a parent got no child");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_apiserver_misses_nothing_and_doubles_nothing() {
    let cluster = WorkloadCluster::builder().name("restart").start().await.unwrap();
    let namespace = cluster.namespace("restart").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), &namespace);
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &namespace);
    let metrics = Metrics::new();
    let client =
        instrumented_client(cluster.config_as("testbed-admin", &["system:masters"]), &metrics).unwrap();
    let shutdown = CancellationToken::new();
    let settings = Settings {
        namespace: Some(namespace.clone()),
        watch_filter: Some("restart".to_owned()),
        ..Settings::default()
    };
    let context = Context::new(client, settings, metrics.clone(), shutdown.clone());
    let registration = Controller::new("configmap", OneChild)
        .owns::<Secret>()
        .into_registration();
    let running = tokio::spawn((registration.run)(context));

    make_parents(&maps, 0..40).await;
    // An answer lost on the wire would leave a child under a name that nobody noted, so nothing is in work now.
    wait_for_children(&secrets, 40).await;
    cluster.restart("kube-apiserver").await.unwrap();
    make_parents(&maps, 40..80).await;
    wait_for_children(&secrets, 80).await;
    cluster.restart("kube-apiserver").await.unwrap();
    make_parents(&maps, 80..100).await;
    wait_for_children(&secrets, 100).await;

    shutdown.cancel();
    running.await.unwrap().unwrap();
    let children = secrets.list(&ListParams::default()).await.unwrap();
    let owners: Vec<String> = children
        .iter()
        .flat_map(|secret| secret.owner_references().iter().map(|owner| owner.name.clone()))
        .collect();
    let distinct: BTreeSet<&String> = owners.iter().collect();
    assert_eq!((owners.len(), distinct.len()), (100, 100), "one child each");
    let text = metrics.encode();
    assert!(
        text.contains(r#"controller_runtime_reconcile_panics_total{controller="configmap"} 0"#),
        "{text}"
    );
    cluster.stop();
}
