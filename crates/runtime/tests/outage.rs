//! A controller whose apiserver is gone for long, or has forgotten what happened meanwhile: no event is missed, nothing is
//! written twice, and nothing crashes. The apiserver's audit log is the proof.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use slipway_testbed::{
    Cluster, WorkloadCluster,
    audit::{Mark, Request},
};

use crate::{
    family::{Family, Names, make_parents, wait_for_children},
    proxy::Proxy,
};

/// Who the controller is, for the audit log.
const USER: &str = "family";

fn requests(cluster: &Cluster, since: Option<Mark>) -> Vec<Request> {
    cluster
        .audit()
        .requests(since, |request| request.username() == USER)
        .expect("the audit log can be read")
}

/// Children made, by the name of their parent.
fn made(requests: &[Request]) -> BTreeMap<String, usize> {
    let mut made = BTreeMap::new();
    let creates = requests
        .iter()
        .filter(|request| request.verb == "create" && request.object.resource == "secrets");
    for create in creates.filter(|create| create.response.code == 201) {
        *made.entry(create.object.name.clone()).or_default() += 1;
    }
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_that_etcd_compacted_is_made_up_for_by_a_list() {
    // Without its cache the apiserver asks etcd for the past, and etcd has forgotten it.
    let cluster = WorkloadCluster::builder()
        .name("compacted")
        .audit_everything_of(USER)
        .api_server_argument("--watch-cache=false")
        .start()
        .await
        .unwrap();
    let namespace = cluster.namespace("compacted").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), &namespace);
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &namespace);
    let proxy = Proxy::to(cluster.port()).await;
    let mut config = cluster.config_as(USER, &["system:masters"]);
    config.cluster_url = format!("https://{}", proxy.address).parse().unwrap();
    let family = Family::start(config, &namespace, Names::New);
    make_parents(&maps, 0..20).await;
    wait_for_children(&secrets, 0..20).await;

    proxy.refuse(true);
    let mark = cluster.audit().mark().unwrap();
    let page = ListParams::default().limit(1);
    let token = secrets.list(&page).await.unwrap().metadata.continue_.unwrap();
    // A child goes, a parent changes and others come while the controller cannot see it.
    let orphaned = secrets
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .remove(0);
    let bereft = orphaned.metadata.owner_references.unwrap().remove(0).name;
    let delete = DeleteParams::default();
    secrets
        .delete(&orphaned.metadata.name.unwrap(), &delete)
        .await
        .unwrap();
    let change = Patch::Merge(json!({"data": {"v": "2"}}));
    maps.patch("parent-1", &PatchParams::default(), &change)
        .await
        .unwrap();
    make_parents(&maps, 20..30).await;
    cluster.compact().await.unwrap();
    // The same happens to a list between two pages, as the apiserver in memory has it.
    let refused = secrets
        .list(&page.clone().continue_token(&token))
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 410 && status.reason == "Expired"),
        "{refused}"
    );
    proxy.refuse(false);
    wait_for_children(&secrets, 0..30).await;
    family.stop().await;
    wait_for_children(&secrets, 0..30).await;

    let requests = requests(&cluster, Some(mark));
    for resource in ["configmaps", "secrets"] {
        let verbs: Vec<&str> = requests
            .iter()
            .filter(|request| request.object.resource == resource && request.verb != "create")
            .map(|request| request.verb.as_str())
            .collect();
        assert_eq!(
            verbs.first(),
            Some(&"watch"),
            "{resource}: it first goes on from where it was: {verbs:?}"
        );
        assert!(
            verbs.contains(&"list"),
            "{resource}: it lists because the past is gone: {verbs:?}"
        );
    }
    let made = made(&requests);
    let twice: Vec<_> = made.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert_eq!(made.len(), 11, "ten new parents and {bereft}, no more: {made:?}");
    cluster.stop();
}

/// A full minute with `cargo xtask test --full`; otherwise long enough for watches and reconciles to fail many times.
fn outage() -> Duration {
    if std::env::var_os("SLIPWAY_TEST_FULL").is_some() {
        Duration::from_mins(1)
    } else {
        Duration::from_secs(6)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apiserver_that_is_gone_for_long_is_waited_for() {
    let cluster = WorkloadCluster::builder()
        .name("outage")
        .audit_everything_of(USER)
        .start()
        .await
        .unwrap();
    let namespace = cluster.namespace("outage").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), &namespace);
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), &namespace);
    let config = cluster.config_as(USER, &["system:masters"]);
    let family = Family::start(config, &namespace, Names::Derived);
    make_parents(&maps, 0..40).await;
    wait_for_children(&secrets, 0..40).await;

    // It dies in the middle of work.
    make_parents(&maps, 40..60).await;
    cluster.process("kube-apiserver").unwrap().kill();
    tokio::time::sleep(outage()).await;
    cluster.restart("kube-apiserver").await.unwrap();
    secrets
        .delete("parent-3", &DeleteParams::default())
        .await
        .unwrap();
    make_parents(&maps, 60..70).await;
    wait_for_children(&secrets, 0..70).await;
    let text = family.metrics.encode();
    family.stop().await;
    wait_for_children(&secrets, 0..70).await;

    let requests = requests(&cluster, None);
    let made = made(&requests);
    let twice: Vec<_> = made
        .iter()
        .filter(|(name, times)| **times > 1 && *name != "parent-3")
        .collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert_eq!(made["parent-3"], 2, "the deleted child came back, once");
    // At most twenty objects were in work, each with a backoff of its own, and two watches.
    let errors: u64 = text
        .lines()
        .filter(|line| line.starts_with("rest_client_requests_total{code=\"<error>\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum();
    assert!((1..=400).contains(&errors), "{errors} requests failed");
    cluster.stop();
}
