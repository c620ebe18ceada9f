//! ProvisioningRequests: all of what they ask for or none, how long it is kept, who takes it, and what is told. The kind's
//! definition against what Cluster Autoscaler's says: its module cannot be had, so that is written here.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::PodTemplate;
use serde_json::{Value, json};
use slipway_autoscaler::{
    api::{ProvisioningRequest, crd::crds},
    instances::{Shape, catalog},
    provisioner::plan::{Plan, plan},
    provisioning_request::{
        self, Observed as Told,
        book::{Booking, Class, Problem, State, Verdict, pods, state},
        read::{Booked, consume},
    },
    room::Room,
    snapshot::Store,
    watched::Observed,
};
use slipway_packing::model::Pod;

use crate::{
    instances::{shape, usual},
    snapshot::{claim, node, now, pod, pool},
};

const CHECK: &str = "check-capacity.autoscaling.x-k8s.io";
const ATOMIC: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";

fn request(class: &str, count: i32, change: impl FnOnce(&mut Value)) -> ProvisioningRequest {
    let mut value = json!({"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest",
        "metadata": {"name": "job", "namespace": "default", "uid": "r1", "generation": 1,
            "creationTimestamp": "2026-11-17T11:59:00Z"},
        "spec": {"provisioningClassName": class, "podSets": [{"count": count, "podTemplateRef": {"name": "worker"}}]}});
    change(&mut value);
    serde_json::from_value(value).expect("a request")
}

fn condition(kind: &str, since: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": since})
}

/// A template of pods of three cores.
fn worker() -> PodTemplate {
    serde_json::from_value(
        json!({"metadata": {"name": "worker"}, "template": {"spec": {"containers": [
        {"name": "main", "resources": {"requests": {"cpu": "3", "memory": "64Mi"}}}]}}}),
    )
    .expect("a template")
}

fn pods_of(request: &ProvisioningRequest) -> Vec<Pod> {
    let worker = worker();
    pods(request, |name| (name == "worker").then_some(&worker)).expect("pods")
}

fn booking(class: &str, count: i32, is_booked: bool) -> Booking {
    let request = request(class, count, |_| {});
    Booking {
        key: "default/job".to_owned(),
        uid: "r1".to_owned(),
        class: Class::of(&request).expect("a class"),
        is_booked,
        pods: pods_of(&request),
    }
}

