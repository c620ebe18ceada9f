//! Every fault at every call of a cluster's life: the same end, nothing orphaned in Azure, nothing of others touched.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, LazyLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::{FutureExt, future::BoxFuture};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_apiserver_sim::{
    Apiserver, Snapshot,
    sweep::{Scenario, World, normalised, play, sweep_sampled},
};
use slipway_azure::reconcile::records;
use slipway_azure_sim::{Settings, Simulator, State};
use slipway_runtime::controller::Registration;

use super::{
    core::core,
    world::{
        SUBSCRIPTION, api, api_of, apply, create, find, guarded_controllers, holds, in_azure, install,
        manifests, merge, pool_manifests, quick, remove, resumed, simulator, unreachable,
    },
};

const OLD: &str = "v1.33.3";
const NEW: &str = "v1.34.1";
const FINALIZER: &str = "azuremanagedcontrolplane.infrastructure.cluster.x-k8s.io";

/// What the user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// A cluster with two pools and an extension.
    Create,
    /// Nothing: the controllers start over a cluster that stands.
    Start,
    /// A pool from one node to three and back.
    Scale,
    /// A pool is added and taken away.
    Pool,
    /// To the next minor version; the extension is taken out.
    Upgrade,
    /// `clusterctl move`: paused, taken away, made anew without status, taken up again.
    Move,
    Delete,
}

/// A cluster that stands, here and in Azure.
struct Scene {
    objects: Snapshot,
    azure: State,
}

/// Made once; what happens while it is made is for `Create`.
fn standing() -> &'static Scene {
    static SCENE: LazyLock<Scene> = LazyLock::new(|| {
        // In a thread of its own: whoever asks may be in a runtime already.
        let made = std::thread::spawn(|| {
            let life = Life::of(Act::Create, "AKS: a cluster that stands");
            let scenario: Arc<dyn Scenario> = life.clone();
            play(&scenario, |world| Scene {
                objects: world.server.snapshot(),
                azure: life.azure().azure().state().clone(),
            })
        });
        made.join().expect("a scene")
    });
    &SCENE
}

/// One run's part of the world: its Azure, and what was seen there that must not be.
pub(super) struct Life {
    name: &'static str,
    act: Act,
    azure: Mutex<Option<Arc<Simulator>>>,
    first_call: AtomicUsize,
    /// While objects are moved nothing holds what is in Azure, and nothing may touch it.
    pub(super) moving: AtomicBool,
    violation: Mutex<Option<String>>,
    me: Weak<Life>,
}

pub(super) fn ask(azure: &Simulator, method: Method, path: &str, body: &Value) {
    let address =
        format!("https://management.azure.com/subscriptions/{SUBSCRIPTION}{path}?api-version=2024-05-01");
    let answer = azure.handle(&slipway_azure_sim::Request::new(method, &address).json(body));
    assert!(
        answer.is_success(),
        "{path}: {} {}",
        answer.status,
        answer.body_json()
    );
}

pub(super) const THEIRS: [&str; 2] = [
    "/resourceGroups/theirs",
    "/resourceGroups/theirs/providers/Microsoft.Network/virtualNetworks/spine",
];

