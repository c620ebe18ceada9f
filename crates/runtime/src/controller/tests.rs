//! Controllers against the test server, in paused time: what brings an object back, and what a failing one does to
//! the others.

mod own_writes;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::BoxFuture;
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{CustomResource, ResourceExt, core::GroupVersionKind};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::*;
use crate::{
    Class, ObjectKey, Settings,
    informer::{Informer, Scope},
    test_server::TestServer,
};

const VESSELS: &str = "/apis/fleet.example.com/v1/vessels";
const MAPS: &str = "/api/v1/configmaps";

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "fleet.example.com",
    version = "v1",
    kind = "Vessel",
    namespaced,
    schema = "disabled",
    status = "VesselStatus"
)]
pub struct VesselSpec {
    #[serde(default)]
    draft: i32,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct VesselStatus {
    #[serde(default)]
    afloat: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("it did not work")]
struct Failure(Class);

impl Classified for Failure {
    fn class(&self) -> Class {
        self.0
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        Self(error.class())
    }
}

type Answer = Result<Next, Failure>;
type Work = Arc<dyn Fn(Arc<Vessel>, Context) -> BoxFuture<'static, Answer> + Send + Sync>;

/// Notes when it was called for what, then does as it is told.
#[derive(Clone)]
struct Recorder {
    calls: Arc<Mutex<Vec<(String, Duration)>>>,
    forgotten: Arc<Mutex<Vec<String>>>,
    start: Instant,
    work: Work,
}

impl Reconciler for Recorder {
    type Object = Vessel;
    type Error = Failure;

    async fn reconcile(&self, object: Arc<Vessel>, context: &Context) -> Answer {
        self.calls.lock().push((object.name_any(), self.start.elapsed()));
        (self.work)(object, context.clone()).await
    }