/// Of the definition: each path and what is said there of it.
#[test]
fn the_definition_is_cluster_autoscalers() {
    let crd = crds()
        .into_iter()
        .find(|crd| crd.spec.names.plural == "provisioningrequests")
        .map(|crd| json!(crd))
        .expect("it is there");
    assert_eq!(
        crd["metadata"]["name"],
        "provisioningrequests.autoscaling.x-k8s.io"
    );
    let names = &crd["spec"]["names"];
    assert_eq!(
        (
            &names["kind"],
            &names["listKind"],
            &names["shortNames"],
            &crd["spec"]["scope"]
        ),
        (
            &json!("ProvisioningRequest"),
            &json!("ProvisioningRequestList"),
            &json!(["provreq", "provreqs"]),
            &json!("Namespaced")
        )
    );
    let versions = crd["spec"]["versions"].as_array().expect("versions");
    let seen: Vec<(&Value, &Value, &Value)> = versions
        .iter()
        .map(|version| (&version["name"], &version["storage"], &version["deprecated"]))
        .collect();
    let (yes, no) = (json!(true), json!(false));
    assert_eq!(
        seen,
        [(&json!("v1"), &yes, &Value::Null), (&json!("v1beta1"), &no, &yes)]
    );
    assert_eq!(versions[0]["schema"], versions[1]["schema"]);
    let name = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
    let rows = [
        ("", "required", json!(["spec"])),
        (
            "/properties/spec",
            "required",
            json!(["podSets", "provisioningClassName"]),
        ),
        ("/properties/spec/properties/podSets", "minItems", json!(1)),
        ("/properties/spec/properties/podSets", "maxItems", json!(32)),
        (
            "/properties/spec/properties/podSets/items",
            "required",
            json!(["count", "podTemplateRef"]),
        ),
        (
            "/properties/spec/properties/podSets/items/properties/count",
            "minimum",
            json!(1),
        ),
        (
            "/properties/spec/properties/podSets/items/properties/count",
            "format",
            json!("int32"),
        ),
        (
            "/properties/spec/properties/podSets/items/properties/podTemplateRef",
            "required",
            json!(["name"]),
        ),
        (
            "/properties/spec/properties/podSets/items/properties/podTemplateRef/properties/name",
            "maxLength",
            json!(253),
        ),
        (
            "/properties/spec/properties/podSets/items/properties/podTemplateRef/properties/name",
            "pattern",
            json!(name),
        ),
        (
            "/properties/spec/properties/provisioningClassName",
            "maxLength",
            json!(253),
        ),
        (
            "/properties/spec/properties/provisioningClassName",
            "pattern",
            json!(name),
        ),
        (
            "/properties/spec/properties/parameters",
            "maxProperties",
            json!(100),
        ),
        (
            "/properties/spec/properties/parameters/additionalProperties",
            "maxLength",
            json!(255),
        ),
        (
            "/properties/status/properties/provisioningClassDetails",
            "maxProperties",
            json!(64),
        ),
        (
            "/properties/status/properties/provisioningClassDetails/additionalProperties",
            "maxLength",
            json!(32768),
        ),
        (
            "/properties/status/properties/conditions",
            "x-kubernetes-list-map-keys",
            json!(["type"]),
        ),
    ];
    let schema = &versions[0]["schema"]["openAPIV3Schema"];
    for (path, field, expected) in rows {
        let leaf = schema
            .pointer(path)
            .unwrap_or_else(|| panic!("there is no {path}"));
        let same = match (leaf[field].as_f64(), expected.as_f64()) {
            (Some(one), Some(other)) => (one - other).abs() < f64::EPSILON,
            _ => leaf[field] == expected,
        };
        assert!(same, "{path} {field}: {}", leaf[field]);
    }
    for fixed in ["podSets", "provisioningClassName", "parameters"] {
        let rules = &schema["properties"]["spec"]["properties"][fixed]["x-kubernetes-validations"];
        assert_eq!(
            *rules,
            json!([{"message": "Value is immutable", "rule": "self == oldSelf"}]),
            "{fixed}"
        );
    }
}

#[test]
fn its_conditions_say_how_far_it_has_come() {
    let at = |text: &str| text.parse::<jiff::Timestamp>().expect("a moment");
    let with = |conditions: Value| {
        request(ATOMIC, 1, |value| {
            value["status"] = json!({"conditions": conditions})
        })
    };
    assert_eq!(
        state(&with(json!([])), now()),
        State::Asked {
            until: at("2026-11-24T11:59:00Z")
        }
    );
    let short = |seconds: &str| {
        request(ATOMIC, 1, |value| {
            value["spec"]["parameters"] = json!({"ValidUntilSeconds": seconds})
        })
    };
    assert_eq!(
        state(&short("90"), now()),
        State::Asked {
            until: at("2026-11-17T12:00:30Z")
        }
    );
    assert_eq!(state(&short("60"), now()), State::Ended);
    let provisioned = |since: &str| with(json!([condition("Provisioned", since)]));
    assert_eq!(
        state(&provisioned("2026-11-17T11:50:01Z"), now()),
        State::Booked {
            until: at("2026-11-17T12:00:01Z")
        }
    );
    assert_eq!(state(&provisioned("2026-11-17T11:50:00Z"), now()), State::Ended);
    for over in ["Failed", "BookingExpired", "CapacityRevoked"] {
        assert_eq!(
            state(&with(json!([condition(over, "2026-11-17T11:59:59Z")])), now()),
            State::Ended
        );
    }
}

#[test]
fn pods_that_cannot_be_made_are_told() {
    let problem = |found: Result<Vec<Pod>, Problem>| found.expect_err("a problem");
    let missing = problem(pods(&request(CHECK, 1, |_| {}), |_| None));
    assert_eq!(missing.reason, "FailedToCreatePods");
    assert_eq!(
        missing.message,
        "there is no PodTemplate worker in its namespace: create it"
    );
    let many = problem(pods(&request(CHECK, 5_001, |_| {}), |_| None));
    assert!(
        many.reason == "TooManyPods" && many.message.contains("make several requests"),
        "{many:?}"
    );
    assert_eq!(pods_of(&request(CHECK, 3, |_| {})).len(), 3);
}

