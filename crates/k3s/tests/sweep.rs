//! The fault sweep over both controllers: every call to the management cluster and to the workload cluster, every fault,
//! the same end. At every change: quorum, one host that initialises, secrets that stay.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_apiserver_sim::{
    Apiserver,
    faults::{Fate, Faults},
    sweep::{Extent, Report, Scenario, World, normalised, play, sweep, sweep_sampled},
};
use slipway_capi::{
    hook::HookClient,
    secret::{
        Purpose,
        certificate::{self, AUTHORITY_LIFETIME, KeyAlgorithm},
        key_pair_secret,
    },
};
use slipway_k3s::{
    bootstrap,
    control_plane::controller::{self, ControlPlaneReconciler},
};
use slipway_runtime::{Clock, controller::Registration};

use super::{
    extension::{EVERYTHING, patches, register},
    stage::{NEW, OLD},
    theatre::{NAMESPACE, Scene, Theatre},
};

/// What the user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// One server, with authorities the controller makes.
    First,
    /// Three servers and a worker.
    Create,
    /// Nothing: the controllers start over a cluster that stands.
    Start,
    /// One server to three and back to one.
    Scale,
    /// One server to the next minor version: a second joins, the first leaves.
    Upgrade,
    /// The same on the machine that is there.
    InPlace,
    /// One of three servers dies.
    Heal,
    /// Everything is deleted.
    Delete,
    /// How a scene comes to be that others begin with; no faults.
    Stand(i32),
}

impl Act {
    /// How many servers stand when it begins; none where it makes them itself.
    fn begins_with(self) -> Option<i32> {
        match self {
            Self::First | Self::Create | Self::Stand(_) => None,
            Self::Scale | Self::Upgrade | Self::InPlace => Some(1),
            Self::Start | Self::Heal | Self::Delete => Some(3),
        }
    }
}

struct Journey {
    name: &'static str,
    act: Act,
    theatre: Mutex<Option<Theatre>>,
    first_call: AtomicUsize,
}

impl Journey {
    fn of(act: Act, name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            act,
            theatre: Mutex::new(None),
            first_call: AtomicUsize::new(0),
        })
    }

    fn theatre(&self) -> Theatre {
        self.theatre.lock().clone().expect("prepare makes it")
    }

    /// From here on calls meet faults.
    fn begin(&self, world: &World) {
        self.first_call.store(world.faults.calls(), Ordering::SeqCst);
    }
}

/// A cluster of so many servers that stands and rests. Made once; what happens while it is made has acts of its own.
fn standing(servers: i32) -> Arc<Scene> {
    static SCENES: Mutex<BTreeMap<i32, Arc<Scene>>> = Mutex::new(BTreeMap::new());
    let mut scenes = SCENES.lock();
    let scene = scenes.entry(servers).or_insert_with(|| {
        // In a thread of its own: whoever asks may be in a runtime already.
        let made = std::thread::spawn(move || {
            let journey = Journey::of(Act::Stand(servers), "k3s: a cluster that stands");
            let scenario: Arc<dyn Scenario> = journey.clone();
            play(&scenario, |_| journey.theatre().scene())
        });
        Arc::new(made.join().expect("a scene"))
    });
    Arc::clone(scene)
}

/// Authorities of the user, made once: making them is not what is tested, and takes long.
fn authorities() -> &'static Vec<Secret> {
    static MADE: OnceLock<Vec<Secret>> = OnceLock::new();
    MADE.get_or_init(|| {
        [Purpose::ClusterCa, Purpose::ClientCa, Purpose::EtcdCa]
            .into_iter()
            .map(|purpose| {
                let pair = certificate::generate(
                    purpose,
                    "kubernetes",
                    KeyAlgorithm::EcdsaP256,
                    AUTHORITY_LIFETIME,
                    Timestamp::UNIX_EPOCH,
                )
                .expect("an authority");
                key_pair_secret(NAMESPACE, "edge", purpose, None, &pair)
            })
            .collect()
    })
}