    fn forget(&self, key: &ObjectKey, _: &Context) {
        self.forgotten.lock().push(key.name().to_owned());
        assert_ne!(key.name(), "unforgettable", "told to");
    }
}

struct Fixture {
    server: TestServer,
    context: Context,
    recorder: Recorder,
    running: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Fixture {
    fn new<F>(work: impl Fn(Arc<Vessel>, Context) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let server = TestServer::new();
        Self {
            context: Context::for_tests(server.client(), 11),
            server,
            recorder: Recorder {
                calls: Arc::default(),
                forgotten: Arc::default(),
                start: Instant::now(),
                work: Arc::new(move |object, context| Box::pin(work(object, context))),
            },
            running: None,
        }
    }

    fn settings(mut self, settings: Settings) -> Self {
        self.context.settings = Arc::new(settings);
        self
    }

    fn start(&mut self, describe: impl FnOnce(Controller<Recorder>) -> Controller<Recorder>) {
        let registration = describe(Controller::new("vessel", self.recorder.clone())).into_registration();
        self.running = Some(tokio::spawn((registration.run)(self.context.clone())));
    }

    fn put(&self, name: &str, draft: i32) {
        let mut object = self
            .server
            .get(VESSELS, Some("default"), name)
            .unwrap_or_else(|| json!({"metadata": {"name": name, "namespace": "default"}}));
        object["spec"] = json!({"draft": draft});
        self.server.put(VESSELS, object);
    }

    /// How often each object was reconciled since last asked.
    async fn calls(&self) -> BTreeMap<String, usize> {
        sleep(Duration::from_secs(1)).await;
        let mut counts = BTreeMap::new();
        for (name, _) in self.recorder.calls.lock().drain(..) {
            *counts.entry(name).or_default() += 1;
        }
        counts
    }

    fn metric(&self, line: &str) {
        let text = self.context.metrics.encode();
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
}

fn counts<const N: usize>(expected: [(&str, usize); N]) -> BTreeMap<String, usize> {
    expected.map(|(name, count)| (name.to_owned(), count)).into()
}

fn child_of(vessel: &Vessel, name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: vessel.namespace(),
            owner_references: Some(vec![OwnerReference {
                controller: Some(true),
                ..vessel.owner_ref(&()).expect("it has a name and a uid")
            }]),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

async fn fine(_: Arc<Vessel>, _: Context) -> Answer {
    Ok(Next::OnChange)
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_gone_is_forgotten_once_and_not_while_it_is_reconciled() {
    // As long as there is a `busy`, its reconcile takes a minute.
    let mut fixture = Fixture::new(|vessel, _| async move {
        if vessel.name_any() == "busy" {
            sleep(Duration::from_mins(1)).await;
        }
        Ok(Next::OnChange)
    });
    for name in ["calm", "busy", "again", "unforgettable"] {
        fixture.put(name, 1);
    }
    fixture.start(Controller::owns::<ConfigMap>);
    fixture.calls().await;
    let forgotten = Arc::clone(&fixture.recorder.forgotten);
    let owned_by_nobody = json!({"apiVersion": "fleet.example.com/v1", "kind": "Vessel", "name": "never", "uid": "x", "controller": true});
    let child =
        json!({"metadata": {"name": "crew", "namespace": "default", "ownerReferences": [owned_by_nobody]}});
    fixture.server.put(MAPS, child);
    for name in ["calm", "busy", "again", "unforgettable"] {
        fixture.server.remove(VESSELS, Some("default"), name);
    }
    fixture.put("again", 2);
    fixture.calls().await;
    let mut seen = std::mem::take(&mut *forgotten.lock());
    seen.sort_unstable();
    assert_eq!(
        seen,
        ["again", "calm", "unforgettable"],
        "busy is still in work, never was never there"
    );
    sleep(Duration::from_mins(1)).await;
    assert_eq!(std::mem::take(&mut *forgotten.lock()), ["busy"]);
    fixture.put("calm", 3);
    assert_eq!(
        fixture.calls().await,
        counts([("calm", 1)]),
        "a panic while forgetting stops nobody"
    );
    assert_eq!(*forgotten.lock(), [""; 0], "nothing is forgotten twice");
}

#[tokio::test(start_paused = true)]
async fn objects_come_on_their_own_changes_and_on_those_of_their_children() {
    let mut fixture = Fixture::new(fine);
    fixture.put("a", 1);
    fixture.put("b", 1);
    fixture.start(Controller::owns::<ConfigMap>);
    assert_eq!(fixture.calls().await, counts([("a", 1), ("b", 1)]));
    fixture.put("a", 2);
    assert_eq!(fixture.calls().await, counts([("a", 1)]));
    let owner = json!({"apiVersion": "fleet.example.com/v1alpha1", "kind": "Vessel", "name": "b", "uid": "x", "controller": true});
    let child = json!({"metadata": {"name": "crew", "namespace": "default", "ownerReferences": [owner]}});
    fixture.server.put(MAPS, child.clone());
    assert_eq!(fixture.calls().await, counts([("b", 1)]));
    let mut moved = child;
    moved["metadata"]["ownerReferences"][0]["name"] = "a".into();
    fixture.server.put(MAPS, moved);
    assert_eq!(
        fixture.calls().await,
        counts([("a", 1), ("b", 1)]),
        "both the old and the new owner"
    );
    fixture.server.remove(MAPS, Some("default"), "crew");
    assert_eq!(fixture.calls().await, counts([("a", 1)]));
    fixture.server.put(
        MAPS,
        json!({"metadata": {"name": "stranger", "namespace": "default"}}),
    );
    assert_eq!(fixture.calls().await, counts([]));
    fixture.metric(r#"controller_runtime_reconcile_total{controller="vessel",result="success"} 7"#);
}

#[tokio::test(start_paused = true)]
async fn a_panic_harms_only_its_own_object_and_is_counted() {
    let mut fixture = Fixture::new(|vessel, _| async move {
        assert!(vessel.name_any() != "bad", "a hole in the hull");
        Ok(Next::OnChange)
    });
    for name in ["a", "bad", "c"] {
        fixture.put(name, 1);
    }
    fixture.start(|controller| controller.backoff(Duration::from_secs(10), Duration::from_secs(1000)));
    assert_eq!(fixture.calls().await, counts([("a", 1), ("bad", 1), ("c", 1)]));
    fixture.put("a", 2);
    assert_eq!(fixture.calls().await, counts([("a", 1)]), "others go on");
    sleep(Duration::from_secs(40)).await;
    assert_eq!(
        fixture.calls().await,
        counts([("bad", 2)]),
        "after 10 and 30 seconds"
    );
    fixture.metric(r#"controller_runtime_reconcile_panics_total{controller="vessel"} 3"#);
    fixture.metric(r#"controller_runtime_active_workers{controller="vessel"} 0"#);
}

#[tokio::test(start_paused = true)]
async fn a_hang_harms_only_its_own_object_and_is_counted() {
    let mut fixture = Fixture::new(|vessel, _| async move {
        if vessel.name_any() == "bad" {
            std::future::pending::<()>().await;
        }
        Ok(Next::OnChange)
    })
    .settings(Settings {
        concurrency: BTreeMap::from([("vessel".to_owned(), 2)]),
        ..Settings::default()
    });
    for name in ["a", "bad", "c"] {
        fixture.put(name, 1);
    }
    fixture.start(|controller| {
        controller
            .reconcile_timeout(Duration::from_secs(30))
            .backoff(Duration::from_secs(10), Duration::from_secs(1000))
    });
    assert_eq!(fixture.calls().await, counts([("a", 1), ("bad", 1), ("c", 1)]));
    fixture.metric(r#"controller_runtime_active_workers{controller="vessel"} 1"#);
    fixture.put("a", 2);
    assert_eq!(fixture.calls().await, counts([("a", 1)]), "others go on");
    sleep(Duration::from_secs(45)).await;
    assert_eq!(
        fixture.calls().await,
        counts([("bad", 1)]),
        "again after 30 + 10 seconds"
    );
    fixture.metric(r#"controller_runtime_reconcile_timeouts_total{controller="vessel"} 1"#);
}

#[tokio::test(start_paused = true)]
async fn the_class_of_a_failure_decides_when_the_object_comes_again() {
    let mut fixture = Fixture::new(|vessel, _| async move {
        Err(Failure(match vessel.name_any().as_str() {
            "conflict" => Class::Conflict,
            "denied" => Class::Denied,
            "terminal" => Class::Terminal,
            "throttled" => Class::Throttled(Duration::from_secs(25)),
            _ => Class::Transient,
        }))
    });
    for name in ["conflict", "denied", "terminal", "throttled", "transient"] {
        fixture.put(name, 1);
    }
    fixture.start(|controller| controller.backoff(Duration::from_secs(1), Duration::from_secs(16)));
    sleep(Duration::from_secs(90)).await;
    let calls = fixture.recorder.calls.lock().clone();
    let times = |name: &str| -> Vec<u64> {
        let of = calls.iter().filter(|(called, _)| called == name);
        of.map(|(_, at)| at.as_secs()).collect()
    };
    assert_eq!(times("terminal"), [0]);
    assert_eq!(times("throttled"), [0, 25, 50, 75]);
    assert_eq!(times("denied").len(), 2, "slowly: {:?}", times("denied"));
    let transient = times("transient");
    assert!((8..=10).contains(&transient.len()), "{transient:?}");
    assert!((8..=10).contains(&times("conflict").len()));
    fixture.metric(r#"controller_runtime_terminal_reconcile_errors_total{controller="vessel"} 1"#);
    fixture.metric(r#"slipway_reconcile_errors_total{controller="vessel",class="throttled"} 4"#);
    fixture.recorder.calls.lock().clear();
    fixture.put("terminal", 2);
    assert_eq!(
        fixture.calls().await["terminal"],
        1,
        "a change is worth a new try"
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_time_or_on_a_change_and_the_resync_comes_in_any_case() {
    let mut fixture = Fixture::new(|vessel, _| async move {
        Ok(match vessel.name_any().as_str() {
            "waiting" => Next::After(Duration::from_secs(30)),
            _ => Next::OnChange,
        })
    })
    .settings(Settings {
        sync_period: Duration::from_mins(10),
        ..Settings::default()
    });
    fixture.put("idle", 1);
    fixture.put("waiting", 1);
    fixture.start(|controller| controller);
    sleep(Duration::from_secs(100)).await;
    assert_eq!(fixture.calls().await, counts([("idle", 1), ("waiting", 4)]));
    fixture.put("waiting", 2);
    assert_eq!(fixture.calls().await, counts([("waiting", 1)]));
    sleep(Duration::from_mins(12)).await;
    assert_eq!(fixture.calls().await["idle"], 1);
}

#[tokio::test(start_paused = true)]
async fn concurrency_is_bounded_and_one_object_is_never_in_work_twice() {
    let busy = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (now, peak) = (Arc::clone(&busy), Arc::clone(&most));
    let mut fixture = Fixture::new(move |_, _| {
        let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
        async move {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_millis(100)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(Next::OnChange)
        }
    })
    .settings(Settings {
        concurrency: BTreeMap::from([("vessel".to_owned(), 3)]),
        ..Settings::default()
    });
    for number in 0..20 {
        fixture.put(&format!("v{number}"), 1);
    }
    fixture.start(|controller| controller);
    assert_eq!(fixture.calls().await.len(), 20);
    assert_eq!(most.load(Ordering::SeqCst), 3);
    most.store(0, Ordering::SeqCst);
    for draft in 0..10 {
        fixture.put("v1", draft + 2);
        sleep(Duration::from_millis(20)).await;
    }
    fixture.calls().await;
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_waits_for_its_turn_keeps_no_other_from_being_heard() {
    let running = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&running);
    let mut fixture = Fixture::new(move |vessel, context| {
        let running = Arc::clone(&seen);
        async move {
            let work = async || {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                sleep(Duration::from_millis(10)).await;
                running.fetch_sub(1, Ordering::SeqCst);
            };
            work().await;
            if vessel.name_any() != "quick" {
                let turn = sleep(Duration::from_mins(1));
                context.slot().given_up_for(turn).await;
            }
            work().await;
            Ok(Next::OnChange)
        }
    })
    .settings(Settings {
        concurrency: BTreeMap::from([("vessel".to_owned(), 1)]),
        ..Settings::default()
    });
    for number in 0..5 {
        fixture.put(&format!("waits-{number}"), 1);
    }
    fixture.put("quick", 1);
    fixture.start(|controller| controller);
    assert_eq!(fixture.calls().await.len(), 6, "all of them are heard at once");
    sleep(Duration::from_mins(1)).await;
    fixture.metric(r#"controller_runtime_reconcile_total{controller="vessel",result="success"} 6"#);
    fixture.metric(r#"controller_runtime_reconcile_panics_total{controller="vessel"} 0"#);
    // Whoever is stopped while it waits takes no slot with it.
    fixture.put("waits-0", 2);
    fixture.calls().await;
    fixture.server.remove(VESSELS, Some("default"), "waits-0");
    fixture.put("quick", 2);
    assert_eq!(fixture.calls().await, counts([("quick", 1)]));
}

#[tokio::test(start_paused = true)]
async fn an_edit_goes_before_what_the_first_list_brought() {
    let mut fixture = Fixture::new(|_, _| async {
        sleep(Duration::from_secs(1)).await;
        Ok(Next::OnChange)
    })
    .settings(Settings {
        concurrency: BTreeMap::from([("vessel".to_owned(), 1)]),
        ..Settings::default()
    });
    for number in 0..100 {
        fixture.put(&format!("v{number}"), 1);
    }
    fixture.start(|controller| controller);
    sleep(Duration::from_millis(500)).await;
    fixture.metric(r#"workqueue_depth{name="vessel",controller="vessel",priority="-100"} 99"#);
    fixture.metric(r#"controller_runtime_reconcile_panics_total{controller="vessel"} 0"#);
    let waiting = "v77";
    assert!(
        fixture
            .recorder
            .calls
            .lock()
            .iter()
            .all(|(name, _)| name != waiting)
    );
    fixture.put(waiting, 2);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.recorder.calls.lock().last().unwrap().0, waiting);
}

#[tokio::test(start_paused = true)]
async fn a_kind_learnt_in_a_reconcile_brings_objects_back() {
    let resource = kube::api::ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("fleet.example.com", "v1", "Harbour"),
        "harbours",
    );
    let learnt = resource.clone();
    let mut fixture = Fixture::new(move |_, context: Context| {
        let resource = learnt.clone();
        async move {
            context.watch::<kube::api::DynamicObject>(&resource, Scope::all(), |harbour| {
                let berth = harbour.data["spec"]["vessel"].as_str();
                berth
                    .map(|name| ObjectKey::namespaced("default", name))
                    .into_iter()
                    .collect()
            });
            Ok(Next::OnChange)
        }
    });
    fixture.put("a", 1);
    fixture.put("b", 1);
    fixture.start(|controller| controller);
    assert_eq!(fixture.calls().await.len(), 2);
    let harbour: Value = json!({"metadata": {"name": "h", "namespace": "default"}, "spec": {"vessel": "b"}});
    fixture.server.put("/apis/fleet.example.com/v1/harbours", harbour);
    assert_eq!(fixture.calls().await, counts([("b", 1)]));
    assert_eq!(
        fixture
            .server
            .count("GET /apis/fleet.example.com/v1/harbours?&limit"),
        1,
        "started once"
    );
}

#[tokio::test(start_paused = true)]
async fn metadata_watches_and_triggers_bring_objects_back() {
    let secrets = kube::api::ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Secret"));
    let trigger = Trigger::new();
    trigger.fire(&ObjectKey::namespaced("default", "b"));
    let mut fixture = Fixture::new(fine);
    fixture.put("a", 1);
    fixture.put("b", 1);
    fixture.start(|controller| {
        controller
            .watches_metadata(secrets, |metadata, _| {
                vec![ObjectKey::new(
                    metadata.namespace.as_deref(),
                    metadata.name.as_deref().unwrap_or_default(),
                )]
            })
            .triggered_by(&trigger)
    });
    assert_eq!(fixture.calls().await, counts([("a", 1), ("b", 1)]));
    let secret = json!({"metadata": {"name": "a", "namespace": "default"}, "data": {"token": "hidden"}});
    fixture.server.put("/api/v1/secrets", secret);
    assert_eq!(fixture.calls().await, counts([("a", 1)]));
    trigger.fire(&ObjectKey::namespaced("default", "b"));
    trigger.fire(&ObjectKey::namespaced("default", "unknown"));
    assert_eq!(fixture.calls().await, counts([("b", 1)]));
}

#[tokio::test(start_paused = true)]
async fn shutdown_lets_work_end_and_leaves_nothing_running() {
    let ended = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ended);
    let mut fixture = Fixture::new(move |vessel, _| {
        let count = Arc::clone(&count);
        async move {
            let seconds = if vessel.name_any() == "endless" { 10_000 } else { 5 };
            sleep(Duration::from_secs(seconds)).await;
            count.fetch_add(1, Ordering::SeqCst);
            Ok(Next::OnChange)
        }
    });
    fixture.put("a", 1);
    fixture.put("endless", 1);
    fixture.start(|controller| controller.reconcile_timeout(Duration::from_hours(10)));
    fixture.calls().await;
    let stopping = Instant::now();
    fixture.context.shutdown.cancel();
    fixture.running.take().unwrap().await.unwrap().unwrap();
    assert_eq!(ended.load(Ordering::SeqCst), 1, "the short one ended");
    assert_eq!(stopping.elapsed().as_secs(), 20, "the endless one had its grace");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.context.informers.tasks(), 0);
}

/// What is in work at shutdown still decides by what it read, so it has to find it.
#[tokio::test(start_paused = true)]
async fn a_reconcile_that_shutdown_overtakes_reads_what_it_read_before() {
    let read = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&read);
    let learnt = kube::api::ApiResource::erase::<ConfigMap>(&());
    let mut fixture = Fixture::new(move |_, context: Context| {
        let (noted, learnt) = (Arc::clone(&noted), learnt.clone());
        async move {
            context.watch::<kube::api::DynamicObject>(&learnt, Scope::all(), |_| Vec::new());
            let learnt_at_run_time = context.informers.get_dynamic(&learnt, Scope::all());
            learnt_at_run_time.synced().await;
            drop(learnt_at_run_time);
            for _ in 0..2 {
                let maps: Informer<ConfigMap> = context.informers.get(Scope::all());
                let learnt = context.informers.get_dynamic(&learnt, Scope::all());
                noted.lock().push((maps.len(), learnt.len()));
                drop((maps, learnt));
                sleep(Duration::from_secs(5)).await;
            }
            Ok(Next::OnChange)
        }
    });
    fixture.put("a", 1);
    let map = json!({"metadata": {"name": "m", "namespace": "default"}});
    fixture.server.put(MAPS, map);
    fixture.start(|controller| controller.watches::<ConfigMap>(|_, _| Vec::new()));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(*read.lock(), [(1, 1)]);
    fixture.context.shutdown.cancel();
    fixture.running.take().unwrap().await.unwrap().unwrap();
    assert_eq!(*read.lock(), [(1, 1), (1, 1)]);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.context.informers.tasks(), 0);
}