/// One NodePool of four-core machines, at most so many, some of which stand; pods that wait, of three cores each; and requests.
fn round(most: u32, standing: usize, waiting: usize, bookings: Vec<Booking>) -> Observed {
    let most = most.to_string();
    let sizes = [(
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size",
        most.as_str(),
    )];
    let mut source = usual("a", &sizes);
    source.replicas = i32::try_from(standing).expect("a few");
    let shapes: Vec<Shape> = vec![shape(&source)];
    let mut store = Store::default();
    let pool = pool("general", &json!({}));
    store.put_node_pool(&pool).expect("a pool");
    for number in 0..standing {
        let name = format!("n{number}");
        store.put_node(&node(&name)).expect("a node");
        store
            .put_node_claim(&claim(&name, Some(&format!("edge://{name}"))))
            .expect("a claim");
    }
    for number in 0..waiting {
        let waits = pod(&format!("waits-{number}"), "3", None);
        store.put_pod(&waits).expect("a pod");
    }
    let made = catalog(&shapes, "general", &[].into(), &[]);
    let catalogs = BTreeMap::from([("general".to_owned(), made)]);
    Observed {
        snapshot: store.snapshot(&catalogs, now()),
        pods: store.waiting(),
        waiting,
        booked: Booked {
            bookings,
            idle: Vec::new(),
        },
        pools: [("general".to_owned(), Arc::new(pool))].into(),
        shapes: [("general".to_owned(), shapes)].into(),
        ..Observed::default()
    }
}

fn verdict(plan: &Plan) -> Verdict {
    plan.verdicts["default/job"].1.clone()
}

#[test]
fn an_atomic_request_gets_all_or_nothing() {
    let made = plan(&round(5, 0, 0, vec![booking(ATOMIC, 3, false)]), now());
    assert_eq!(made.creations.len(), 3, "{made}");
    assert!(
        matches!(verdict(&made), Verdict::Coming(room) if room.coming == 3),
        "{made}"
    );
    let made = plan(&round(2, 0, 0, vec![booking(ATOMIC, 3, false)]), now());
    assert!(made.creations.is_empty(), "two would be some of three: {made}");
    assert!(
        matches!(verdict(&made), Verdict::Missing(why) if why.contains("at most 2 replicas")),
        "{made}"
    );
    assert!(made.is_short() && made.refused.is_empty());
    let made = plan(&round(5, 3, 0, vec![booking(ATOMIC, 3, false)]), now());
    assert_eq!(
        (verdict(&made), made.creations.len()),
        (Verdict::Stands, 0),
        "{made}"
    );
    let made = plan(&round(5, 2, 0, vec![booking(ATOMIC, 3, false)]), now());
    assert_eq!(made.creations.len(), 1, "what stands is used: {made}");
}

#[test]
fn a_check_makes_nothing() {
    let made = plan(&round(5, 1, 0, vec![booking(CHECK, 2, false)]), now());
    assert!(
        made.creations.is_empty() && matches!(verdict(&made), Verdict::Missing(_)),
        "{made}"
    );
    let made = plan(&round(5, 2, 0, vec![booking(CHECK, 2, false)]), now());
    assert_eq!(
        (verdict(&made), made.creations.len()),
        (Verdict::Stands, 0),
        "{made}"
    );
}

/// What is booked is nobody else's: pods that wait get nodes of their own.
#[test]
fn booked_capacity_is_not_given_to_others() {
    for class in [CHECK, ATOMIC] {
        let made = plan(&round(5, 2, 1, vec![booking(class, 2, true)]), now());
        assert_eq!(made.creations.len(), 1, "{made}");
        assert_eq!(made.creations[0].pods, ["default/waits-0"]);
        let made = plan(&round(5, 2, 1, Vec::new()), now());
        assert!(made.creations.is_empty(), "there is room for it: {made}");
    }
}

