//! Informers against a server that breaks in all the ways servers do, in paused time.

use std::{collections::BTreeMap, time::Duration};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::{ObjectKey, test_server::TestServer};

const MAPS: &str = "/api/v1/configmaps";

fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"v": value}})
}

fn malformed(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "data": "not a map"})
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced("default", name)
}

struct Fixture {
    server: TestServer,
    informers: Informers,
    metrics: Metrics,
    stopped: CancellationToken,
}

fn fixture() -> Fixture {
    let (server, metrics, stopped) = (TestServer::new(), Metrics::new(), CancellationToken::new());
    let informers = Informers::new(
        server.client(),
        metrics.clone(),
        Random::seeded(3),
        stopped.clone(),
    );
    Fixture {
        server,
        informers,
        metrics,
        stopped,
    }
}

fn value(object: &ConfigMap) -> &str {
    &object.data.as_ref().unwrap()["v"]
}

/// Lets everything that can happen now happen.
async fn settle() {
    sleep(Duration::from_secs(5)).await;
}

/// What is told until nothing more comes: `+a=1`, `a=1>2`, `-a=2`.
async fn told(subscription: &mut Subscription<ConfigMap>) -> Vec<String> {
    settle().await;
    let mut told = Vec::new();
    while let Some(Some(change)) = subscription.next().now_or_never() {
        let name = change.key.name();
        told.push(match change.event() {
            Event::Added(new) => format!("+{name}={}", value(new)),
            Event::Updated { old, new } => format!("{name}={}>{}", value(old), value(new)),
            Event::Deleted(last) => format!("-{name}={}", value(last)),
        });
    }
    told.sort();
    told
}

fn contents(informer: &Informer<ConfigMap>) -> BTreeMap<String, String> {
    let objects = informer.list();
    let pairs = objects
        .iter()
        .map(|object| (object.metadata.name.clone().unwrap(), value(object).to_owned()));
    pairs.collect()
}

/// However a kind is kept, one watch serves whoever asks for it. What is kept as text is decoded each time.
#[tokio::test(start_paused = true)]
async fn a_kind_is_kept_as_text_where_it_was_declared_so() {
    for as_text in [false, true] {
        let Fixture {
            server, informers, ..
        } = fixture();
        server.put(MAPS, map("a", "1"));
        if as_text {
            informers.keep_as_text::<ConfigMap>();
        }
        let first: Informer<ConfigMap> = informers.get(Scope::all());
        let second: Informer<ConfigMap> = informers.get(Scope::all());
        first.synced().await;
        assert_eq!(informers.len(), 1);
        let read = [&first, &second].map(|informer| informer.get(&key("a")).expect("it is there"));
        assert_eq!(value(&read[0]), value(&read[1]));
        assert_eq!(Arc::ptr_eq(&read[0], &read[1]), !as_text);
    }
}

