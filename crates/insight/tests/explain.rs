use serde_json::json;
use slipway_insight::{Actor, Explanation, Objects, State, explain};

use crate::world::{CORE, TOY, catalogue, cluster, id, made, now, workers};

fn sea(conditions: &[&str]) -> serde_json::Value {
    made(TOY, "Sea", "one").of_cluster().says(conditions).0
}

fn fleet(conditions: &[&str]) -> serde_json::Value {
    made(TOY, "Fleet", "one")
        .of_cluster()
        .with("/spec/port", json!("north"))
        .says(conditions)
        .0
}

fn port(conditions: &[&str]) -> serde_json::Value {
    made(TOY, "Port", "north").says(conditions).0
}

fn of_cluster(objects: impl IntoIterator<Item = serde_json::Value>) -> Explanation {
    explain(
        &Objects::new(objects),
        &catalogue(),
        &id(CORE, "Cluster", "one"),
        now(),
    )
    .expect("it is there")
}

fn chain(explanation: &Explanation) -> Vec<String> {
    explanation
        .chain
        .iter()
        .map(|step| format!("{} {}", step.id, step.judgement.reason))
        .collect()
}

#[test]
fn a_chain_leads_over_references_to_what_somebody_has_to_mend() {
    let found = of_cluster([
        cluster(&["Available=False/NotAvailable"]),
        sea(&["Ready=False/WaitingForFleet"]),
        fleet(&["Ready=False/WaitingForPort"]),
        port(&["Ready=False/Leaking in the hold"]),
    ]);
    assert_eq!(
        chain(&found),
        [
            "Cluster/one NotAvailable",
            "Sea/one WaitingForFleet",
            "Fleet/one WaitingForPort",
            "Port/north Leaking"
        ]
    );
    assert_eq!((found.state, found.actor), (State::Stuck, Actor::Site));
    assert_eq!(found.advice, "pump");
    assert_eq!(found.command, "toy pump north -n shop");
    assert_eq!(found.cause().expect("a cause").judgement.message, "in the hold");
    assert_eq!(found.chain[3].by, "spec.port");
}

#[test]
fn of_two_causes_the_worse_one_counts_and_the_other_is_named() {
    let found = of_cluster([
        cluster(&["Available=False/NotAvailable"]),
        sea(&["Ready=False/Leaking"]),
        fleet(&["Ready=False/Sailing"]),
        port(&["Ready=True"]),
    ]);
    assert_eq!(found.cause().expect("a cause").id.kind, "Sea");
    let found = of_cluster([
        cluster(&["Available=False/NotAvailable"]),
        sea(&["Ready=False/Leaking"]),
        fleet(&["Ready=False/Odd"]).clone(),
        made(CORE, "Machine", "m")
            .of_cluster()
            .owned_by("Cluster", "one")
            .says(&["Ready=False/InvalidThing"])
            .0,
    ]);
    assert_eq!(found.cause().expect("a cause").id.kind, "Sea");
    assert_eq!(found.others[0].id.kind, "Machine");
}

#[test]
fn a_reference_to_nothing_is_the_cause() {
    let found = of_cluster([
        cluster(&["Available=False/NotAvailable"]),
        sea(&["Ready=True"]),
        fleet(&["Ready=False/WaitingForPort"]),
    ]);
    let cause = found.cause().expect("a cause");
    assert_eq!(
        (cause.id.kind.as_str(), cause.judgement.reason.as_str()),
        ("Port", "NotFound")
    );
    assert_eq!((found.state, found.actor), (State::Stuck, Actor::Author));
}