/// An update extension that can do everything; the way to it is counted, and fails where the faults say so.
fn extension(faults: &Faults) -> HookClient {
    let faults = faults.clone();
    HookClient::through(Arc::new(move |url, body| {
        let faults = faults.clone();
        async move {
            match faults.external(&format!("POST {}", url.path()), false).await {
                Fate::Pass => {}
                Fate::Refuse(failure) => return Err(failure.message),
                Fate::Lose | Fate::LoseAnswer => return Err("connection reset by peer".to_owned()),
                Fate::Hang | Fate::HangAnswer => std::future::pending().await,
            }
            let request = serde_json::from_str(&body).map_err(|error| error.to_string())?;
            let covers = EVERYTHING.iter().copied().collect();
            Ok(patches(&request, &covers).to_string().into_bytes())
        }
        .boxed()
    }))
}

fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// Whether the control plane says that it is what is asked for.
fn is_done(theatre: &Theatre, objects: &[Value], servers: u64, version: &str) -> bool {
    let machines = of_kind(objects, "Machine")
        .filter(|machine| !machine["metadata"]["labels"]["cluster.x-k8s.io/control-plane"].is_null())
        .count() as u64;
    let told = of_kind(objects, "KThreesControlPlane").any(|plane| {
        let status = &plane["status"];
        [
            "replicas",
            "readyReplicas",
            "updatedReplicas",
            "availableReplicas",
        ]
        .iter()
        .all(|field| status[*field] == servers)
            && status["ready"] == true
    });
    machines == servers && told && theatre.settled(usize::try_from(servers).unwrap_or_default(), version)
}