impl Life {
    pub(super) fn of(act: Act, name: &'static str) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            name,
            act,
            azure: Mutex::default(),
            first_call: AtomicUsize::new(0),
            moving: AtomicBool::new(false),
            violation: Mutex::default(),
            me: me.clone(),
        })
    }

    fn stands(&self) -> bool {
        self.act != Act::Create
    }

    pub(super) fn azure(&self) -> Arc<Simulator> {
        self.azure.lock().clone().expect("made before the controllers")
    }

    /// Azure as it is when the run begins, with what is somebody else's.
    fn make_azure(&self, world: &World) {
        let settings = Settings {
            throttling: false,
            ..quick()
        };
        let azure = if self.stands() {
            resumed(settings, world.clock, standing().azure.clone())
        } else {
            let azure = simulator(settings, world.clock);
            ask(&azure, Method::PUT, THEIRS[0], &json!({"location": "westus3"}));
            let network = json!({"location": "westus3",
                "properties": {"addressSpace": {"addressPrefixes": ["10.90.0.0/16"]}}});
            ask(&azure, Method::PUT, THEIRS[1], &network);
            azure
        };
        *self.azure.lock() = Some(azure);
    }

    /// Held after every change here and after every answer of Azure.
    fn check_azure(&self, objects: &[Value]) -> Result<(), String> {
        let Some(azure) = self.azure.lock().clone() else {
            return Ok(());
        };
        let there = in_azure(&azure);
        for id in THEIRS {
            let id = id.to_lowercase();
            if !there.iter().any(|one| one.ends_with(&id)) {
                return Err(format!("{id} is not ours and is gone"));
            }
        }
        let ours = there.iter().find(|id| !id.contains("/resourcegroups/theirs"));
        let held = objects.iter().any(|object| {
            object["kind"] == "AzureManagedControlPlane"
                && object["metadata"]["finalizers"]
                    .as_array()
                    .is_some_and(|list| list.iter().any(|one| one == FINALIZER))
        });
        match ours {
            Some(id) if !held && !self.moving.load(Ordering::SeqCst) => {
                Err(format!("{id} is orphaned: no finalizer holds it"))
            }
            _ => Ok(()),
        }
    }

    fn note(&self, what: String) {
        self.violation.lock().get_or_insert(what);
    }

    /// Looks at what the controllers ask of Azure, and at what is there after it.
    fn look(&self, server: &Apiserver, method: &str, path: &str) {
        if method != "GET" && !path.contains("oauth2") {
            if path.to_lowercase().contains("/resourcegroups/theirs") {
                self.note(format!("{method} {path}, which is not ours"));
            }
            if self.moving.load(Ordering::SeqCst) {
                self.note(format!("{method} {path} while the cluster is moved"));
            }
        }
        if let Err(what) = server.look(|objects| self.check_azure(objects)) {
            self.note(what);
        }
    }

    async fn clusterctl_move(&self, world: &World) {
        const KINDS: [&str; 7] = [
            "Cluster",
            "MachinePool",
            "AzureManagedCluster",
            "AzureManagedControlPlane",
            "AzureManagedMachinePool",
            "AzureClusterIdentity",
            "Secret",
        ];
        let pause = |paused: bool| json!({"spec": {"paused": paused}});
        merge(&world.server, "Cluster", "fleet", pause(true)).await;
        world
            .until("paused", |objects| {
                let paused = |object: &&Value| {
                    let conditions = object["status"]["v1beta2"]["conditions"].as_array();
                    conditions
                        .into_iter()
                        .flatten()
                        .any(|one| one["type"] == "Paused" && one["status"] == "True")
                        && object["metadata"]["annotations"]["clusterctl.cluster.x-k8s.io/block-move"]
                            .is_null()
                };
                let ours = |object: &&Value| {
                    object["kind"] == "AzureManagedControlPlane"
                        || object["kind"] == "AzureManagedMachinePool"
                };
                objects.iter().filter(ours).all(|object| paused(&object))
            })
            .await;
        self.moving.store(true, Ordering::SeqCst);
        let api_of_kind = |kind: &str| match kind {
            "Secret" => api_of(&world.server, "", "v1", "Secret"),
            kind => api(&world.server, kind),
        };
        let objects = world.server.objects();
        let moved: Vec<&Value> = KINDS
            .iter()
            .flat_map(|kind| objects.iter().filter(move |object| object["kind"] == *kind))
            // Credentials are the user's, on both sides.
            .filter(|object| object["metadata"]["name"] != "fleet-secret")
            .collect();
        // Owners last, as clusterctl takes them away.
        for object in moved.iter().rev() {
            let kind = object["kind"].as_str().unwrap_or_default();
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let torn = json!({"metadata": {"finalizers": null}});
            let _ = api_of_kind(kind)
                .patch(name, &PatchParams::default(), &Patch::Merge(torn))
                .await;
            let _ = api_of_kind(kind).delete(name, &DeleteParams::default()).await;
        }
        let mut uids: BTreeMap<String, Value> = BTreeMap::new();
        for object in moved {
            let mut copy = object.clone();
            copy.as_object_mut().expect("an object").remove("status");
            let metadata = copy["metadata"].as_object_mut().expect("metadata");
            for field in [
                "resourceVersion",
                "generation",
                "creationTimestamp",
                "managedFields",
            ] {
                metadata.remove(field);
            }
            let old = metadata.remove("uid").unwrap_or_default().to_string();
            for owner in copy["metadata"]["ownerReferences"]
                .as_array_mut()
                .into_iter()
                .flatten()
            {
                if let Some(uid) = uids.get(&owner["uid"].to_string()) {
                    owner["uid"] = uid.clone();
                }
            }
            let kind = object["kind"].as_str().unwrap_or_default();
            let made = api_of_kind(kind)
                .create(
                    &PostParams::default(),
                    &serde_json::from_value(copy).expect("an object"),
                )
                .await
                .unwrap_or_else(|error| panic!("moving {kind}: {error}"));
            uids.insert(old, json!(made.metadata.uid));
        }
        merge(&world.server, "Cluster", "fleet", pause(false)).await;
    }
}

