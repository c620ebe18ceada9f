//! What `slipway why` says of a world that stands still. The fake core writes nothing on Clusters, pools and Machines; the real one says at
//! least that they are not available, and so does this.

use std::sync::LazyLock;

use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_insight::{Actor, Catalogue, Explanation, Id, Objects, State, explain};
use slipway_kit::core::kinds::CORE;
use slipway_runtime::{Clock, provider::catalogue};

/// What a row holds of an explanation: the first cause and who has to act.
#[derive(Debug)]
pub struct Expected {
    /// `Kind/name` of the first cause; `Kind/` where its name is made up.
    pub cause: &'static str,
    pub state: State,
    pub actor: Actor,
    /// What is mended to undo the mistake, as the explanation names it.
    pub names: &'static str,
}

/// A cause for whoever wrote the objects.
pub fn stuck(cause: &'static str, names: &'static str) -> Expected {
    Expected {
        cause,
        state: State::Stuck,
        actor: Actor::Author,
        names,
    }
}

/// A cause that goes by itself.
pub fn waits(cause: &'static str, names: &'static str) -> Expected {
    Expected {
        cause,
        state: State::Waiting,
        actor: Actor::Nobody,
        names,
    }
}

impl Expected {
    pub fn by(self, actor: Actor) -> Self {
        Self { actor, ..self }
    }
}

fn known() -> &'static Catalogue {
    static KNOWN: LazyLock<Catalogue> = LazyLock::new(|| {
        catalogue(&[
            slipway_aks::provider::provider(),
            slipway_k3s::provider::provider(),
            slipway_edge::provider::provider(),
        ])
    });
    &KNOWN
}

pub fn of_cluster(server: &Apiserver, clock: Clock, name: &str, expected: &Expected) -> String {
    of(
        server,
        clock,
        &Id::new(CORE, "Cluster", "default", name),
        expected,
    )
}

/// The explanation of an object, which names this first cause and no other beside it.
pub fn of(server: &Apiserver, clock: Clock, id: &Id, expected: &Expected) -> String {
    let objects = Objects::new(server.objects().into_iter().map(as_core_says));
    let found = explain(&objects, known(), id, clock.now()).expect("the object is there");
    let shown = shown(&found);
    let Some(cause) = found.cause() else {
        return wrong(format!("{} is expected, and it is well", expected.cause));
    };
    let chain: Vec<String> = found
        .chain
        .iter()
        .map(|step| format!("{} {} {:?}", step.id, step.judgement.reason, step.judgement.state))
        .collect();
    let said = format!("{shown} {}", cause.judgement.message);
    let is_right = cause.id.to_string().starts_with(expected.cause)
        && (found.state, found.actor) == (expected.state, expected.actor)
        && said.contains(expected.names)
        && found.others.is_empty();
    if is_right {
        return shown;
    }
    let others: Vec<String> = found.others.iter().map(|step| step.id.to_string()).collect();
    wrong(format!(
        "{expected:?} is expected; {chain:?}, {:?} of {:?}, beside it {others:?}: {said}",
        found.actor, found.state
    ))
}

/// What was not explained as it should be; all of it is told at the end.
pub static WRONG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn wrong(what: String) -> String {
    WRONG.lock().push(what.clone());
    what
}

/// The first cause in one line.
fn shown(found: &Explanation) -> String {
    let Some(cause) = found.cause() else {
        return String::new();
    };
    let means = if cause.meaning.is_empty() {
        &cause.judgement.message
    } else {
        &cause.meaning
    };
    let advice = if found.advice.is_empty() {
        String::new()
    } else {
        format!(": {}", found.advice)
    };
    format!("`{}`: {means}. {}{advice}", cause.id, capital(&found.who))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

fn as_core_says(mut object: Value) -> Value {
    let is_cores = object["apiVersion"]
        .as_str()
        .is_some_and(|version| version.starts_with("cluster.x-k8s.io/"));
    let said = match object["kind"].as_str() {
        Some("Cluster" | "MachinePool" | "MachineDeployment" | "MachineSet") => ["Available", "NotAvailable"],
        Some("Machine") => ["Ready", "NotReady"],
        _ => return object,
    };
    if is_cores && object["status"]["conditions"].is_null() {
        object["status"]["conditions"] = json!([{"type": said[0], "status": "False", "reason": said[1],
            "lastTransitionTime": object["metadata"]["creationTimestamp"]}]);
    }
    object
}
