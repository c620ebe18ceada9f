//! What an upgrade leaves on a node and on a Machine while it disturbs them, so that whoever takes it back knows what is its own: pure.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use slipway_capi::view::Machine;

/// On a node: this upgrade has cordoned it.
pub const CORDONED: &str = "edge.slipway.dev/cordoned";
/// On a Machine: this upgrade keeps health checks off it.
pub const KEPT_OFF: &str = "edge.slipway.dev/kept-off";
/// What keeps MachineHealthChecks and control planes from replacing a Machine; its value does not matter to them.
const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";

/// The value of both: which upgrade, since when, and whether it was so before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub upgrade: String,
    pub since: Timestamp,
    /// Somebody else did it first: it stays when the mark goes.
    pub was_so: bool,
}

const WAS_SO: &str = "before";

impl fmt::Display for Mark {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {:.0}", self.upgrade, self.since)?;
        if self.was_so {
            write!(formatter, " {WAS_SO}")?;
        }
        Ok(())
    }
}

impl Mark {
    /// `None`: there is none, or nobody can read it.
    fn of(object: &impl Resource, name: &str) -> Option<Self> {
        let mut words = object.annotations().get(name)?.split(' ');
        Some(Self {
            upgrade: words.next()?.to_owned(),
            since: words.next()?.parse().ok()?,
            was_so: words.next() == Some(WAS_SO),
        })
    }
}

fn since(object: &impl Resource, name: &str, upgrade: &str) -> Option<Timestamp> {
    Mark::of(object, name)
        .filter(|mark| mark.upgrade == upgrade)
        .map(|mark| mark.since)
}

pub fn cordoned_since(node: &Node, upgrade: &str) -> Option<Timestamp> {
    since(node, CORDONED, upgrade)
}

pub fn kept_off_since(machine: &Machine, upgrade: &str) -> Option<Timestamp> {
    since(machine, KEPT_OFF, upgrade)
}

pub fn is_cordoned(node: &Node) -> bool {
    node.spec
        .as_ref()
        .is_some_and(|spec| spec.unschedulable == Some(true))
}

/// A patch over the version that was read: what has changed since is decided again.
fn over(object: &impl Resource, annotations: &Value) -> Value {
    json!({"metadata": {"resourceVersion": object.meta().resource_version, "annotations": annotations}})
}

pub fn cordon(node: &Node, upgrade: &str, now: Timestamp) -> Value {
    // What an earlier upgrade has cordoned becomes this one's.
    let was_so = match Mark::of(node, CORDONED) {
        Some(mark) => mark.was_so,
        None => is_cordoned(node),
    };
    let mark = Mark {
        upgrade: upgrade.to_owned(),
        since: now,
        was_so,
    };
    let mut patch = over(node, &json!({(CORDONED): mark.to_string()}));
    patch["spec"] = json!({"unschedulable": true});
    patch
}

/// `None`: it is not this upgrade's to do.
pub fn uncordon(node: &Node, upgrade: &str) -> Option<Value> {
    let mark = Mark::of(node, CORDONED).filter(|mark| mark.upgrade == upgrade)?;
    let mut patch = over(node, &json!({(CORDONED): null}));
    if !mark.was_so {
        patch["spec"] = json!({"unschedulable": null});
    }
    Some(patch)
}

pub fn keep_off(machine: &Machine, upgrade: &str, now: Timestamp) -> Value {
    let is_hidden = machine.annotations().contains_key(SKIP_REMEDIATION);
    let was_so = match Mark::of(machine, KEPT_OFF) {
        Some(mark) => mark.was_so,
        None => is_hidden,
    };
    let mark = Mark {
        upgrade: upgrade.to_owned(),
        since: now,
        was_so,
    };
    let mut annotations = json!({(KEPT_OFF): mark.to_string()});
    if !is_hidden {
        annotations[SKIP_REMEDIATION] = json!("");
    }
    over(machine, &annotations)
}

