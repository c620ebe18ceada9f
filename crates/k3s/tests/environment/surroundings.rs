//! The environment as the sweep's journeys have it: controllers, invariants, and the end that counts.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};
use slipway_apiserver_sim::{
    Apiserver,
    faults::{Fate, Faults},
};
use slipway_capi::hook::HookClient;
use slipway_k3s::{
    bootstrap,
    control_plane::{self, ControlPlanes},
};
use slipway_kit::journey::Surroundings;
use slipway_runtime::{Clock, controller::Registration};

use super::{Environment, State};
use crate::extension::{EVERYTHING, patches};

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

impl Surroundings for Environment {
    type State = State;

    fn new(server: &Apiserver, clock: Clock) -> Self {
        Environment::new(server.clone(), clock)
    }

    fn resume(server: &Apiserver, clock: Clock, state: &State) -> Self {
        Environment::resume(server.clone(), clock, state)
    }

    fn state(&self) -> State {
        self.state()
    }

    fn controllers(self: &Arc<Self>, faults: &Faults) -> Vec<Registration> {
        let connector = self.connector(faults);
        vec![
            bootstrap::registration(),
            control_plane::registration_of(
                ControlPlanes::connecting_by(connector).asking_by(extension(faults)),
            ),
        ]
    }

    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        let environment = Arc::clone(self);
        async move {
            loop {
                environment.step().await;
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
        .boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        self.check(objects)
    }

    fn end_state(&self, objects: Vec<Value>) -> Value {
        let mut ends: Vec<String> = objects
            .into_iter()
            .filter(|object| {
                !["Namespace", "CustomResourceDefinition"]
                    .iter()
                    .any(|kind| object["kind"] == *kind)
            })
            .map(plain)
            .collect();
        ends.sort();
        let model = self.model.lock();
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
            "violations": self.recorder.lock().violations,
        })
    }
}

/// An object without the names and times that differ between two good runs, and without what secrets hold.
fn plain(mut object: Value) -> String {
    static NAMES: OnceLock<regex::Regex> = OnceLock::new();
    static ADDRESSES: OnceLock<regex::Regex> = OnceLock::new();
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
            .and_then(|v1beta2| v1beta2["conditions"].as_array_mut())
        {
            conditions.sort_by_key(|condition| condition["type"].to_string());
        }
    }
    if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut() {
        finalizers.sort_by_key(ToString::to_string);
    }
    let names = NAMES
        .get_or_init(|| regex::Regex::new("edge-[bcdfghjklmnpqrstvwxz2456789]{5}").expect("an expression"));
    // Which of three servers stays is a matter of what was known of them when one had to go.
    let addresses = ADDRESSES
        .get_or_init(|| regex::Regex::new("\"address\":\"10\\.0\\.[0-9.]+\"").expect("an expression"));
    let text = object.to_string();
    let text = names.replace_all(&text, "edge-server");
    addresses
        .replace_all(&text, "\"address\":\"its own\"")
        .into_owned()
}
