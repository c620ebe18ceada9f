//! What an Azure Service Operator did, as text: step by step what it asked of Azure, how its objects stand, and what is in Azure. A run
//! of the real one is recorded in this form, and what plays it in tests is held to that.

use std::{
    collections::BTreeMap,
    fmt::Write,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};
use slipway_azure_sim::Azure;

use crate::objects::{condition, name};

/// The cluster that both are given, in the namespace and the resource group of its name.
pub const CLUSTER: &str = "fleet";
/// The Secret that its resources sign in with, which is not in the manifests.
pub const CREDENTIAL: &str = "sign-in";
/// Where Azure Service Operator is told to leave a resource alone.
pub const POLICY: &str = "serviceoperator.azure.com/reconcile-policy";
const POLLER: &str = "serviceoperator.azure.com/poller-resume-token";
const MARK: &str = "slipway.dev_owner";
/// Set, what was recorded is written anew.
const BLESS: &str = "SLIPWAY_TEST_BLESS";

/// A Cluster with a system and a user pool, as a user applies it; and the network that is added to its infrastructure later.
pub fn manifests() -> (Vec<Value>, Value) {
    let read = |text: &str| -> Vec<Value> {
        slipway_testbed::install::parse(text).unwrap_or_else(|error| panic!("the manifests: {error}"))
    };
    let network = read(include_str!("../../../manifests/aso-engine-network.yaml")).swap_remove(0);
    (read(include_str!("../../../manifests/aso-engine.yaml")), network)
}

/// The file that a run of the real operator is recorded in.
pub fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../stories/aso_engine.golden")
}

/// An object of the operator that says it is done with what is asked for now.
pub fn is_at_rest(object: &Value) -> bool {
    let ready = condition(object, "Ready");
    let poller = object["metadata"]["annotations"][POLLER].as_str();
    ready["status"] == "True"
        && ready["observedGeneration"] == object["metadata"]["generation"]
        && poller.unwrap_or_default().is_empty()
}

/// What was told of so far.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    text: String,
    /// Requests that were told of.
    seen: usize,
}

/// What a step came to, beside its text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub puts: usize,
    pub deletes: usize,
    pub reads: usize,
}

impl Outcome {
    /// Tells of a step that has come to rest: each write once, with the last body it was sent with, however often it was sent.
    pub fn step(&mut self, title: &str, azure: &Azure, objects: &[Value]) -> Counts {
        let group = format!("/resourcegroups/{CLUSTER}");
        let mut counts = Counts::default();
        let mut writes: BTreeMap<String, Value> = BTreeMap::new();
        for request in azure.requests().skip(self.seen) {
            let path = request.path.to_lowercase();
            let Some((_, below)) = path.split_once(&group) else {
                continue;
            };
            match request.method.as_str() {
                "GET" => counts.reads += 1,
                "DELETE" => counts.deletes += 1,
                "PUT" | "PATCH" => counts.puts += 1,
                _ => {}
            }
            if matches!(request.method.as_str(), "PUT" | "PATCH" | "DELETE") && request.status < 300 {
                let write = format!("{} {}", request.method, short(below));
                writes.insert(write, normal(&request.body_json()));
            }
        }
        self.seen = azure.requests().count();
        let _ = writeln!(self.text, "## {title}");
        for (write, body) in writes {
            let body = if body.is_null() {
                String::new()
            } else {
                format!(" {body}")
            };
            let _ = writeln!(self.text, "{write}{body}");
        }
        let mut lines: Vec<String> = objects.iter().map(line).collect();
        lines.sort();
        let mut ids: Vec<String> = azure
            .state()
            .resources
            .iter()
            .filter_map(|resource| {
                let id = resource.id.to_lowercase();
                id.split_once(&group)
                    .map(|(_, below)| format!("in Azure: {}", short(below)))
            })
            .collect();
        ids.sort();
        for line in lines.into_iter().chain(ids) {
            let _ = writeln!(self.text, "{line}");
        }
        self.text.push('\n');
        counts
    }

    /// Requests from here on belong to the next step.
    pub fn skip_to(&mut self, azure: &Azure) {
        self.seen = azure.requests().count();
    }

    /// Holds it to what the real operator was recorded to do; `is_real`: this is the real one, which may be recorded.
    pub fn compare(&self, is_real: bool) -> Result<(), String> {
        let path = recorded();
        if is_real && std::env::var_os(BLESS).is_some() {
            return std::fs::write(&path, &self.text).map_err(|error| error.to_string());
        }
        let recorded = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        match differences(&recorded, &self.text) {
            text if text.is_empty() => Ok(()),
            text => Err(format!(
                "this is not what Azure Service Operator did when it was recorded in {}:\n{text}",
                path.display()
            )),
        }
    }
}