/// A second request is decided about after the first, with what that leaves.
#[test]
fn requests_are_served_in_order() {
    let mut second = booking(ATOMIC, 2, false);
    second.key = "default/second".to_owned();
    second.uid = "r2".to_owned();
    for (number, pod) in second.pods.iter_mut().enumerate() {
        pod.metadata.name = format!("request second (1/{number})");
        pod.metadata.uid = format!("r2-0-{number}");
        let booked = pod.metadata.annotations.values_mut();
        booked.for_each(|of| "default/second".clone_into(of));
    }
    let both = vec![booking(ATOMIC, 2, false), second];
    let made = plan(&round(3, 0, 0, both), now());
    assert_eq!(made.creations.len(), 2, "{made}");
    assert!(matches!(verdict(&made), Verdict::Coming(_)));
    assert!(
        matches!(made.verdicts["default/second"].1, Verdict::Missing(_)),
        "{made}"
    );
}

fn consumer(name: &str, request: &str, node: Option<&str>) -> Pod {
    let mut value = json!(pod(name, "3", node));
    value["metadata"]["annotations"] = json!({"autoscaling.x-k8s.io/consume-provisioning-request": request});
    serde_json::from_value(value).expect("a pod")
}

#[test]
fn pods_that_consume_it_take_its_places() {
    let waiting = vec![
        consumer("one", "job", None),
        consumer("two", "job", None),
        consumer("lost", "nowhere", None),
        consumer("late", "over", None),
        serde_json::from_value(json!(pod("other", "3", None))).expect("a pod"),
    ];
    let bound = [consumer("runs", "job", Some("n0"))];
    let (others, booked) = consume(vec![booking(CHECK, 2, true)], waiting.clone(), &bound, |key| {
        key == "default/over"
    });
    let names: Vec<&str> = others.iter().map(|pod| pod.metadata.name.as_str()).collect();
    assert_eq!(names, ["other"], "the others get no nodes of their own");
    let places: Vec<&str> = booked.bookings[0]
        .pods
        .iter()
        .map(|pod| pod.metadata.name.as_str())
        .collect();
    assert_eq!(places, ["one"], "one runs already, and one keeps its place");
    let told: Vec<(&str, &str)> = booked
        .idle
        .iter()
        .map(|(pod, why)| (pod.metadata.name.as_str(), why.as_str()))
        .collect();
    let expected = [
        ("two", "job, all of whose capacity is taken"),
        ("lost", "nowhere, which does not exist or cannot be used"),
        (
            "late",
            "over, whose capacity is kept no longer: make another request",
        ),
    ];
    for ((name, why), (told_name, told_why)) in expected.iter().zip(&told) {
        assert!(name == told_name && told_why.contains(why), "{told:?}");
    }
    let (_, booked) = consume(vec![booking(CHECK, 2, false)], waiting, &bound, |_| false);
    assert_eq!(booked.bookings[0].pods.len(), 2, "nothing is booked yet");
    assert!(
        booked.idle[0].1.contains("which is not provisioned yet"),
        "{:?}",
        booked.idle
    );
}

/// Pods that consume a request are told why they wait, and nothing is made for them.
#[test]
fn a_pod_that_consumes_nothing_is_told() {
    let mut observed = round(5, 0, 0, Vec::new());
    let why = "it consumes ProvisioningRequest default/x, which is not provisioned yet".to_owned();
    observed.booked.idle = vec![(consumer("one", "x", None), why.clone())];
    let made = plan(&observed, now());
    assert!(made.creations.is_empty());
    let told: Vec<(&str, &str)> = made
        .refused
        .iter()
        .map(|refusal| (refusal.pod.as_str(), refusal.message.as_str()))
        .collect();
    assert_eq!(told, [("default/one", why.as_str())]);
}

/// The conditions, each as `type status reason: message`.
fn told(request: ProvisioningRequest, problem: Option<Problem>, verdict: Option<Verdict>) -> Vec<String> {
    let observed = Told {
        request,
        problem,
        verdict,
    };
    let status = provisioning_request::status(&observed, now());
    status
        .conditions
        .iter()
        .map(|one| format!("{} {} {}: {}", one.type_, one.status, one.reason, one.message))
        .collect()
}