/// `None`: it is not this upgrade's to do.
pub fn let_in(machine: &Machine, upgrade: &str) -> Option<Value> {
    let mark = Mark::of(machine, KEPT_OFF).filter(|mark| mark.upgrade == upgrade)?;
    let mut annotations = json!({(KEPT_OFF): null});
    if !mark.was_so {
        annotations[SKIP_REMEDIATION] = Value::Null;
    }
    Some(over(machine, &annotations))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-18T02:00:00Z".parse().expect("a time")
    }

    /// As the apiserver merges it.
    fn patched<K: serde::Serialize + serde::de::DeserializeOwned>(object: &K, patch: &Value) -> K {
        fn merge(into: &mut Value, patch: &Value) {
            let Some(patch) = patch.as_object() else {
                *into = patch.clone();
                return;
            };
            if !into.is_object() {
                *into = json!({});
            }
            let into = into.as_object_mut().expect("an object");
            for (key, value) in patch {
                if value.is_null() {
                    into.remove(key);
                } else {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        let mut value = serde_json::to_value(object).expect("an object");
        merge(&mut value, patch);
        serde_json::from_value(value).expect("an object")
    }

    #[test]
    fn a_node_is_uncordoned_by_whoever_cordoned_it_and_stays_cordoned_for_others() {
        let node = Node::default();
        let ours = patched(&node, &cordon(&node, "up-1", now()));
        assert!(is_cordoned(&ours));
        assert_eq!(cordoned_since(&ours, "up-1"), Some(now()));
        assert_eq!(cordoned_since(&ours, "up-2"), None);
        assert_eq!(uncordon(&ours, "up-2"), None);
        let free = patched(&ours, &uncordon(&ours, "up-1").expect("ours"));
        assert!(!is_cordoned(&free) && free.annotations().is_empty());

        // An upgrade takes over from the one before it.
        let theirs = patched(&ours, &cordon(&ours, "up-2", now()));
        assert_eq!(uncordon(&theirs, "up-1"), None);
        assert!(!is_cordoned(&patched(
            &theirs,
            &uncordon(&theirs, "up-2").expect("theirs")
        )));

        // A person has cordoned it before.
        let held: Node = serde_json::from_value(json!({"spec": {"unschedulable": true}})).expect("a node");
        let ours = patched(&held, &cordon(&held, "up-1", now()));
        let left = patched(&ours, &uncordon(&ours, "up-1").expect("ours"));
        assert!(is_cordoned(&left) && left.annotations().is_empty());
    }

    #[test]
    fn a_machine_that_somebody_hides_stays_hidden() {
        let machine = |annotations: Value| -> Machine {
            serde_json::from_value(json!({"metadata": {"annotations": annotations}})).expect("a machine")
        };
        let free = machine(json!({}));
        let patch = keep_off(&free, "up-1", now());
        assert_eq!(patch["metadata"]["annotations"][SKIP_REMEDIATION], "");
        let ours = machine(patch["metadata"]["annotations"].clone());
        assert_eq!(kept_off_since(&ours, "up-1"), Some(now()));
        assert_eq!(let_in(&ours, "up-2"), None);
        let patch = let_in(&ours, "up-1").expect("ours");
        assert!(patch["metadata"]["annotations"].get(SKIP_REMEDIATION).is_some());

        let hidden = machine(json!({(SKIP_REMEDIATION): "a person"}));
        let patch = keep_off(&hidden, "up-1", now());
        let mut annotations = patch["metadata"]["annotations"].clone();
        assert_eq!(annotations.get(SKIP_REMEDIATION), None);
        annotations[SKIP_REMEDIATION] = json!("a person");
        let patch = let_in(&machine(annotations), "up-1").expect("ours");
        assert_eq!(patch["metadata"]["annotations"].get(SKIP_REMEDIATION), None);
    }
}