impl Scenario for Journey {
    fn name(&self) -> &'static str {
        self.name
    }

    fn begins_at(&self) -> Timestamp {
        match self.act.begins_with() {
            Some(servers) => standing(servers).management.at,
            None => Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 365),
        }
    }

    fn prepare(&self, server: &Apiserver) {
        let clock = Clock::starting_at(self.begins_at());
        let theatre = match self.act.begins_with() {
            Some(servers) => Theatre::resume(server.clone(), clock, &standing(servers)),
            None => Theatre::new(server.clone(), clock),
        };
        *self.theatre.lock() = Some(theatre);
    }

    fn another(&self) -> Option<Arc<dyn Scenario>> {
        Some(Self::of(self.act, self.name))
    }

    fn controllers(&self, world: &World) -> Vec<Registration> {
        let connector = self.theatre().connector(&world.faults);
        vec![
            bootstrap::controller::registration(),
            controller::registration_of(
                ControlPlaneReconciler::connecting_by(connector).asking_by(extension(&world.faults)),
            ),
        ]
    }

    fn is_ordered(&self) -> bool {
        false
    }

    fn first_call(&self) -> usize {
        self.first_call.load(Ordering::SeqCst)
    }

    fn user<'a>(&'a self, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let theatre = self.theatre();
            let player = theatre.clone();
            tokio::spawn(async move {
                loop {
                    player.step().await;
                    tokio::time::sleep(Duration::from_secs(5)).await;
                }
            });
            let reached = |wanted: u64, version: &'static str| {
                let theatre = theatre.clone();
                move |objects: &[Value]| is_done(&theatre, objects, wanted, version)
            };
            if self.act.begins_with().is_none() {
                let servers = match self.act {
                    Act::Create => 3,
                    Act::Stand(servers) => servers,
                    _ => 1,
                };
                theatre.set_up_namespace().await;
                if self.act != Act::First {
                    for secret in authorities() {
                        theatre
                            .secrets()
                            .create(&PostParams::default(), secret)
                            .await
                            .expect("an authority is stored");
                    }
                }
                self.begin(world);
                theatre.set_up(servers, OLD).await;
                if self.act == Act::Create {
                    theatre.create_worker("worker", OLD).await;
                }
                let wanted = u64::try_from(servers).unwrap_or_default();
                world.until("created", reached(wanted, OLD)).await;
                if self.act == Act::Create {
                    world
                        .until("the worker joins", |_| {
                            theatre.model.lock().nodes.contains_key("worker")
                        })
                        .await;
                }
                return;
            }
            if self.act == Act::Start {
                return;
            }
            // The controllers start and find that all is well. What fails meanwhile is for `Start`.
            tokio::time::sleep(Duration::from_mins(2)).await;
            self.begin(world);
            match self.act {
                Act::First | Act::Create | Act::Start | Act::Stand(_) => {}
                Act::Scale => {
                    for replicas in [3, 1] {
                        let patch = json!({"spec": {"replicas": replicas}});
                        theatre.patch_plane(patch).await.expect("it is scaled");
                        let wanted = u64::try_from(replicas).unwrap_or_default();
                        world.until("scaled", reached(wanted, OLD)).await;
                    }
                }
                Act::Upgrade => {
                    let patch = json!({"spec": {"version": NEW}});
                    theatre.patch_plane(patch).await.expect("it is upgraded");
                    world.until("upgraded", reached(1, NEW)).await;
                }
                Act::InPlace => {
                    register(&theatre, "https://updates.local", "nobody looks at it").await;
                    let patch = json!({"spec": {"version": NEW, "rolloutStrategy": {"type": "InPlace"}}});
                    let names = || async {
                        let servers = theatre.servers().await;
                        servers.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
                    };
                    let before = names().await;
                    theatre.patch_plane(patch).await.expect("it is upgraded");
                    world.until("upgraded in place", reached(1, NEW)).await;
                    assert_eq!(names().await, before, "no machine is replaced");
                }
                Act::Heal => {
                    theatre.book.lock().health_check_after = Some(Duration::from_mins(5));
                    // Not the first one: which name that has differs between runs.
                    let first = theatre.book.lock().initialised.clone();
                    let victim = theatre
                        .servers()
                        .await
                        .iter()
                        .map(ResourceExt::name_any)
                        .find(|name| !first.contains(name))
                        .expect("a server that joined");
                    theatre.model.lock().kill(&victim);
                    world
                        .until("the dead one is gone", |objects| {
                            of_kind(objects, "Machine").all(|machine| machine["metadata"]["name"] != victim)
                        })
                        .await;
                    world.until("healed", reached(3, OLD)).await;
                }
                Act::Delete => {
                    theatre
                        .planes()
                        .delete("edge", &DeleteParams::default())
                        .await
                        .expect("it is deleted");
                    world
                        .until("gone", |objects| {
                            of_kind(objects, "KThreesControlPlane").next().is_none()
                                && of_kind(objects, "Machine").next().is_none()
                        })
                        .await;
                }
            }
        }
        .boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        self.theatre().check(objects)
    }

    fn end_state(&self, world: &World) -> Value {
        let theatre = self.theatre();
        let objects = world.server.objects();
        let mut ends: Vec<String> = objects
            .into_iter()
            .filter(|object| {
                !["Namespace", "CustomResourceDefinition"]
                    .iter()
                    .any(|kind| object["kind"] == *kind)
            })
            .map(|object| plain(normalised(object)))
            .collect();
        ends.sort();
        let model = theatre.model.lock();
        let mut hosts: Vec<Value> = model
            .hosts
            .values()
            .map(|host| json!([host.alive, host.version, host.server]))
            .collect();
        hosts.sort_by_key(ToString::to_string);
        json!({
            "objects": ends,
            "etcd": [model.voters(), model.healthy_voters(), model.members.len()],
            "hosts": hosts,
            "violations": theatre.book.lock().violations,
        })
    }
}

/// An object without the names and times that differ between two good runs, and without what secrets hold.
fn plain(mut object: Value) -> String {
    static NAMES: OnceLock<regex::Regex> = OnceLock::new();
    if object["kind"] == "Secret" {
        object["data"] = Value::Null;
    }
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove("controlplane.cluster.x-k8s.io/remediation-for");
    }
    if let Some(status) = object["status"].as_object_mut() {
        status.remove("lastRemediation");
        for list in ["conditions"] {
            if let Some(conditions) = status.get_mut(list).and_then(Value::as_array_mut) {
                conditions.sort_by_key(|condition| condition["type"].to_string());
            }
        }
        if let Some(conditions) = status
            .get_mut("v1beta2")
            .and_then(|newer| newer["conditions"].as_array_mut())
        {
            conditions.sort_by_key(|condition| condition["type"].to_string());
        }
    }
    if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut() {
        finalizers.sort_by_key(ToString::to_string);
    }
    let names = NAMES
        .get_or_init(|| regex::Regex::new("edge-[bcdfghjklmnpqrstvwxz2456789]{5}").expect("an expression"));
    names.replace_all(&object.to_string(), "edge-server").into_owned()
}

