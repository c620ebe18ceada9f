//! Commands under way, as the claims tell them: what is next for each, whatever was lost on the way.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use slipway_autoscaler::{
    api::NodeClaim,
    disruption::{CommandStep, steps},
};

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("a moment")
}

fn claim(named: &str, change: impl FnOnce(&mut Value)) -> Arc<NodeClaim> {
    let mut value = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": named, "uid": named, "annotations": {}},
        "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        "status": {"nodeName": format!("node-{named}"), "conditions": []}});
    change(&mut value);
    Arc::new(serde_json::from_value(value).expect("a claim"))
}

fn marked(named: &str) -> Arc<NodeClaim> {
    claim(named, |claim| {
        claim["metadata"]["annotations"]["karpenter.cluster.x-k8s.io/disrupted-for"] = json!("Drifted");
    })
}

/// A replacement of these, of so many, that has come as far as these conditions say.
fn replacement(named: &str, candidates: &[&str], of: usize, came: &[(&str, &str)]) -> Arc<NodeClaim> {
    let order = json!({"id": "1", "method": "Drift", "reason": "Drifted", "decision": "replace",
        "candidates": candidates, "replacements": of});
    claim(named, |claim| {
        claim["metadata"]["annotations"]["karpenter.cluster.x-k8s.io/replaces"] = json!(order.to_string());
        claim["status"]["conditions"] = came
            .iter()
            .map(|(kind, since)| {
                json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": since})
            })
            .collect();
    })
}

fn told(claims: &[Arc<NodeClaim>]) -> (Vec<String>, Option<Timestamp>) {
    let (steps, again) = steps(claims, |_| None, now());
    (steps.iter().map(CommandStep::to_string).collect(), again)
}

const REGISTERED: (&str, &str) = ("Registered", "2026-01-01T11:55:00Z");
const LONG_REGISTERED: (&str, &str) = ("Registered", "2026-01-01T11:40:00Z");
const INITIALIZED: (&str, &str) = ("Initialized", "2026-01-01T11:56:00Z");

#[test]
fn candidates_go_when_every_replacement_is_initialized() {
    let of_two = |second: &[(&str, &str)]| {
        told(&[
            marked("old"),
            replacement("one", &["old"], 2, &[REGISTERED, INITIALIZED]),
            replacement("two", &["old"], 2, second),
        ])
    };
    assert_eq!(
        of_two(&[REGISTERED, INITIALIZED]),
        (vec!["delete old: one, two is initialized".to_owned()], None)
    );
    let (waits, again) = of_two(&[REGISTERED]);
    assert_eq!(waits, [""; 0]);
    assert_eq!(again, Some("2026-01-01T12:05:00Z".parse().expect("a moment")));
    assert_eq!(
        of_two(&[]),
        (Vec::new(), None),
        "its own deadlines count before it registers"
    );
}

/// karpenter#3186.
#[test]
fn candidates_whose_replacements_do_not_come_stay() {
    let gone = told(&[
        marked("old"),
        replacement("one", &["old"], 2, &[REGISTERED, INITIALIZED]),
    ]);
    assert_eq!(gone.0, ["let old stay: 1 of 2 replacements are there"]);
    let late = told(&[marked("old"), replacement("one", &["old"], 1, &[LONG_REGISTERED])]);
    assert_eq!(
        late.0,
        ["let old stay: the replacement one was not initialized within 10 min of its registration"]
    );
}

#[test]
fn what_nobody_tells_of_is_released() {
    let stray = told(&[marked("old"), claim("other", |_| {})]);
    assert_eq!(stray.0, ["let old stay: no command takes it away"]);
    let leaving = claim("old", |claim| {
        claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:59:00Z");
        claim["metadata"]["annotations"]["karpenter.cluster.x-k8s.io/disrupted-for"] = json!("Drifted");
    });
    assert_eq!(told(&[leaving]).0, [""; 0], "one that leaves is drained");
}

#[test]
fn replacements_of_candidates_that_are_gone_are_claims_like_others() {
    let done = told(&[replacement("one", &["old"], 1, &[REGISTERED, INITIALIZED])]);
    assert_eq!(done.0, ["settle one: old are gone"]);
}

#[test]
fn an_annotation_that_cannot_be_read_tells_of_nothing() {
    let odd = claim("odd", |claim| {
        claim["metadata"]["annotations"]["karpenter.cluster.x-k8s.io/replaces"] = json!("{");
    });
    assert_eq!(
        told(&[odd, marked("old")]).0,
        ["let old stay: no command takes it away"]
    );
}
