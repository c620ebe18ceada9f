//! Connections, their clients and their controllers against the test server, in paused time.

use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio_rustls::rustls;

use super::*;
use crate::{
    Controller, Informer, Next, Reconciler, Scope,
    controller::Registration,
    lease::{Leadership, NotLeading},
    test_server::TestServer,
};

const MAPS: &str = "/api/v1/configmaps";

fn kubeconfig(user: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"c",
        "clusters":[{{"name":"c","cluster":{{"server":"https://127.0.0.1:1"}}}}],
        "users":[{{"name":"u","user":{user}}}],
        "contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}]}}"#
    )
}

fn clusters(server: &TestServer) -> (WorkloadClusters, Metrics) {
    let (clusters, context) = clusters_of(server, Leadership::always());
    (clusters, context.metrics)
}

fn clusters_of(server: &TestServer, leadership: Leadership) -> (WorkloadClusters, Context) {
    let mut context = Context::for_tests(TestServer::new().client(), 5);
    context.leadership = leadership;
    let server = server.clone();
    let connector: Connector = Arc::new(move |_, _| Ok(server.client()));
    let clients = Clients::of(&context).connecting_by(Some(connector));
    (WorkloadClusters::with(clients, &context), context)
}

#[tokio::test(start_paused = true)]
async fn clusters_come_and_go_and_leave_nothing_behind() {
    let server = TestServer::new();
    server.put(MAPS, json!({"metadata": {"name": "a", "namespace": "default"}}));
    let (clusters, context) = clusters_of(&server, Leadership::always());
    let tasks_before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..3 {
        let mut held = Vec::new();
        for number in 0..50 {
            let key = ObjectKey::namespaced("default", &format!("cluster-{number}"));
            let cluster = clusters.connect(&key, &kubeconfig(r#"{"token":"t"}"#)).unwrap();
            let informer: Informer<ConfigMap> = cluster.informers.get(Scope::all());
            informer.synced().await;
            assert_eq!(informer.len(), 1);
            held.push((cluster, informer));
        }
        assert_eq!((clusters.len(), server.watches()), (50, 50));
        for key in clusters.keys() {
            clusters.disconnect(&key);
        }
        sleep(Duration::from_secs(1)).await;
        assert_eq!(server.watches(), 0, "stopped although somebody still reads");
        assert!(
            held.iter()
                .all(|(cluster, _)| cluster.is_stopped() && cluster.informers.tasks() == 0)
        );
        drop(held);
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(
        tokio::runtime::Handle::current().metrics().num_alive_tasks(),
        tasks_before
    );
    let text = context.metrics.encode();
    for line in [
        "slipway_workload_clusters 0",
        r#"slipway_informers{kind="ConfigMap"} 0"#,
        r#"slipway_informer_objects{kind="ConfigMap"} 0"#,
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_kubeconfig_replaces_the_connection() {
    let (clusters, metrics) = clusters(&TestServer::new());
    let key = ObjectKey::namespaced("default", "a");
    let first = clusters.connect(&key, &kubeconfig(r#"{"token":"one"}"#)).unwrap();
    let same = clusters.connect(&key, &kubeconfig(r#"{"token":"one"}"#)).unwrap();
    assert!(Arc::ptr_eq(&first, &same));
    let second = clusters.connect(&key, &kubeconfig(r#"{"token":"two"}"#)).unwrap();
    assert!(first.is_stopped() && !second.is_stopped());
    assert!(metrics.encode().contains("slipway_workload_clusters 1"));
}

#[tokio::test(start_paused = true)]
async fn health_follows_the_cluster() {
    let server = TestServer::new();
    let (clusters, _) = clusters(&server);
    let key = ObjectKey::namespaced("default", "a");
    let cluster = clusters.connect(&key, &kubeconfig(r#"{"token":"t"}"#)).unwrap();
    assert_eq!(cluster.health().reachable, Reachable::Unknown);
    let mut health = cluster.watch_health();
    health.changed().await.unwrap();
    assert_eq!(cluster.health().reachable, Reachable::Yes);
    server.set_down(true);
    health.changed().await.unwrap();
    let down = cluster.health();
    assert!(matches!(&down.reachable, Reachable::No { error, .. } if error.contains("refused")));
    assert!(down.last_contact.is_some());
    sleep(Duration::from_mins(1)).await;
    assert_eq!(cluster.health().last_contact, down.last_contact);
    server.set_down(false);
    health.changed().await.unwrap();
    assert_eq!(cluster.health().reachable, Reachable::Yes);
}

#[tokio::test(start_paused = true)]
async fn a_kubeconfig_that_reaches_into_this_machine_is_refused() {
    let (clusters, _) = clusters(&TestServer::new());
    let key = ObjectKey::namespaced("default", "a");
    let error = clusters
        .connect(&key, &kubeconfig(r#"{"tokenFile":"/var/run/secrets/token"}"#))
        .unwrap_err();
    assert!(
        error.to_string().contains("refers to files (tokenFile)"),
        "{error}"
    );
    let error = clusters.connect(&key, "clusters: [s3cret").unwrap_err();
    assert_eq!(
        error.to_string(),
        "reading the kubeconfig of cluster default/a: it is not a kubeconfig"
    );
    assert!(clusters.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_workload_cluster_is_not_written_to_without_the_lease() {
    let server = TestServer::new();
    let (until, leadership) = watch::channel(Some(Instant::now() + Duration::from_secs(10)));
    let (clusters, context) = clusters_of(&server, Leadership { until: leadership });
    let key = ObjectKey::namespaced("default", "a");
    let cluster = clusters.connect(&key, &kubeconfig(r#"{"token":"t"}"#)).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
    let write = async || {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        maps.patch("a", &PatchParams::apply("test"), &Patch::Apply(map))
            .await
    };
    write().await.unwrap();
    // The process was stopped for a while: nobody has told it yet that its time is over.
    tokio::time::advance(Duration::from_secs(10)).await;
    match write().await.unwrap_err() {
        kube::Error::Service(error) => assert!(error.is::<NotLeading>(), "{error}"),
        other => panic!("{other}"),
    }
    maps.get("a").await.unwrap();
    drop(until);
    let text = context.metrics.encode();
    let counted = |method: &str, code: &str| {
        text.contains(&format!(
            r#"rest_client_requests_total{{code="{code}",method="{method}",host="workload-cluster"}}"#
        ))
    };
    assert!(counted("PATCH", "200") && counted("GET", "200"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn every_request_ends_and_a_watch_goes_on() {
    // Answers with headers at once and a body that never comes; a watch is a body that comes late.
    let service = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
        let late = request.uri().query().is_some_and(|query| query.contains("watch"));
        let body = futures::stream::once(async move {
            sleep(Duration::from_secs(if late { 200 } else { 1_000_000 })).await;
            let line = concat!(r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#, "\n");
            Ok::<_, std::io::Error>(http_body::Frame::data(bytes::Bytes::from(line)))
        });
        Ok::<_, tower::BoxError>(http::Response::new(http_body_util::StreamBody::new(Box::pin(
            body,
        ))))
    });
    let connector: Connector = Arc::new(move |_, _| Ok(Client::new(service, "default")));
    let context = Context::for_tests(TestServer::new().client(), 5);
    let client = Clients::of(&context)
        .connecting_by(Some(connector))
        .connect(
            &ObjectKey::namespaced("default", "a"),
            &Access::from_text(&kubeconfig(r#"{"token":"t"}"#)).unwrap(),
        )
        .unwrap();
    let maps: Api<ConfigMap> = Api::all(client);
    let asked = Instant::now();
    match maps.list(&kube::api::ListParams::default()).await.unwrap_err() {
        kube::Error::Service(error) => assert!(error.is::<NoAnswer>(), "{error}"),
        other => panic!("{other}"),
    }
    assert_eq!(asked.elapsed().as_secs(), 30);
    let mut events = std::pin::pin!(maps.watch(&kube::api::WatchParams::default(), "0").await.unwrap());
    let event = futures::StreamExt::next(&mut events).await.unwrap();
    assert!(matches!(event, Ok(kube::api::WatchEvent::Added(_))), "{event:?}");
}

#[tokio::test]
async fn a_single_server_is_known_by_its_clusters_ca_and_an_expected_name() {
    crate::certificates::install_crypto_provider();
    let pair = crate::certificates::SelfSigned::generate(&["kubernetes".to_owned()]).unwrap();
    let listener = crate::server::Listener::bind("127.0.0.1:0", "--test")
        .await
        .unwrap();
    let address = listener.address().to_string();
    let protocol =
        crate::server::Protocol::tls(Arc::new(pair.certificates().unwrap()), rustls::ALL_VERSIONS, &[])
            .unwrap();
    let cancel = CancellationToken::new();
    let answer = |_| async {
        let version = json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
        http::Response::new(http_body_util::Full::new(bytes::Bytes::from(version.to_string())))
    };
    let serving = tokio::spawn(listener.serve(protocol, answer, cancel.clone()));
    let context = Context::for_tests(TestServer::new().client(), 5);
    let asks = async |access: Access| {
        let key = ObjectKey::namespaced("default", "a");
        let client = Clients::of(&context).connect(&key, &access).unwrap();
        client
            .apiserver_version()
            .await
            .map(|version| version.git_version)
    };
    let cluster = Access::from_text(&kubeconfig(r#"{"token":"t"}"#)).unwrap();
    let server = cluster.clone().at(&address).unwrap();
    let trusted = server.clone().trusting(&pair.ca).unwrap();
    assert_eq!(
        asks(trusted.clone().server_name("kubernetes")).await.unwrap(),
        "v1.36.3"
    );
    asks(trusted.clone())
        .await
        .expect_err("the certificate is for another name");
    asks(trusted.server_name("other"))
        .await
        .expect_err("nor for this one");
    let other = crate::certificates::SelfSigned::generate(&["kubernetes".to_owned()]).unwrap();
    let untrusted = server.trusting(&other.ca).unwrap().server_name("kubernetes");
    asks(untrusted).await.expect_err("another CA");
    assert_eq!(cluster.trusting("no PEM").unwrap_err(), Refused::Certificates);
    cancel.cancel();
    serving.abort();
}

/// Counts its reconciles and how many are under way at once, each of which takes a while.
#[derive(Clone, Default)]
struct Slow {
    done: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Reconciler for Slow {
    type Object = ConfigMap;
    type Error = kube::Error;

    async fn reconcile(&self, _: Arc<ConfigMap>, _: &Context) -> Result<Next, kube::Error> {
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        sleep(Duration::from_secs(5)).await;
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
        Ok(Next::After(Duration::from_secs(1)))
    }
}

impl Slow {
    fn set(&self) -> Vec<Registration> {
        vec![Controller::new("configmap", self.clone()).into_registration()]
    }
}

#[tokio::test(start_paused = true)]
async fn controllers_run_in_each_cluster_and_leave_nothing_behind() {
    let server = TestServer::new();
    server.put(MAPS, json!({"metadata": {"name": "a", "namespace": "default"}}));
    let (clusters, context) = clusters_of(&server, Leadership::always());
    let tasks_before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let slow = Slow::default();
    let keys: Vec<_> = (0..20)
        .map(|number| ObjectKey::namespaced("default", &format!("cluster-{number}")))
        .collect();
    for key in &keys {
        let cluster = clusters.connect(key, &kubeconfig(r#"{"token":"t"}"#)).unwrap();
        // A reconcile asks every time.
        for _ in 0..3 {
            cluster.run_controllers("test", &context, || slow.set());
        }
    }
    sleep(Duration::from_secs(2)).await;
    assert_eq!(
        (slow.under_way.load(Ordering::SeqCst), server.watches()),
        (20, 20)
    );
    let text = context.metrics.encode();
    assert!(
        text.contains(r#"max_concurrent_reconciles{controller="configmap"} 200"#),
        "{text}"
    );

    // One set is stopped, its connection stays; what was under way ends.
    let first = clusters.get(&keys[0]).unwrap();
    first.stop_controllers("test");
    sleep(Duration::from_secs(30)).await;
    assert_eq!((server.watches(), first.is_stopped()), (19, false));

    for key in &keys {
        clusters.disconnect(key);
    }
    drop(first);
    sleep(Duration::from_secs(30)).await;
    let done = slow.done.load(Ordering::SeqCst);
    sleep(Duration::from_mins(10)).await;
    assert_eq!(
        slow.done.load(Ordering::SeqCst),
        done,
        "nothing is reconciled any more"
    );
    assert_eq!(
        (server.watches(), clusters.len(), context.background.len()),
        (0, 0, 0)
    );
    assert_eq!(clusters.inner.set_locks.locks.lock().len(), 0);
    assert_eq!(
        tokio::runtime::Handle::current().metrics().num_alive_tasks(),
        tasks_before
    );
    let text = context.metrics.encode();
    for line in [
        "slipway_workload_clusters 0",
        r#"slipway_informers{kind="ConfigMap"} 0"#,
        r#"max_concurrent_reconciles{controller="configmap"} 0"#,
        r#"workqueue_longest_running_processor_seconds{name="configmap",controller="configmap"} 0"#,
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_waits_for_the_controllers_of_the_last_one() {
    let server = TestServer::new();
    server.put(MAPS, json!({"metadata": {"name": "a", "namespace": "default"}}));
    let (clusters, context) = clusters_of(&server, Leadership::always());
    let key = ObjectKey::namespaced("default", "a");
    let slow = Slow::default();
    for token in ["one", "two", "three"] {
        let cluster = clusters
            .connect(&key, &kubeconfig(&format!(r#"{{"token":"{token}"}}"#)))
            .unwrap();
        cluster.run_controllers("test", &context, || slow.set());
        sleep(Duration::from_secs(2)).await;
    }
    // Forgotten and met again while the last reconcile is still under way.
    clusters.disconnect(&key);
    let cluster = clusters
        .connect(&key, &kubeconfig(r#"{"token":"four"}"#))
        .unwrap();
    cluster.run_controllers("test", &context, || slow.set());
    sleep(Duration::from_mins(1)).await;
    assert_eq!(
        slow.most.load(Ordering::SeqCst),
        1,
        "one object is never in work twice"
    );
    assert!(slow.done.load(Ordering::SeqCst) > 5);
    context.shutdown.cancel();
    context.background.close();
    context.background.wait().await;
    assert_eq!((slow.under_way.load(Ordering::SeqCst), server.watches()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_panics_is_started_again_and_harms_no_other() {
    let server = TestServer::new();
    server.put(MAPS, json!({"metadata": {"name": "a", "namespace": "default"}}));
    let (clusters, context) = clusters_of(&server, Leadership::always());
    let cluster = clusters
        .connect(
            &ObjectKey::namespaced("default", "a"),
            &kubeconfig(r#"{"token":"t"}"#),
        )
        .unwrap();
    let (slow, starts) = (Slow::default(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&starts);
    let broken = Registration {
        name: "broken",
        run: Arc::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { panic!("on purpose") })
        }),
    };
    cluster.run_controllers("test", &context, || {
        let mut set = slow.set();
        set.push(broken);
        set
    });
    sleep(Duration::from_mins(1)).await;
    assert!((5..=7).contains(&starts.load(Ordering::SeqCst)), "{starts:?}");
    assert!(slow.done.load(Ordering::SeqCst) > 5);
}