/// S-14 among them: whatever the process was doing when it was stopped, the next one ends the same.
fn run(act: Act, name: &'static str) -> Report {
    let scenario: Arc<dyn Scenario> = Journey::of(act, name);
    let report = sweep_sampled(&scenario, 18);
    report.assert_clean();
    report
}

/// S-14, S-15: the first server, with authorities that are made.
#[test]
fn the_first_server_comes_up_whatever_fails() {
    run(Act::First, "k3s: the first server");
}

/// S-13, S-14: three servers and a worker.
#[test]
fn three_servers_and_a_worker_come_up_whatever_fails() {
    run(Act::Create, "k3s: three servers and a worker");
}

/// S-14: the controllers start over a cluster that stands, and leave it as it is.
#[test]
fn starting_over_a_standing_cluster_changes_nothing_whatever_fails() {
    run(Act::Start, "k3s: the controllers start over three servers");
}

/// S-13, S-14: scaling up and down.
#[test]
fn scaling_ends_the_same_whatever_fails() {
    run(Act::Scale, "k3s: one server, three, one");
}

/// S-13, S-14: an upgrade.
#[test]
fn an_upgrade_ends_the_same_whatever_fails() {
    run(Act::Upgrade, "k3s: one server to the next minor version");
}

/// S-15: whatever happens while the lock is released, it does not stay behind.
#[test]
fn no_lock_is_left_behind() {
    let scenario: Arc<dyn Scenario> = Journey::of(Act::Upgrade, "k3s: the init lock");
    let report = sweep(&scenario, Extent::At("DELETE configmaps"));
    assert!(report.runs > 1, "the lock is released on the way");
    report.assert_clean();
}

/// S-14, S-38: an upgrade on the machine that is there.
#[test]
fn an_upgrade_in_place_ends_the_same_whatever_fails() {
    run(Act::InPlace, "k3s: one server upgraded in place");
}

/// S-14: healing.
#[test]
fn healing_ends_the_same_whatever_fails() {
    run(Act::Heal, "k3s: one of three servers dies");
}

/// S-14: deletion.
#[test]
fn deletion_ends_the_same_whatever_fails() {
    run(Act::Delete, "k3s: three servers deleted");
}

/// A controller that makes authorities anew is caught: the sweep is not blind to what it guards.
#[test]
fn a_secret_made_anew_is_caught() {
    struct Meddler {
        journey: Arc<dyn Scenario>,
    }
    impl Scenario for Meddler {
        fn name(&self) -> &'static str {
            "k3s: somebody makes the token anew"
        }
        fn prepare(&self, server: &Apiserver) {
            self.journey.prepare(server);
        }
        fn controllers(&self, world: &World) -> Vec<Registration> {
            self.journey.controllers(world)
        }
        fn user<'a>(&'a self, world: &'a World) -> BoxFuture<'a, ()> {
            async move {
                self.journey.user(world).await;
                let patch = json!({"data": {"value": "YW5ldw=="}});
                Api::<Secret>::namespaced(world.server.client(), NAMESPACE)
                    .patch("edge-token", &PatchParams::default(), &Patch::Merge(&patch))
                    .await
                    .expect("the token is changed");
            }
            .boxed()
        }
        fn invariants(&self, objects: &[Value]) -> Result<(), String> {
            self.journey.invariants(objects)
        }
        fn end_state(&self, world: &World) -> Value {
            self.journey.end_state(world)
        }
    }
    let scenario: Arc<dyn Scenario> = Arc::new(Meddler {
        journey: Journey::of(Act::First, "k3s: the first server"),
    });
    let report = sweep(&scenario, Extent::Baseline);
    assert!(
        report
            .failures
            .iter()
            .any(|failure| failure.contains("Secret edge-token was made anew")),
        "{report:?}"
    );
}