#[test]
fn what_is_decided_is_told() {
    let fresh = |class: &str| request(class, 2, |_| {});
    let room = Room {
        stands: 1,
        coming: 1,
        ..Room::default()
    };
    let accepted = "Accepted True Accepted: ".to_owned();
    assert_eq!(told(fresh(ATOMIC), None, None), [accepted.clone()]);
    assert_eq!(
        told(fresh(ATOMIC), None, Some(Verdict::Coming(room.clone())))[1],
        "Provisioned False CapacityIsBeingProvisioned: there is room for 1 of 2 pods, and for 1 on nodes that are on their way"
    );
    assert_eq!(
        told(fresh(ATOMIC), None, Some(Verdict::Stands))[1],
        "Provisioned True CapacityIsFound: there is capacity for all of its pods"
    );
    let being_made = request(ATOMIC, 2, |value| {
        let mut provisioned = condition("Provisioned", "2026-11-17T11:59:30Z");
        provisioned["status"] = json!("False");
        provisioned["reason"] = json!("CapacityIsBeingProvisioned");
        value["status"] = json!({"conditions": [provisioned]});
    });
    assert_eq!(
        told(being_made, None, Some(Verdict::Stands))[0],
        "Provisioned True CapacityIsProvisioned: there is capacity for all of its pods"
    );
    let missing = || Some(Verdict::Missing("no machines are left".to_owned()));
    assert_eq!(
        told(fresh(CHECK), None, missing())[1],
        "Provisioned False CapacityIsNotFound: there is no capacity for all of its pods: no machines are left; it is tried again"
    );
    let once = |class: &str| {
        request(class, 2, |value| {
            value["spec"]["parameters"] = json!({"noRetry": "true"})
        })
    };
    assert_eq!(
        told(once(CHECK), None, missing())[2],
        "Failed True CapacityIsNotFound: there is no capacity for all of its pods: no machines are left"
    );
    assert_eq!(
        told(once(ATOMIC), None, missing()).len(),
        2,
        "the parameter is of the other class"
    );
    let problem = Problem {
        reason: "FailedToCreatePods",
        message: "there is no PodTemplate worker".to_owned(),
    };
    assert_eq!(
        told(fresh(ATOMIC), Some(problem), missing()),
        ["Accepted False FailedToCreatePods: there is no PodTemplate worker"]
    );
}

#[test]
fn a_request_ends_and_says_how() {
    let parameters = |parameters: Value| request(ATOMIC, 2, |value| value["spec"]["parameters"] = parameters);
    let missing = || Some(Verdict::Missing("no machines are left".to_owned()));
    assert_eq!(
        told(parameters(json!({"ValidUntilSeconds": "60"})), None, missing())[2],
        "Failed True Expired: it was not provisioned within 60 s"
    );
    let wrong = told(
        parameters(json!({"ValidUntilSeconds": "soon", "noRetry": "maybe"})),
        None,
        None,
    );
    assert!(
        wrong[0].contains("\"soon\" is no number of seconds")
            && wrong[0].contains("\"maybe\" is neither true nor false"),
        "{wrong:?}"
    );
    let provisioned = |since: &str| {
        let conditions = json!({"conditions": [condition("Provisioned", since)]});
        request(ATOMIC, 2, |value| value["status"] = conditions)
    };
    assert_eq!(
        told(provisioned("2026-11-17T11:55:00Z"), None, Some(Verdict::Stands)).len(),
        1
    );
    assert_eq!(
        told(provisioned("2026-11-17T11:50:00Z"), None, missing())[1],
        "BookingExpired True CapacityReservationTimeExpired: its capacity was kept for ten minutes"
    );
    assert_eq!(
        told(provisioned("2026-11-17T11:55:00Z"), None, missing())[1],
        "CapacityRevoked True CapacityIsLost: its capacity is not there any more: no machines are left"
    );
    let over = request(ATOMIC, 2, |value| {
        value["status"] = json!({"conditions": [condition("Failed", "2026-11-17T11:55:00Z")]});
    });
    assert_eq!(
        told(over, None, Some(Verdict::Stands)).len(),
        1,
        "what has failed stays so"
    );
}