/// Lines that are in one text alone, below the step they are in.
fn differences(recorded: &str, now: &str) -> String {
    let steps = |text: &str| -> Vec<(String, Vec<String>)> {
        let steps = text.split("## ").skip(1);
        steps
            .map(|step| {
                let mut lines = step.lines().map(str::to_owned);
                (lines.next().unwrap_or_default(), lines.collect())
            })
            .collect()
    };
    let (recorded, now) = (steps(recorded), steps(now));
    let mut text = String::new();
    for index in 0..recorded.len().max(now.len()) {
        let none = (String::new(), Vec::new());
        let before = recorded.get(index).unwrap_or(&none);
        let after = now.get(index).unwrap_or(&none);
        if before == after {
            continue;
        }
        let _ = writeln!(text, "## {} / {}", before.0, after.0);
        for line in before.1.iter().filter(|line| !after.1.contains(line)) {
            let _ = writeln!(text, "- {line}");
        }
        for line in after.1.iter().filter(|line| !before.1.contains(line)) {
            let _ = writeln!(text, "+ {line}");
        }
    }
    text
}

/// `managedclusters/fleet/agentpools/work` of a path below the group.
fn short(below: &str) -> String {
    let parts: Vec<&str> = below.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        [] => "resourcegroup".to_owned(),
        ["providers", _, rest @ ..] => rest.join("/"),
        rest => rest.join("/"),
    }
}

/// A body without what differs from run to run, and without the name, which the path has.
fn normal(body: &Value) -> Value {
    let mut body = body.clone();
    if let Some(fields) = body.as_object_mut() {
        fields.remove("name");
    }
    sorted(&body)
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<&String, &Value> = fields.iter().collect();
            let one = |(name, value): (&String, &Value)| {
                let value = if name == MARK {
                    Value::from("<mark>")
                } else {
                    sorted(value)
                };
                (name.clone(), value)
            };
            Value::Object(fields.into_iter().map(one).collect::<Map<String, Value>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

/// How an object of the operator stands.
fn line(object: &Value) -> String {
    let policy = object["metadata"]["annotations"][POLICY]
        .as_str()
        .unwrap_or("manage");
    let ready = condition(object, "Ready");
    let owners = object["metadata"]["ownerReferences"].as_array();
    let mut owners: Vec<String> = owners
        .into_iter()
        .flatten()
        .map(|owner| {
            let kind = owner["kind"].as_str().unwrap_or_default();
            if owner["controller"] == true {
                format!("{kind}*")
            } else {
                kind.to_owned()
            }
        })
        .collect();
    owners.sort();
    format!(
        "object: {} {}: {policy}, {} {}, of {}, azureName {}",
        object["kind"].as_str().unwrap_or_default(),
        name(object),
        ready["status"].as_str().unwrap_or("not told"),
        ready["reason"].as_str().unwrap_or_default(),
        owners.join(" "),
        object["spec"]["azureName"]
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_step_that_differs_is_told_with_its_lines() {
        let recorded = "## made\nPUT a {\"x\":1}\nobject: b\n\n## scaled\nPUT c\n\n";
        assert_eq!(differences(recorded, recorded), "");
        let now = recorded.replace("{\"x\":1}", "{\"x\":2}");
        let told = differences(recorded, &now);
        assert_eq!(told, "## made / made\n- PUT a {\"x\":1}\n+ PUT a {\"x\":2}\n");
        let told = differences(recorded, "## made\nPUT a {\"x\":1}\nobject: b\n\n");
        assert_eq!(told, "## scaled / \n- PUT c\n- \n");
    }

    #[test]
    fn bodies_are_compared_without_marks_names_and_order() {
        let body = json!({"name": "n", "tags": {(MARK): "m1", "a": "b"}, "properties": {"name": "kept"}});
        let expected = r#"{"properties":{"name":"kept"},"tags":{"a":"b","slipway.dev_owner":"<mark>"}}"#;
        assert_eq!(normal(&body).to_string(), expected);
        assert_eq!(short(""), "resourcegroup");
        let path = "/providers/microsoft.containerservice/managedclusters/fleet/agentpools/work";
        assert_eq!(short(path), "managedclusters/fleet/agentpools/work");
    }
}
