//! What a change would do to machines, before it is made: pure. The change is put as Cluster API would put it, and the hooks' own answers
//! say what happens.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use slipway_capi::{
    apply,
    hook::{
        HookError,
        coverage::Uncovered,
        types::{CanUpdateMachineRequest, CanUpdateMachineSetRequest, FAILURE},
    },
    names::{TEMPLATE_SUFFIX, label},
};

use super::{
    can_update::{self, STRATEGY},
    change,
};

/// What becomes of the machines of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing that machines are made from changes.
    Unchanged,
    InPlace,
    Replaced,
    /// Nothing happens before the change is another one.
    Refused,
    /// It cannot be said.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Kind, namespace and name.
    pub owner: String,
    pub fate: Fate,
    /// The fields that change, each with whether it can be changed in place.
    pub fields: Vec<(String, bool)>,
    /// Why, and what is worth knowing before.
    pub notes: Vec<String>,
}

impl fmt::Display for Explained {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fate = match self.fate {
            Fate::Unchanged => "nothing changes for its machines",
            Fate::InPlace => "its machines are updated in place",
            Fate::Replaced => "its machines are REPLACED",
            Fate::Refused => "refused: its machines stay as they are",
            Fate::Unknown => "cannot be told",
        };
        writeln!(formatter, "{}: {fate}", self.owner)?;
        for (field, is_covered) in &self.fields {
            let how = if *is_covered { "in place" } else { "not in place" };
            writeln!(formatter, "  {field}: {how}")?;
        }
        for note in &self.notes {
            writeln!(formatter, "  {note}")?;
        }
        Ok(())
    }
}

impl Explained {
    /// Nothing is replaced, and nothing waits for another change.
    pub fn is_harmless(&self) -> bool {
        matches!(self.fate, Fate::Unchanged | Fate::InPlace)
    }
}

/// The kinds that own machines.
pub const OWNERS: [&str; 3] = ["MachineDeployment", "KubeadmControlPlane", "KThreesControlPlane"];

/// Where an owner names the templates of its machines, infrastructure first.
pub const REFERENCES: [&str; 4] = [
    "/spec/template/spec/infrastructureRef",
    "/spec/machineTemplate/spec/infrastructureRef",
    "/spec/machineTemplate/infrastructureRef",
    "/spec/template/spec/bootstrap/configRef",
];

/// Objects as they are, and as they would be.
pub struct Objects {
    current: Vec<Value>,
    desired: Vec<Value>,
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn is_same(one: &Value, other: &Value) -> bool {
    let is_equal = |pointer: &str| text(one, pointer) == text(other, pointer);
    let is_open = |object: &Value| text(object, "/metadata/namespace").is_empty();
    is_equal("/kind")
        && is_equal("/metadata/name")
        && (is_open(one) || is_open(other) || is_equal("/metadata/namespace"))
}

impl Objects {
    /// What the manifests say is laid over what is there, as applying them would.
    pub fn new(manifests: &[Value], current: Vec<Value>) -> Self {
        let desired = manifests
            .iter()
            .map(|manifest| {
                let there = current.iter().find(|object| is_same(object, manifest));
                let mut object = there.cloned().unwrap_or_else(|| json!({}));
                json_patch::merge(&mut object, manifest);
                object
            })
            .collect();
        Self { current, desired }
    }

    pub fn explain(&self) -> Vec<Explained> {
        self.desired
            .iter()
            .filter(|object| OWNERS.contains(&text(object, "/kind")))
            .map(|owner| self.of_owner(owner))
            .collect()
    }

