//! The answers to `CanUpdateMachine` and `CanUpdateMachineSet`: pure, from the request alone. A "no" makes Cluster API replace machines, and
//! of MachineSets it remembers one for a day; a failure makes it wait. So whoever asks for in place and nothing else (`External`) gets
//! a failure that names every field, and whatever cannot be read is a failure too.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use slipway_capi::{
    hook::{
        self, HookError,
        coverage::Uncovered,
        types::{CanUpdateMachineRequest, CanUpdateMachineSetRequest, FAILURE, SUCCESS},
    },
    names::label,
};

use super::change::{self, Covered};

/// How changes reach the machines of a MachineDeployment or KubeadmControlPlane, whose own strategies have no word for it.
pub const STRATEGY: &str = "slipway.dev/update-strategy";
/// A setting of the ExtensionConfig: nothing is updated in place.
pub const DISABLED: &str = "disableInPlaceUpdates";
/// The most fields that a message names.
const MOST_NAMED: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// As Cluster API does it: machines are replaced.
    Replace,
    /// In place what can be, replaced what cannot.
    InPlace,
    /// In place or not at all.
    External,
}

pub fn failure(message: impl Into<String>) -> Value {
    json!({"status": FAILURE, "message": message.into()})
}

/// The request, if it is one of this kind.
pub fn read<R: DeserializeOwned>(request: &Value, hook: &str) -> Result<R, Value> {
    let expected = format!("{hook}Request");
    let kind = request["kind"].as_str().unwrap_or(&expected);
    if kind != expected {
        let kind: String = kind.chars().take(80).collect();
        return Err(failure(format!("{kind:?} is asked of the handler of {hook}")));
    }
    serde_json::from_value(request.clone())
        .map_err(|error| failure(format!("the {expected} cannot be read: {error}")))
}

/// What the annotation asks for. Whoever writes another word means something, and is not guessed.
fn strategy(annotations: &[&Value], asks_by_itself: bool) -> Result<Strategy, Value> {
    let found = annotations
        .iter()
        .find_map(|annotations| annotations.get(STRATEGY)?.as_str());
    // A control plane of ours has the strategy in its spec, and asks only when that is not to replace.
    let default = if asks_by_itself {
        "InPlace"
    } else {
        "RollingUpdate"
    };
    match found.unwrap_or(default) {
        "External" => Ok(Strategy::External),
        "InPlace" => Ok(Strategy::InPlace),
        "RollingUpdate" => Ok(Strategy::Replace),
        other => {
            let other: String = other.chars().take(80).collect();
            Err(failure(format!(
                "annotation {STRATEGY}: {other:?} is none of External, InPlace and RollingUpdate"
            )))
        }
    }
}

fn is_disabled(request: &Value) -> bool {
    request["settings"][DISABLED].as_str() == Some("true")
}

pub fn machine(request: &Value) -> Value {
    let asked: CanUpdateMachineRequest = match read(request, hook::CAN_UPDATE_MACHINE) {
        Ok(asked) => asked,
        Err(answer) => return answer,
    };
    let metadata = &asked.desired.machine["metadata"];
    let asks_by_itself = asked
        .desired
        .bootstrap_config
        .as_ref()
        .is_some_and(|config| config["kind"] == "KThreesConfig")
        && metadata["labels"].get(label::CONTROL_PLANE).is_some();
    let strategy = strategy(&[&metadata["annotations"]], asks_by_itself);
    answer(strategy, is_disabled(request), || change::of_machine(&asked))
}

pub fn machine_set(request: &Value) -> Value {
    let asked: CanUpdateMachineSetRequest = match read(request, hook::CAN_UPDATE_MACHINE_SET) {
        Ok(asked) => asked,
        Err(answer) => return answer,
    };
    let set = &asked.desired.machine_set;
    let strategy = strategy(
        &[
            &set["metadata"]["annotations"],
            &set["spec"]["template"]["metadata"]["annotations"],
        ],
        false,
    );
    answer(strategy, is_disabled(request), || change::of_machine_set(&asked))
}

fn answer<R: Serialize>(
    strategy: Result<Strategy, Value>,
    is_disabled: bool,
    covered: impl FnOnce() -> Result<Covered<R>, HookError>,
) -> Value {
    let strategy = match strategy {
        Ok(strategy) => strategy,
        Err(answer) => return answer,
    };
    let no = json!({"status": SUCCESS});
    if strategy == Strategy::Replace {
        return no;
    }
    if is_disabled {
        return match strategy {
            Strategy::External => failure(format!(
                "external strategy: updates in place are switched off by the setting {DISABLED} of the ExtensionConfig"
            )),
            _ => no,
        };
    }
    let covered = match covered() {
        Ok(covered) => covered,
        Err(error) => return failure(error.to_string()),
    };
    match (strategy, covered.uncovered.as_slice()) {
        (_, []) => yes(&covered),
        (Strategy::External, left) => failure(format!(
            "external strategy: cannot update in place: {}",
            named(left)
        )),
        (_, _) => no,
    }
}

/// Patches that cover everything. A host that reboots is away meanwhile, and nothing else may be claimed.
fn yes<R: Serialize>(covered: &Covered<R>) -> Value {
    match serde_json::to_value(&covered.response) {
        Ok(mut answer) => {
            answer["affectsAvailability"] = covered.changes.into();
            answer
        }
        Err(error) => failure(format!("the answer cannot be written: {error}")),
    }
}

/// What cannot be changed in place, always in the same order.
pub fn named(left: &[Uncovered]) -> String {
    let mut named: Vec<String> = left.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    if left.len() > MOST_NAMED {
        named.push(format!("and {} more", left.len() - MOST_NAMED));
    }
    let mut text = named.join(", ");
    if left.iter().any(|one| one.path.ends_with("/version")) {
        text.push_str(
            " (a version comes with an image: change the image of the EdgeMachine together with it)",
        );
    }
    text
}
