//! What surrounds the controllers in the sweep: Azure with something of others in it, core, and what must hold of both.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::{FutureExt, future::BoxFuture};
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_azure::reconcile::records;
use slipway_azure_sim::{Request, Settings, Simulator, State};
use slipway_kit::{
    azure::{Guard, ask, in_azure, resumed, simulator},
    core::FakeCore,
    journey::Surroundings,
};
use slipway_runtime::{Clock, controller::Registration};

use super::world::{controllers, install, quick, unreachable};

/// What is in Azure and somebody else's.
pub const THEIRS: [&str; 2] = [
    "/resourceGroups/theirs",
    "/resourceGroups/theirs/providers/Microsoft.Network/virtualNetworks/spine",
];

/// One run's Azure and core, and what happened there that must not.
pub struct Life {
    server: Apiserver,
    clock: Clock,
    pub azure: Arc<Simulator>,
    /// While objects are moved nothing holds what is in Azure, and nothing may touch it.
    pub moving: AtomicBool,
    violation: Mutex<Option<String>>,
}

impl Life {
    fn with(server: &Apiserver, clock: Clock, azure: Arc<Simulator>) -> Self {
        Self {
            server: server.clone(),
            clock,
            azure,
            moving: AtomicBool::new(false),
            violation: Mutex::default(),
        }
    }

    /// Everything in Azure that is not theirs is in the record of an object that has a finalizer.
    fn check_azure(&self, objects: &[Value]) -> Result<(), String> {
        let there = in_azure(&self.azure);
        for id in THEIRS {
            let id = id.to_lowercase();
            if !there.iter().any(|one| one.ends_with(&id)) {
                return Err(format!("{id} is not ours and is gone"));
            }
        }
        if self.moving.load(Ordering::SeqCst) {
            return Ok(());
        }
        let held: Vec<&str> = objects
            .iter()
            .filter(|object| {
                object["kind"]
                    .as_str()
                    .is_some_and(|kind| kind.starts_with("AzureASO"))
                    && !object["metadata"]["finalizers"].is_null()
            })
            .filter_map(|object| object["metadata"]["annotations"][records::ANNOTATION].as_str())
            .collect();
        let is_held = |id: &str| {
            // Node pools, nodes and what AKS makes for itself go with the cluster.
            let of_cluster = id.split_once("/managedclusters/").map(|(before, after)| {
                let name = after.split('/').next().unwrap_or_default();
                format!("{before}/managedclusters/{name}")
            });
            let id = of_cluster.as_deref().unwrap_or(id);
            held.iter().any(|record| record.contains(&format!("\"{id}\"")))
        };
        let orphan = there
            .iter()
            .filter(|id| !id.contains("/resourcegroups/theirs") && !id.contains("/resourcegroups/mc_"))
            .find(|id| !is_held(id));
        match orphan {
            Some(id) => Err(format!("{id} is orphaned: no object holds it")),
            None => Ok(()),
        }
    }

    fn note(&self, what: String) {
        self.violation.lock().get_or_insert(what);
    }

    /// Looks at what the controllers ask of Azure, and at what is there after it.
    fn look(&self, request: &Request) {
        let (method, path) = (&request.method, &request.path);
        if *method != Method::GET && !path.contains("oauth2") {
            if path.to_lowercase().contains("/resourcegroups/theirs") {
                self.note(format!("{method} {path}, which is not ours"));
            }
            if self.moving.load(Ordering::SeqCst) {
                self.note(format!("{method} {path} while the cluster is moved"));
            }
        }
        if let Err(what) = self.server.look(|objects| self.check_azure(objects)) {
            self.note(what);
        }
    }
}

fn settings() -> Settings {
    Settings {
        throttling: false,
        ..quick()
    }
}

impl Surroundings for Life {
    type State = State;

    fn new(server: &Apiserver, clock: Clock) -> Self {
        install(server);
        let azure = simulator(settings(), clock);
        let location = json!({"location": "westus3"});
        ask(&azure, Method::PUT, THEIRS[0], Some(&location));
        let network = json!({"location": "westus3",
            "properties": {"addressSpace": {"addressPrefixes": ["10.90.0.0/16"]}}});
        ask(&azure, Method::PUT, THEIRS[1], Some(&network));
        Self::with(server, clock, azure)
    }

    fn resume(server: &Apiserver, clock: Clock, state: &State) -> Self {
        Self::with(server, clock, resumed(settings(), clock, state.clone()))
    }

    fn state(&self) -> State {
        self.azure.azure().state().clone()
    }

    fn controllers(self: &Arc<Self>, faults: &Faults) -> Vec<Registration> {
        let me = Arc::downgrade(self);
        let guard: Guard = Arc::new(move |request: &Request| {
            if let Some(life) = me.upgrade() {
                life.look(request);
            }
        });
        controllers(&self.azure, self.clock, faults, &unreachable(), guard)
    }

    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        FakeCore::new(self.server.clone(), self.clock).run().boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        if let Some(what) = self.violation.lock().clone() {
            return Err(what);
        }
        self.check_azure(objects)?;
        let planes = objects
            .iter()
            .filter(|object| object["kind"] == "AzureASOManagedControlPlane");
        for plane in planes {
            let status = &plane["status"];
            if status["initialized"] == true && status["controlPlaneEndpoint"].is_null() {
                return Err("initialized without an endpoint".to_owned());
            }
        }
        Ok(())
    }

    fn end_state(&self, objects: Vec<Value>) -> Value {
        let objects: Vec<Value> = objects
            .into_iter()
            .map(|object| however_it_came(readable(object)))
            .collect();
        plain(
            &json!({"azure": in_azure(&self.azure), "objects": objects, "violation": *self.violation.lock()}),
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

/// Without what depends on when something came about: since when a resource stands as it does, the mark, and for a pool whether
/// it came with its cluster or after it.
fn however_it_came(mut object: Value) -> Value {
    let is_pool = object["kind"] == "AzureASOManagedMachinePool";
    for line in object["status"]["resources"].as_array_mut().into_iter().flatten() {
        if let Some(line) = line.as_object_mut() {
            line.remove("since");
        }
    }
    let Some(applied) = object["metadata"]["annotations"].get_mut(records::ANNOTATION) else {
        return object;
    };
    let text = applied.as_str().unwrap_or_default();
    let mut entries: BTreeMap<String, Value> = serde_json::from_str(text).expect("a record that can be read");
    entries.remove("mark");
    entries.remove("object");
    for entry in entries.values_mut().filter_map(Value::as_object_mut) {
        entry.remove("since");
        if !is_pool {
            continue;
        }
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