fn ready(objects: &[Value], replicas: i64, version: &str) -> bool {
    let plane = find(objects, "AzureManagedControlPlane", "fleet");
    let settled = |object: &Value| {
        holds(object, "Ready") && object["status"]["observedGeneration"] == object["metadata"]["generation"]
    };
    plane.is_some_and(|plane| settled(&plane) && plane["status"]["version"] == version)
        && find(objects, "AzureManagedMachinePool", "work").is_some_and(|pool| {
            settled(&pool)
                && pool["status"]["replicas"] == replicas
                && pool["spec"]["providerIDList"]
                    .as_array()
                    .is_some_and(|ids| ids.len() as i64 == replicas)
        })
        && find(objects, "AzureManagedMachinePool", "system").is_some_and(|pool| settled(&pool))
}

impl Scenario for Life {
    fn name(&self) -> &'static str {
        self.name
    }

    fn begins_at(&self) -> Timestamp {
        if self.stands() {
            standing().objects.at
        } else {
            Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 365)
        }
    }

    fn prepare(&self, server: &Apiserver) {
        *self.azure.lock() = None;
        *self.violation.lock() = None;
        self.moving.store(false, Ordering::SeqCst);
        if self.stands() {
            server.restore(&standing().objects);
        } else {
            install(server);
        }
    }

    /// The control plane and its pools are reconciled side by side.
    fn is_ordered(&self) -> bool {
        false
    }

    fn first_call(&self) -> usize {
        self.first_call.load(Ordering::SeqCst)
    }

    fn another(&self) -> Option<Arc<dyn Scenario>> {
        Some(Self::of(self.act, self.name))
    }

    fn controllers(&self, world: &World) -> Vec<Registration> {
        if self.azure.lock().is_none() {
            self.make_azure(world);
        }
        let (me, server) = (self.me.clone(), world.server.clone());
        let guard = Arc::new(move |method: &str, path: &str| {
            if let Some(life) = me.upgrade() {
                life.look(&server, method, path);
            }
        });
        guarded_controllers(&self.azure(), world.clock, &world.faults, &unreachable(), guard)
    }

    fn user<'a>(&'a self, world: &'a World) -> BoxFuture<'a, ()> {
        async move {
            let core = tokio::spawn(core(world.server.clone()));
            let server = &world.server;
            if self.act == Act::Create {
                let spec = json!({"extensions": [{"name": "flux", "extensionType": "microsoft.flux"}]});
                let pools: &[(&str, &str, i32)] = &[("system", "System", 1), ("work", "User", 1)];
                apply(server, &manifests(&spec, pools)).await;
                world.until("ready", |objects| ready(objects, 1, OLD)).await;
            } else if self.act == Act::Start {
                return;
            } else {
                // The controllers start and find that all is well. What fails meanwhile is for `Start`.
                tokio::time::sleep(Duration::from_mins(5)).await;
                self.first_call.store(world.faults.calls(), Ordering::SeqCst);
            }
            let azure = self.azure();
            match self.act {
                Act::Create | Act::Start => {}
                Act::Scale => {
                    for replicas in [3, 1] {
                        let patch = json!({"spec": {"replicas": replicas}});
                        merge(server, "MachinePool", "work", patch).await;
                        world
                            .until("scaled", |objects| ready(objects, replicas, OLD))
                            .await;
                    }
                }
                Act::Pool => {
                    for manifest in pool_manifests("more", "User", 2, &json!({})) {
                        create(server, &manifest).await;
                    }
                    world
                        .until("added", |objects| {
                            find(objects, "AzureManagedMachinePool", "more")
                                .is_some_and(|pool| holds(&pool, "Ready") && pool["status"]["replicas"] == 2)
                        })
                        .await;
                    remove(server, "MachinePool", "more").await;
                    world
                        .until("taken away", |objects| {
                            find(objects, "MachinePool", "more").is_none()
                                && find(objects, "AzureManagedMachinePool", "more").is_none()
                        })
                        .await;
                }
                Act::Upgrade => {
                    let patch = json!({"spec": {"version": NEW, "extensions": null}});
                    merge(server, "AzureManagedControlPlane", "fleet", patch).await;
                    world.until("upgraded", |objects| ready(objects, 1, NEW)).await;
                    world
                        .until("the extension is gone", |_| {
                            !in_azure(&azure).iter().any(|id| id.contains("/extensions/"))
                        })
                        .await;
                }
                Act::Move => {
                    self.clusterctl_move(world).await;
                    world
                        .until("taken up again", |objects| ready(objects, 1, OLD))
                        .await;
                }
                Act::Delete => {
                    remove(server, "Cluster", "fleet").await;
                    world
                        .until("gone", |objects| {
                            !objects.iter().any(|object| {
                                object["kind"] == "Cluster" || object["kind"] == "AzureManagedControlPlane"
                            })
                        })
                        .await;
                    core.abort();
                }
            }
        }
        .boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        if let Some(what) = self.violation.lock().clone() {
            return Err(what);
        }
        self.check_azure(objects)?;
        let planes = objects
            .iter()
            .filter(|object| object["kind"] == "AzureManagedControlPlane");
        for plane in planes {
            if plane["status"]["initialized"] == true && plane["spec"]["controlPlaneEndpoint"].is_null() {
                return Err("initialized without an endpoint".to_owned());
            }
        }
        Ok(())
    }

    fn end_state(&self, world: &World) -> Value {
        let objects: Vec<Value> = world
            .server
            .objects()
            .into_iter()
            .map(|object| however_it_came(readable(normalised(object))))
            .collect();
        plain(
            &json!({"azure": in_azure(&self.azure()), "objects": objects, "violation": *self.violation.lock()}),
        )
    }
}