#[test]
fn what_may_not_be_read_is_not_taken_for_missing() {
    let mut objects = Objects::new([
        cluster(&["Available=False/NotAvailable"]),
        sea(&["Ready=True"]),
        fleet(&["Ready=False/WaitingForPort"]),
    ]);
    objects.cannot_read(TOY, "Port", "ports is forbidden");
    let found = explain(&objects, &catalogue(), &id(CORE, "Cluster", "one"), now()).expect("it is there");
    let cause = found.cause().expect("a cause");
    assert_eq!(
        (cause.judgement.reason.as_str(), found.state),
        ("NotReadable", State::Waiting)
    );
}

#[test]
fn a_message_may_say_more_than_its_reason() {
    let found = of_cluster([
        cluster(&["Available=False/NotAvailable"]),
        sea(&["Ready=False/Sailing a hole below the water line"]),
        fleet(&["Ready=True"]),
    ]);
    assert_eq!((found.state, found.advice.as_str()), (State::Stuck, "dock"));
}

#[test]
fn circles_end() {
    let found = of_cluster([
        cluster(&["Available=False/NotAvailable"]),
        sea(&["Ready=False/WaitingForFleet"]),
        fleet(&["Ready=False/WaitingForPort"]),
        made(TOY, "Port", "north")
            .owned_by("Sea", "one")
            .says(&["Ready=False/NotAvailable"])
            .0,
    ]);
    assert_eq!(found.state, State::Waiting);
    assert_eq!(found.cause().expect("a cause").id.kind, "Port");
}

#[test]
fn what_is_well_needs_no_explanation() {
    let found = of_cluster([cluster(&["Available=True"]), sea(&["Ready=False/Leaking"])]);
    assert_eq!((found.state, found.chain.len()), (State::Ready, 0));
}

#[test]
fn what_is_paused_waits_for_whoever_paused_it() {
    let mut paused = cluster(&["Available=False/NotAvailable"]);
    paused["spec"]["paused"] = json!(true);
    let found = of_cluster([paused, sea(&["Ready=False/Leaking"]), fleet(&[])]);
    assert_eq!((found.state, found.actor), (State::Stuck, Actor::Author));
    assert_eq!(found.cause().expect("a cause").judgement.reason, "Paused");
}

#[test]
fn an_object_that_nobody_looks_at_says_so() {
    let found = of_cluster([cluster(&[])]);
    assert_eq!(found.cause().expect("a cause").judgement.reason, "NotReconciled");
    assert_eq!((found.state, found.actor), (State::Stuck, Actor::Operator));
}

#[test]
fn a_step_says_what_else_its_object_says() {
    let found = of_cluster([
        cluster(&["Available=False/NotAvailable"]),
        sea(&[
            "Ready=False/Leaking",
            "Anchored=False/NoRope not bought",
            "Painted=True",
        ]),
        fleet(&["Ready=True"]),
    ]);
    let besides = &found.cause().expect("a cause").besides;
    assert_eq!(besides.len(), 1);
    assert_eq!(besides[0].message, "not bought");
}

#[test]
fn an_explanation_is_the_same_after_it_was_sent() {
    let found = of_cluster([
        cluster(&["Available=False/NotAvailable"]),
        sea(&["Ready=False/Leaking"]),
    ]);
    let sent = serde_json::to_string(&found).expect("JSON");
    let read: Explanation = serde_json::from_str(&sent).expect("the same");
    assert_eq!(serde_json::to_string(&read).expect("JSON"), sent);
}

#[test]
fn what_a_condition_repeats_is_explained_where_it_is_said_first() {
    let machine = id(CORE, "Machine", "a");
    let mut objects = workers(&[(
        "a",
        &["Ready=False/NotReady", "BoatReady=False/Leaking in the hold"],
    )]);
    objects.retain(|object| object["kind"] != "Boat");
    objects.push(
        made(TOY, "Boat", "a")
            .says(&["Ready=False/Leaking in the hold"])
            .0,
    );
    let objects = Objects::new(objects);
    let found = explain(&objects, &catalogue(), &machine, now()).expect("it is there");
    assert_eq!(chain(&found), ["Machine/a Leaking", "Boat/a Leaking"]);
}