    fn of_owner(&self, desired: &Value) -> Explained {
        let mut explained = Explained {
            owner: format!("{} {}", text(desired, "/kind"), text(desired, "/metadata/name")),
            fate: Fate::Unknown,
            fields: Vec::new(),
            notes: Vec::new(),
        };
        let Some(current) = self.current.iter().find(|object| is_same(object, desired)) else {
            explained
                .notes
                .push("it is not there yet: its machines would be new".to_owned());
            return explained;
        };
        let objects = shown(current, &[&self.current]);
        let then = shown(desired, &[&self.desired, &self.current]);
        let (current, then) = match (objects, then) {
            (Ok(current), Ok(then)) => (current, then),
            (Err(missing), _) | (_, Err(missing)) => {
                explained.notes.push(missing);
                return explained;
            }
        };
        let request = json!({"current": current, "desired": then});
        if text(desired, "/kind") == "MachineDeployment" {
            let covered = read(&request, |asked: &CanUpdateMachineSetRequest| {
                let covered = change::of_machine_set(asked)?;
                Ok((change::changed_in_machine_set(asked)?, covered.uncovered))
            });
            judge(&mut explained, covered, &can_update::machine_set(&request));
        } else {
            let covered = read(&request, |asked: &CanUpdateMachineRequest| {
                let covered = change::of_machine(asked)?;
                Ok((change::changed_in_machine(asked)?, covered.uncovered))
            });
            judge(&mut explained, covered, &can_update::machine(&request));
        }
        explained.notes.extend(cautions(desired, &explained.fate));
        if text(desired, "/spec/rollout/strategy/type") == "OnDelete" && explained.fate == Fate::InPlace {
            explained.fate = Fate::Replaced;
        }
        explained
    }
}

/// What a hook is shown of an owner's machines; the error says what is missing.
fn shown(owner: &Value, among: &[&[Value]]) -> Result<Value, String> {
    let find = |pointer: &str| -> Result<Option<Value>, String> {
        let Some(reference) = owner.pointer(pointer) else {
            return Ok(None);
        };
        let (kind, name) = (text(reference, "/kind"), text(reference, "/name"));
        let mut all = among.iter().flat_map(|objects| objects.iter());
        let found =
            all.find(|object| text(object, "/kind") == kind && text(object, "/metadata/name") == name);
        let missing = || format!("{kind} {name} is neither in the file nor there");
        found.cloned().map(Some).ok_or_else(missing)
    };
    let mut infrastructure = None;
    for pointer in &REFERENCES[..3] {
        infrastructure = infrastructure.or(find(pointer)?);
    }
    let infrastructure = infrastructure.unwrap_or_else(|| json!({}));
    if text(owner, "/kind") != "MachineDeployment" {
        return Ok(of_control_plane(owner, &infrastructure));
    }
    let set = json!({"apiVersion": owner["apiVersion"], "kind": "MachineSet", "metadata": owner["metadata"],
        "spec": {"template": owner["spec"]["template"]}});
    let mut objects = json!({"machineSet": apply::for_hook(&set),
        "infrastructureMachineTemplate": apply::for_hook(&infrastructure)});
    if let Some(bootstrap) = find(REFERENCES[3])? {
        objects["bootstrapConfigTemplate"] = apply::for_hook(&bootstrap);
    }
    Ok(objects)
}

/// A machine of a control plane, as its provider would make it.
fn of_control_plane(owner: &Value, template: &Value) -> Value {
    let is_k3s = text(owner, "/kind") == "KThreesControlPlane";
    let spec = &owner["spec"];
    let mut annotations = spec["machineTemplate"]["metadata"]["annotations"].clone();
    let mut config = if is_k3s {
        let strategy = spec["rolloutStrategy"]["type"]
            .as_str()
            .unwrap_or("RollingUpdate");
        annotations = json!({(STRATEGY): strategy});
        spec["kthreesConfigSpec"].clone()
    } else {
        spec["kubeadmConfigSpec"].clone()
    };
    if config.is_null() {
        config = json!({});
    }
    if is_k3s {
        config["version"] = spec["version"].clone();
    }
    let kind = text(template, "/kind");
    json!({
        "machine": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": owner["metadata"]["name"], "labels": {(label::CONTROL_PLANE): ""}, "annotations": annotations},
            "spec": {"version": spec["version"]}},
        "infrastructureMachine": {"apiVersion": template["apiVersion"],
            "kind": kind.strip_suffix(TEMPLATE_SUFFIX).unwrap_or(kind), "spec": template["spec"]["template"]["spec"]},
        "bootstrapConfig": {"kind": if is_k3s { "KThreesConfig" } else { "KubeadmConfig" }, "spec": config},
    })
}

/// What changes, and what of it cannot be changed in place.
type Differences = (Vec<Uncovered>, Vec<Uncovered>);

fn read<R: DeserializeOwned>(
    request: &Value,
    of: impl FnOnce(&R) -> Result<Differences, HookError>,
) -> Result<Differences, String> {
    let asked = serde_json::from_value(request.clone()).map_err(|error| error.to_string())?;
    of(&asked).map_err(|error| error.to_string())
}

fn judge(explained: &mut Explained, change: Result<Differences, String>, answer: &Value) {
    let (changed, uncovered) = match change {
        Ok(change) => change,
        Err(message) => {
            explained.notes.push(message);
            return;
        }
    };
    explained.fields = changed
        .iter()
        .map(|field| (field.to_string(), !uncovered.contains(field)))
        .collect();
    let is_yes = answer.get("affectsAvailability").is_some();
    explained.fate = if changed.is_empty() {
        Fate::Unchanged
    } else if answer["status"] == FAILURE {
        Fate::Refused
    } else if is_yes {
        Fate::InPlace
    } else {
        Fate::Replaced
    };
    match explained.fate {
        Fate::Refused => explained.notes.push(text(answer, "/message").to_owned()),
        Fate::Replaced if uncovered.is_empty() => explained.notes.push(format!(
            "it could be done in place: annotation {STRATEGY} with InPlace or External, or the strategy of a \
             KThreesControlPlane, asks for it"
        )),
        _ => {}
    }
}

/// What Cluster API does beside the update itself.
fn cautions(owner: &Value, fate: &Fate) -> Vec<String> {
    let mut notes = Vec::new();
    if *fate != Fate::InPlace {
        return notes;
    }
    let surge = owner.pointer("/spec/rollout/strategy/rollingUpdate/maxSurge");
    let has_surge = !surge.is_some_and(|surge| *surge == 0 || *surge == "0%");
    match text(owner, "/kind") {
        "MachineDeployment" if text(owner, "/spec/rollout/strategy/type") == "OnDelete" => {
            notes.push("strategy OnDelete: Cluster API never asks for updates in place".to_owned());
        }
        "MachineDeployment" if has_surge => notes.push(
            "maxSurge is not 0: Cluster API makes a machine more and deletes one; with maxSurge 0 and maxUnavailable 1 it does not"
                .to_owned(),
        ),
        "KubeadmControlPlane" if has_surge => notes.push(
            "maxSurge is not 0: the provider makes a machine more before it updates one; maxSurge 0 needs three replicas"
                .to_owned(),
        ),
        _ => {}
    }
    notes
}