#[tokio::test(start_paused = true)]
async fn one_watch_serves_all_and_ends_with_the_last() {
    let Fixture {
        server,
        informers,
        metrics,
        ..
    } = fixture();
    server.put(MAPS, map("a", "1"));
    let first: Informer<ConfigMap> = informers.get(Scope::all());
    let second: Informer<ConfigMap> = informers.get(Scope::all());
    let elsewhere: Informer<ConfigMap> = informers.get(Scope::namespace("default"));
    first.synced().await;
    second.synced().await;
    elsewhere.synced().await;
    settle().await;
    assert_eq!(contents(&second).len(), 1);
    assert_eq!(server.count("GET /api/v1/configmaps?"), 2, "one list, one watch");
    assert_eq!(server.count("GET /api/v1/namespaces/default/configmaps?"), 2);
    assert_eq!((informers.len(), informers.tasks(), server.watches()), (2, 2, 2));
    drop(first);
    settle().await;
    assert_eq!(
        (informers.len(), server.watches()),
        (2, 2),
        "somebody still reads"
    );
    let subscription = second.subscribe();
    drop((second, elsewhere));
    settle().await;
    assert_eq!(
        (informers.len(), server.watches()),
        (1, 1),
        "a subscriber reads too"
    );
    drop(subscription);
    settle().await;
    assert_eq!((informers.len(), informers.tasks(), server.watches()), (0, 0, 0));
    let text = metrics.encode();
    assert!(
        text.contains(r#"slipway_informers{kind="ConfigMap"} 0"#),
        "{text}"
    );
    assert!(
        text.contains(r#"slipway_informer_objects{kind="ConfigMap"} 0"#),
        "{text}"
    );
    let again: Informer<ConfigMap> = informers.get(Scope::all());
    again.synced().await;
    assert_eq!(again.len(), 1, "it can start again");
}

#[tokio::test(start_paused = true)]
async fn every_change_is_told_with_old_and_new_and_latecomers_get_the_present() {
    let Fixture {
        server, informers, ..
    } = fixture();
    server.put(MAPS, map("a", "1"));
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    let mut early = informer.subscribe();
    assert_eq!(told(&mut early).await, ["+a=1"]);
    server.put(MAPS, map("a", "2"));
    server.put(MAPS, map("b", "1"));
    assert_eq!(told(&mut early).await, ["+b=1", "a=1>2"]);
    server.remove(MAPS, Some("default"), "a");
    assert_eq!(told(&mut early).await, ["-a=2"]);
    let mut late = informer.subscribe();
    assert_eq!(told(&mut late).await, ["+b=1"]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_holds_up_nobody_and_gets_changes_joined() {
    let Fixture {
        server, informers, ..
    } = fixture();
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    let (mut slow, mut fast) = (informer.subscribe(), informer.subscribe());
    informer.synced().await;
    for number in 0..200 {
        server.put(MAPS, map("a", &number.to_string()));
        settle().await;
        assert_eq!(told(&mut fast).await.len(), 1);
    }
    assert_eq!(told(&mut slow).await, ["+a=199"]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_loses_nothing() {
    let Fixture {
        server, informers, ..
    } = fixture();
    server.put(MAPS, map("a", "1"));
    server.put(MAPS, map("b", "1"));
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    let mut subscription = informer.subscribe();
    told(&mut subscription).await;
    server.cut();
    server.put(MAPS, map("a", "2"));
    server.remove(MAPS, Some("default"), "b");
    server.put(MAPS, map("c", "1"));
    assert_eq!(told(&mut subscription).await, ["+c=1", "-b=1", "a=1>2"]);
    let lists = server
        .requests()
        .iter()
        .filter(|line| line.contains("limit="))
        .count();
    assert_eq!(lists, 1, "the watch was resumed, not the list repeated");
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_past_is_made_up_by_a_list_and_told_as_differences() {
    for by_status in [false, true] {
        let Fixture {
            server, informers, ..
        } = fixture();
        if by_status {
            server.refuse_old_versions_by_status();
        }
        for name in ["a", "b", "c"] {
            server.put(MAPS, map(name, "1"));
        }
        let informer: Informer<ConfigMap> = informers.get(Scope::all());
        let mut subscription = informer.subscribe();
        told(&mut subscription).await;
        server.cut();
        server.put(MAPS, map("a", "2"));
        server.remove(MAPS, Some("default"), "b");
        server.put(MAPS, map("d", "1"));
        server.compact();
        assert_eq!(
            told(&mut subscription).await,
            ["+d=1", "-b=1", "a=1>2"],
            "by status: {by_status}"
        );
        let expected = [("a", "2"), ("c", "1"), ("d", "1")];
        assert_eq!(
            contents(&informer),
            expected
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_keeps_a_quiet_watch_young() {
    let Fixture {
        server, informers, ..
    } = fixture();
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    informer.synced().await;
    settle().await;
    server.put(
        "/api/v1/secrets",
        json!({"metadata": {"name": "other", "namespace": "default"}}),
    );
    server.bookmark();
    settle().await;
    server.compact();
    server.cut();
    server.put(MAPS, map("a", "1"));
    settle().await;
    assert_eq!(informer.len(), 1);
    assert_eq!(
        server
            .requests()
            .iter()
            .filter(|line| line.contains("limit="))
            .count(),
        1,
        "no second list: {:?}",
        server.requests()
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_gone_for_a_minute_is_asked_at_a_bounded_pace_and_nothing_is_missed() {
    let Fixture {
        server,
        informers,
        metrics,
        ..
    } = fixture();
    server.put(MAPS, map("a", "1"));
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    let mut subscription = informer.subscribe();
    told(&mut subscription).await;
    let before = server.requests().len();
    server.set_down(true);
    sleep(Duration::from_mins(1)).await;
    let asked = server.requests().len() - before;
    assert!((4..=12).contains(&asked), "asked {asked} times in a minute");
    assert_eq!(informer.len(), 1, "the cache stays readable");
    server.put(MAPS, map("a", "2"));
    server.set_down(false);
    sleep(Duration::from_secs(40)).await;
    assert_eq!(told(&mut subscription).await, ["a=1>2"]);
    assert!(metrics.encode().contains("slipway_informer_watch_errors_total"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_watches_at_once_is_not_hammered() {
    let Fixture {
        server, informers, ..
    } = fixture();
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    informer.synced().await;
    server.end_watches_at_once(true);
    let before = server.requests().len();
    sleep(Duration::from_mins(1)).await;
    let asked = server.requests().len() - before;
    assert!(asked <= 61, "asked {asked} times in a minute");
    server.end_watches_at_once(false);
    server.put(MAPS, map("a", "1"));
    settle().await;
    assert_eq!(informer.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_asked_anew() {
    let Fixture {
        server, informers, ..
    } = fixture();
    server.set_silent(true);
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    sleep(Duration::from_secs(30)).await;
    assert_eq!(server.requests().len(), 1);
    server.set_silent(false);
    server.put(MAPS, map("a", "1"));
    sleep(Duration::from_secs(40)).await;
    assert_eq!(informer.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_line_that_cannot_be_read_costs_a_list_and_no_event() {
    let Fixture {
        server, informers, ..
    } = fixture();
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    let mut subscription = informer.subscribe();
    told(&mut subscription).await;
    server.garble();
    server.put(MAPS, map("a", "1"));
    assert_eq!(told(&mut subscription).await, ["+a=1"]);
    assert_eq!(
        server
            .requests()
            .iter()
            .filter(|line| line.contains("limit="))
            .count(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_malformed_object_stops_nobody_and_heals() {
    let Fixture {
        server,
        informers,
        metrics,
        ..
    } = fixture();
    let gauge = |text: &str| {
        let line = format!(r#"slipway_informer_malformed_objects{{kind="ConfigMap"}} {text}"#);
        assert!(metrics.encode().contains(&line), "{line}: {}", metrics.encode());
    };
    server.put(MAPS, map("a", "1"));
    server.put(MAPS, malformed("bad"));
    server.put(MAPS, map("c", "1"));
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    let mut subscription = informer.subscribe();
    assert_eq!(told(&mut subscription).await, ["+a=1", "+c=1"]);
    gauge("1");
    let record = informer.malformed();
    assert_eq!(record.len(), 1);
    assert_eq!(record[0].key, key("bad"));

    server.put(MAPS, malformed("a"));
    server.put(MAPS, map("c", "2"));
    assert_eq!(told(&mut subscription).await, ["c=1>2"]);
    assert!(informer.get(&key("a")).is_none());
    gauge("2");

    server.put(MAPS, map("a", "3"));
    server.put(MAPS, map("bad", "1"));
    assert_eq!(told(&mut subscription).await, ["+bad=1", "a=1>3"]);
    gauge("0");

    server.put(MAPS, malformed("a"));
    told(&mut subscription).await;
    server.remove(MAPS, Some("default"), "a");
    assert_eq!(
        told(&mut subscription).await,
        ["-a=3"],
        "told with its last sound state"
    );
    gauge("0");
}

#[tokio::test(start_paused = true)]
async fn indexes_follow_every_change() {
    let Fixture {
        server, informers, ..
    } = fixture();
    server.put(MAPS, map("a", "red"));
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    let by_value = informer.index("by-value", |object: &ConfigMap| vec![value(object).to_owned()]);
    let names = |value: &str| -> Vec<String> {
        let found = by_value.get(value);
        found
            .iter()
            .map(|object| object.metadata.name.clone().unwrap())
            .collect()
    };
    settle().await;
    server.put(MAPS, map("b", "red"));
    server.put(MAPS, map("c", "blue"));
    settle().await;
    assert_eq!(names("red"), ["a", "b"]);
    server.put(MAPS, map("a", "blue"));
    server.remove(MAPS, Some("default"), "b");
    settle().await;
    assert_eq!(
        (names("red").len(), names("blue")),
        (0, vec!["a".to_owned(), "c".to_owned()])
    );
    let same = informer.index("by-value", |_: &ConfigMap| Vec::new());
    assert_eq!(same.get("blue").len(), 2, "an index is shared by name");
}

#[tokio::test(start_paused = true)]
async fn scopes_are_asked_of_the_server() {
    let Fixture {
        server, informers, ..
    } = fixture();
    let mut labelled = map("mine", "1");
    labelled["metadata"]["labels"] = json!({WATCH_FILTER_LABEL: "fleet-a"});
    server.put(MAPS, labelled.clone());
    server.put(MAPS, map("other", "1"));
    let settings = Settings {
        namespace: Some("default".to_owned()),
        watch_filter: Some("fleet-a".to_owned()),
        ..Settings::default()
    };
    let informer: Informer<ConfigMap> = informers.get(Scope::of_work(&settings));
    let mut subscription = informer.subscribe();
    assert_eq!(told(&mut subscription).await, ["+mine=1"]);
    server.put(MAPS, map("mine", "1"));
    assert_eq!(
        told(&mut subscription).await,
        ["-mine=1"],
        "without the label it is no longer ours"
    );
    let namespaces: Informer<Namespace> = informers.get(Scope::of_namespace(&settings));
    namespaces.synced().await;
    assert_eq!(
        server.count("GET /api/v1/namespaces?&limit"),
        1,
        "a cluster-scoped kind has no namespace: {:?}",
        server.requests()
    );
}

#[tokio::test(start_paused = true)]
async fn kinds_can_be_learnt_at_run_time_and_long_lists_come_in_pages() {
    let Fixture {
        server, informers, ..
    } = fixture();
    let kind = GroupVersionKind::gvk("fleet.example.com", "v1", "Vessel");
    let resource = ApiResource::from_gvk_with_plural(&kind, "vessels");
    for number in 0..1200 {
        server.put(
            "/apis/fleet.example.com/v1/vessels",
            json!({"metadata": {"name": format!("v{number}"), "namespace": "default"}, "spec": {"draft": number}}),
        );
    }
    let full = informers.get_dynamic(&resource, Scope::all());
    let metadata = informers.get_metadata(&resource, Scope::all());
    full.synced().await;
    metadata.synced().await;
    assert_eq!((full.len(), metadata.len()), (1200, 1200));
    assert_eq!(full.get(&key("v7")).unwrap().data["spec"]["draft"], 7);
    assert_eq!(
        server
            .requests()
            .iter()
            .filter(|line| line.contains("limit=500"))
            .count(),
        6
    );
}

#[tokio::test(start_paused = true)]
async fn parts_that_nobody_reads_are_not_kept() {
    let Fixture {
        server, informers, ..
    } = fixture();
    let mut object = map("a", "1");
    object["metadata"]["managedFields"] = json!([{"manager": "somebody"}]);
    object["metadata"]["annotations"] = json!({"note": "long"});
    server.put(MAPS, object);
    let informer = informers.get_pruned::<ConfigMap>(
        Scope::all(),
        Pruning {
            name: "without-annotations",
            prune: |object| object.metadata.annotations = None,
        },
    );
    informer.synced().await;
    let kept = informer.get(&key("a")).unwrap();
    assert!(kept.metadata.managed_fields.is_none() && kept.metadata.annotations.is_none());
    let whole: Informer<ConfigMap> = informers.get(Scope::all());
    whole.synced().await;
    assert!(whole.get(&key("a")).unwrap().metadata.annotations.is_some());
}

#[tokio::test(start_paused = true)]
async fn stopping_ends_every_subscription() {
    let Fixture {
        server,
        informers,
        stopped,
        ..
    } = fixture();
    server.put(MAPS, map("a", "1"));
    let informer: Informer<ConfigMap> = informers.get(Scope::all());
    let mut subscription = informer.subscribe();
    settle().await;
    stopped.cancel();
    settle().await;
    assert!(
        subscription.next().await.is_some(),
        "what was told can still be read"
    );
    assert!(subscription.next().await.is_none());
    let mut late = informer.subscribe();
    assert!(late.next().await.is_some());
    assert!(late.next().await.is_none());
    assert_eq!(informers.tasks(), 0);
}
