//! Informers over connections that break, on a real apiserver.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, PartialObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use slipway_runtime::{
    Informer, Informers, Metrics, ObjectKey, Random, Scope,
    informer::{Event, Subscription},
    instrumented_client,
};
use slipway_testbed::shared;
use tokio_util::sync::CancellationToken;

use crate::proxy::Proxy;

/// Only a guard against hanging; nothing here is measured.
const HANG: Duration = Duration::from_mins(2);

fn map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([("kind".to_owned(), "ours".to_owned())])),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("v".to_owned(), value.to_owned())])),
        ..ConfigMap::default()
    }
}

/// Reads changes until the told state is the expected one; every change must follow from the state before.
async fn follow(
    subscription: &mut Subscription<ConfigMap>,
    told: &mut BTreeMap<String, String>,
    expected: &[(&str, &str)],
) {
    let expected: BTreeMap<String, String> = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let value = |map: &ConfigMap| map.data.as_ref().expect("it has data")["v"].clone();
    while *told != expected {
        let change = tokio::time::timeout(HANG, subscription.next())
            .await
            .unwrap_or_else(|_| panic!("waiting for {expected:?}, told {told:?}"))
            .expect("the informer runs");
        let name = change.key.name().to_owned();
        match change.event() {
            Event::Added(new) => {
                assert!(told.insert(name, value(new)).is_none(), "added twice");
            }
            Event::Updated { old, new } => {
                assert_eq!(told.insert(name, value(new)), Some(value(old)));
            }
            Event::Deleted(_) => {
                assert!(told.remove(&name).is_some(), "deleted but never told");
            }
        }
    }
}

#[tokio::test]
async fn cut_and_refused_connections_lose_no_change() {
    let cluster = shared("plain").await.unwrap();
    let namespace = cluster.namespace("informers").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), &namespace);
    let proxy = Proxy::to(cluster.port()).await;
    let mut config = cluster.config_as("testbed-admin", &["system:masters"]);
    config.cluster_url = format!("https://{}", proxy.address).parse().unwrap();
    let metrics = Metrics::new();
    let client = instrumented_client(config, &metrics).unwrap();
    let stopped = CancellationToken::new();
    let informers = Informers::new(client, metrics.clone(), Random::seeded(1), stopped.clone());

    let post = PostParams::default();
    maps.create(&post, &map("a", "1")).await.unwrap();
    maps.create(&post, &map("b", "1")).await.unwrap();
    // The cluster puts a map of its own into every namespace.
    let informer: Informer<ConfigMap> = informers.get(Scope::namespace(&namespace).labels("kind=ours"));
    let mut subscription = informer.subscribe();
    let mut told = BTreeMap::new();
    follow(&mut subscription, &mut told, &[("a", "1"), ("b", "1")]).await;

    proxy.cut();
    let patch = Patch::Merge(json!({"data": {"v": "2"}}));
    maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    maps.create(&post, &map("c", "1")).await.unwrap();
    follow(
        &mut subscription,
        &mut told,
        &[("a", "2"), ("b", "1"), ("c", "1")],
    )
    .await;

    proxy.refuse(true);
    let before = metrics.encode();
    let delete = DeleteParams::default();
    maps.delete("b", &delete).await.unwrap();
    maps.delete("c", &delete).await.unwrap();
    maps.create(&post, &map("c", "2")).await.unwrap();
    // Until the informer has noticed that nobody answers.
    tokio::time::timeout(HANG, async {
        while watch_errors(&metrics.encode()) < watch_errors(&before) + 3 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(informer.len(), 3, "the cache stays readable while nobody answers");
    proxy.refuse(false);
    follow(&mut subscription, &mut told, &[("a", "2"), ("c", "2")]).await;
    assert!(informer.get(&ObjectKey::namespaced(&namespace, "b")).is_none());

    let lists = r#"slipway_informer_lists_total{kind="ConfigMap"} 1"#;
    assert!(
        metrics.encode().contains(lists),
        "the watch was resumed each time"
    );
    drop((informer, subscription));
    stopped.cancel();
}

fn watch_errors(text: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(r#"slipway_informer_watch_errors_total{kind="ConfigMap"} "#))
        .map_or(0, |count| count.parse().expect("a count"))
}

#[tokio::test]
async fn secrets_are_watched_without_their_content() {
    let cluster = shared("plain").await.unwrap();
    let namespace = cluster.namespace("metadata").await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &namespace);
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some("token".to_owned()),
            labels: Some(BTreeMap::from([("kind".to_owned(), "join".to_owned())])),
            ..ObjectMeta::default()
        },
        string_data: Some(BTreeMap::from([(
            "value".to_owned(),
            "canary-in-the-mine".to_owned(),
        )])),
        ..Secret::default()
    };
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let informers = Informers::new(
        cluster.client(),
        Metrics::new(),
        Random::seeded(1),
        CancellationToken::new(),
    );
    let informer: Informer<PartialObjectMeta<Secret>> = informers.get(Scope::namespace(&namespace));
    tokio::time::timeout(HANG, informer.synced()).await.unwrap();
    let seen = informer.get(&ObjectKey::namespaced(&namespace, "token")).unwrap();
    assert_eq!(seen.metadata.labels.as_ref().unwrap()["kind"], "join");
    let types = seen.types.as_ref().unwrap();
    assert_eq!(
        types.kind, "PartialObjectMetadata",
        "the server left the content out"
    );
}