/// A secret's texts in the clear, so that what is made up can be told in them too.
fn readable(mut object: Value) -> Value {
    if object["kind"] != "Secret" {
        return object;
    }
    for value in object["data"]
        .as_object_mut()
        .into_iter()
        .flat_map(|data| data.values_mut())
    {
        let text = value
            .as_str()
            .and_then(|text| STANDARD.decode(text).ok())
            .and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some(text) = text {
            *value = text.into();
        }
    }
    object
}

/// Whether a pool comes with its cluster or after it depends on what was to be seen when the cluster was made: who made it,
/// and what Azure answered to a body of its own. A pool goes with its object either way.
fn however_it_came(mut object: Value) -> Value {
    if object["kind"] != "AzureManagedMachinePool" {
        return object;
    }
    let Some(applied) = object["metadata"]["annotations"].get_mut(records::ANNOTATION) else {
        return object;
    };
    let text = applied.as_str().unwrap_or_default();
    let mut entries: BTreeMap<String, Value> = serde_json::from_str(text).expect("a record that can be read");
    for entry in entries.values_mut().filter_map(Value::as_object_mut) {
        entry.remove("made");
        if let Some(record) = entry.get_mut("record").and_then(Value::as_object_mut) {
            record.remove("accepted");
        }
    }
    *applied = json!(entries);
    object
}

/// Without the names and tokens that Azure makes up: they follow from how often it was asked.
fn plain(end: &Value) -> Value {
    static MADE_UP: LazyLock<regex::Regex> = LazyLock::new(|| {
        regex::Regex::new(r"-[0-9a-f]{8}(\.hcp|-vmss)|(token: )[0-9a-f]{32}").expect("an expression")
    });
    let text = end.to_string();
    serde_json::from_str(&MADE_UP.replace_all(&text, "$1$2")).expect("still JSON")
}

fn run(act: Act, name: &'static str) {
    let scenario: Arc<dyn Scenario> = Life::of(act, name);
    let report = sweep_sampled(&scenario, 18);
    report.assert_clean();
    assert!(report.calls > 10, "Azure's calls are counted too: {report:?}");
}

#[test]
fn creation_ends_the_same_whatever_fails() {
    run(Act::Create, "AKS: a cluster with two pools");
}

#[test]
fn starting_over_a_standing_cluster_changes_nothing_whatever_fails() {
    run(Act::Start, "AKS: the controllers start over a cluster");
}

#[test]
fn scaling_ends_the_same_whatever_fails() {
    run(Act::Scale, "AKS: a pool of one node, three, one");
}

#[test]
fn a_pool_comes_and_goes_whatever_fails() {
    run(Act::Pool, "AKS: a pool added and taken away");
}

#[test]
fn an_upgrade_ends_the_same_whatever_fails() {
    run(Act::Upgrade, "AKS: the next minor version");
}

#[test]
fn a_move_touches_nothing_in_azure_whatever_fails() {
    run(Act::Move, "AKS: moved");
}

#[test]
fn deletion_leaves_nothing_whatever_fails() {
    run(Act::Delete, "AKS: deleted");
}
