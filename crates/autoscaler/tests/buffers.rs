//! CapacityBuffers: what they ask for, what a plan makes of their pods, and what they are told.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};
use slipway_autoscaler::{
    api::CapacityBuffer,
    capacity_buffer::{
        self, Observed as Buffer,
        resolve::{MOST, Problem, Resolved, Shape, pods, resolve},
    },
    disruption::plan as disruption,
    instances::{Shape as Machine, catalog},
    options::Options,
    provisioner::plan::{Plan, plan},
    room::Room,
    snapshot::Store,
    watched::Observed,
};
use slipway_capi::condition;
use slipway_packing::model::Pod;
use slipway_runtime::Settings;

use crate::{
    instances::{shape, usual},
    snapshot::{claim, node, now, pod, pool},
};

fn buffer(spec: Value) -> CapacityBuffer {
    let value = json!({"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer",
        "metadata": {"name": "spare", "namespace": "web", "uid": "b1", "generation": 3}, "spec": spec});
    serde_json::from_value(value).expect("a buffer")
}

fn template_of(requests: Value) -> PodTemplateSpec {
    serde_json::from_value(json!({"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": "somewhere",
        "volumes": [{"name": "own", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "scratch", "emptyDir": {}}],
        "containers": [{"name": "main", "resources": {"requests": requests}}]}}))
    .expect("a template")
}

fn template() -> Shape {
    Shape::Template {
        template: template_of(json!({"cpu": "3", "memory": "1Gi"})),
        generation: None,
    }
}

fn workload(replicas: i32) -> Shape {
    Shape::Workload {
        template: template_of(json!({"cpu": "3", "memory": "1Gi"})),
        replicas,
    }
}

fn count(spec: &Value, shape: &Shape) -> (i32, String) {
    let resolved = resolve(&buffer(spec.clone()), shape).unwrap_or_else(|problem| panic!("{problem:?}"));
    (resolved.replicas, resolved.note)
}

#[test]
fn replicas_percentage_and_limits_say_how_many() {
    let by_template = |mut spec: Value| {
        spec["podTemplateRef"] = json!({"name": "t"});
        count(&spec, &template())
    };
    assert_eq!(by_template(json!({"replicas": 4})), (4, String::new()));
    assert_eq!(by_template(json!({"limits": {"cpu": "10"}})), (3, String::new()));
    assert_eq!(
        by_template(json!({"limits": {"cpu": "10", "memory": "2Gi"}})).0,
        2
    );
    assert_eq!(
        by_template(json!({"replicas": 4, "limits": {"cpu": "10"}})),
        (3, "its limit of cpu has room for 3 of 4".to_owned())
    );
    assert_eq!(by_template(json!({"replicas": 2, "limits": {"cpu": "10"}})).0, 2);
    let (none, why) = by_template(json!({"limits": {"example.com/dongle": "1"}}));
    assert!(
        none == 0 && why.contains("ask for nothing that its limits name"),
        "{why}"
    );
    let (most, why) = by_template(json!({"replicas": 2_000_000}));
    assert!(most == MOST && why.contains("asks for 2000000 pods"), "{why}");

    let by_workload = |mut spec: Value, replicas: i32| {
        spec["scalableRef"] = json!({"kind": "Deployment", "name": "web"});
        count(&spec, &workload(replicas)).0
    };
    assert_eq!(by_workload(json!({"percentage": 20}), 10), 2);
    assert_eq!(by_workload(json!({"percentage": 20}), 11), 3, "rounded up");
    assert_eq!(by_workload(json!({"percentage": 1}), 1), 1);
    assert_eq!(by_workload(json!({"percentage": 0}), 10), 0);
    assert_eq!(
        by_workload(json!({"percentage": 50, "replicas": 3}), 10),
        5,
        "the larger"
    );
    assert_eq!(by_workload(json!({"percentage": 50, "replicas": 7}), 10), 7);
    assert_eq!(
        by_workload(json!({"percentage": 50, "limits": {"cpu": "7"}}), 10),
        2
    );
    assert_eq!(
        by_workload(json!({"percentage": 50, "limits": {"cpu": "7"}}), 0),
        0,
        "half of none, whatever its limits have room for"
    );
    let (none, why) = count(
        &json!({"scalableRef": {"kind": "Deployment", "name": "web"}}),
        &workload(2),
    );
    assert!(
        none == 0 && why.contains("set replicas, percentage or limits"),
        "{why}"
    );
}

#[test]
fn what_cannot_be_used_is_told() {
    let rows = [
        (
            json!({"replicas": 1}),
            Shape::Missing,
            "ResolutionFailed",
            "neither podTemplateRef nor scalableRef",
        ),
        (
            json!({"replicas": 1, "podTemplateRef": {"name": "t"}}),
            Shape::Missing,
            "PodTemplateNotFound",
            "there is no PodTemplate t in its namespace",
        ),
        (
            json!({"replicas": 1, "scalableRef": {"kind": "StatefulSet", "name": "s"}}),
            Shape::Missing,
            "ScalableRefNotFound",
            "there is no StatefulSet s in its namespace",
        ),
        (
            json!({"replicas": 1, "scalableRef": {"kind": "Job", "apiGroup": "batch", "name": "s"}}),
            Shape::Missing,
            "ResolutionFailed",
            "a Job of group \"batch\": it can be a Deployment, StatefulSet, ReplicaSet of apps",
        ),
        (
            json!({"replicas": 1, "provisioningStrategy": "buffer.x-k8s.io/frozen", "podTemplateRef": {"name": "t"}}),
            template(),
            "UnsupportedProvisioningStrategy",
            "leave it out, or write buffer.x-k8s.io/active-capacity",
        ),
    ];
    for (spec, found, reason, message) in rows {
        let problem = resolve(&buffer(spec.clone()), &found).expect_err("a problem");
        assert!(
            problem.reason == reason && problem.message.contains(message),
            "{spec}: {problem:?}"
        );
    }
}

/// What only a pod that is there can have is left out.
#[test]
fn its_pods_are_like_the_templates() {
    let spare = buffer(json!({"replicas": 2, "podTemplateRef": {"name": "t"}}));
    let resolved = resolve(&spare, &template()).expect("it is resolved");
    let found = pods(&spare, &resolved);
    let names: Vec<String> = found.iter().map(|pod| pod.metadata.reference()).collect();
    assert_eq!(
        names,
        ["web/capacity buffer spare (1)", "web/capacity buffer spare (2)"]
    );
    let pod = &found[0];
    assert_eq!(pod.metadata.labels["app"], "web");
    assert_eq!(
        (pod.metadata.uid.as_str(), pod.spec.node_name.as_str()),
        ("b1-1", "")
    );
    assert_eq!(pod.spec.volumes.len(), 1, "its own volume would have to be there");
    assert!(pod.is_provisionable());
    assert_eq!(pods(&spare, &resolved), found, "the same every time");
}

/// One NodePool of four-core machines, pods that wait, each of three cores, and room that is kept for as many more.
fn round(most: u32, waiting: usize, room: Vec<Pod>) -> Observed {
    let most = most.to_string();
    let sizes = [(
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size",
        most.as_str(),
    )];
    let shapes: Vec<Machine> = vec![shape(&usual("a", &sizes))];
    let mut store = Store::default();
    let pool = pool("general", &json!({}));
    store.put_node_pool(&pool).expect("a pool");
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
        room,
        pools: [("general".to_owned(), Arc::new(pool))].into(),
        shapes: [("general".to_owned(), shapes)].into(),
        ..Observed::default()
    }
}

fn spare(replicas: i32) -> Vec<Pod> {
    let spare = buffer(json!({"replicas": replicas, "podTemplateRef": {"name": "t"}}));
    let resolved = resolve(&spare, &template()).expect("it is resolved");
    pods(&spare, &resolved)
}

fn rooms(plan: &Plan) -> Room {
    plan.rooms.get("web/spare").cloned().unwrap_or_default()
}

#[test]
fn claims_are_made_for_room_too_and_nobody_is_told_of_it() {
    let made = plan(&round(5, 1, spare(2)), now());
    assert_eq!(made.creations.len(), 3, "{made}");
    assert_eq!((rooms(&made).coming, made.refused.len()), (2, 0));
    assert!(!made.is_short());
    let told = made.to_string();
    assert!(
        told.contains("CapacityBuffer web/spare: there is room for 0 of 2 pods, and for 2 on nodes that are on their way"),
        "{told}"
    );
}

/// Where there is not enough for all, pods that are there have it.
#[test]
fn pods_that_are_there_come_first() {
    let made = plan(&round(2, 2, spare(2)), now());
    let pods: Vec<&str> = made
        .creations
        .iter()
        .map(|creation| creation.pods[0].as_str())
        .collect();
    assert!(
        pods.len() == 2 && pods.iter().all(|pod| pod.contains("waits-")),
        "{made}"
    );
    let room = rooms(&made);
    assert_eq!((room.coming, room.refused), (0, 2));
    assert!(made.is_short() && made.refused.is_empty(), "{made}");
    assert!(room.why.contains("it has 2 of at most 2 replicas"), "{room}");
}

/// Two nodes without pods, that may both go at once.
fn two_empty_nodes(room: Vec<Pod>) -> Observed {
    let mut observed = round(5, 0, room);
    let mut store = Store::default();
    let mut pool = pool("general", &json!({}));
    let freely = json!({"consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "budgets": [{"nodes": "100%"}]});
    pool.spec.disruption = serde_json::from_value(freely).expect("a disruption");
    store.put_node_pool(&pool).expect("a pool");
    for name in ["n1", "n2"] {
        let mut claim = claim(name, Some(&format!("edge://{name}")));
        let status = claim.status.get_or_insert_default();
        status.node_name = Some(name.to_owned());
        let mut conditions = json!([]);
        for kind in ["Launched", "Registered", "Initialized", "Consolidatable"] {
            let condition = json!({"type": kind, "status": "True", "reason": kind, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            conditions.as_array_mut().expect("a list").push(condition);
        }
        status.conditions = serde_json::from_value(conditions).expect("conditions");
        store.put_node_claim(&claim).expect("a claim");
        store.put_node(&node(name)).expect("a node");
    }
    let catalogs = observed.shapes.iter().map(|(name, shapes)| {
        let made = catalog(shapes, name, &[].into(), &[]);
        (name.clone(), made)
    });
    observed.snapshot = store.snapshot(&catalogs.collect(), now());
    observed
}

/// What a look at the cluster comes to, for two nodes without pods, of which one or both have room that is kept.
#[test]
fn nodes_with_room_that_is_kept_are_not_empty() {
    let gone = |room: Vec<Pod>| {
        let observed = two_empty_nodes(room);
        let gates = Options::of(&Settings::default()).gates;
        let plan = disruption::plan(&observed, Vec::new(), gates, now());
        let nodes = plan.proposals.iter().map(|proposal| proposal.command.nodes.len());
        nodes.sum::<usize>()
    };
    assert_eq!(gone(Vec::new()), 2);
    assert_eq!(gone(spare(1)), 1);
    assert_eq!(gone(spare(2)), 0);
}

#[test]
fn the_status_says_how_many_and_whether_they_have_room() {
    let told = |resolved: Result<Resolved, Problem>, room: Option<Room>| {
        let observed = Buffer {
            buffer: buffer(json!({"replicas": 2, "podTemplateRef": {"name": "t"}})),
            resolved,
            room,
        };
        let status = capacity_buffer::status(&observed, now());
        let said = |name: &str| {
            let found = condition::find(&status.conditions, name)?;
            assert_eq!(found.observed_generation, Some(3));
            Some(format!("{} {}: {}", found.status, found.reason, found.message))
        };
        (
            status.replicas,
            said("ReadyForProvisioning"),
            said("Provisioning"),
        )
    };
    let resolved = || {
        resolve(
            &buffer(json!({"replicas": 2, "podTemplateRef": {"name": "t"}})),
            &template(),
        )
    };
    let room = |stands, coming, refused| {
        Some(Room {
            stands,
            coming,
            refused,
            why: "no machines are left".to_owned(),
        })
    };
    let ready = Some("True Resolved: ".to_owned());
    assert_eq!(
        told(resolved(), None),
        (Some(2), ready.clone(), None),
        "nobody has planned yet"
    );
    assert_eq!(
        told(resolved(), room(3, 0, 0)).2,
        None,
        "it was planned for when there were three"
    );
    let (_, _, said) = told(resolved(), room(2, 0, 0));
    assert_eq!(
        said.as_deref(),
        Some("True FitsExistingCapacity: there is room for all 2 pods")
    );
    let (_, _, said) = told(resolved(), room(0, 1, 1));
    assert_eq!(
        said.as_deref(),
        Some(
            "False RequiresNewCapacity: there is room for 0 of 2 pods, and for 1 on nodes that are on their way; none can be had \
             for 1: no machines are left"
        )
    );
    let none = resolve(
        &buffer(json!({"replicas": 0, "podTemplateRef": {"name": "t"}})),
        &template(),
    );
    assert_eq!(told(none, None).2.as_deref(), Some("False BufferEmpty: "));
    let missing = resolve(
        &buffer(json!({"replicas": 1, "podTemplateRef": {"name": "t"}})),
        &Shape::Missing,
    );
    let (replicas, ready, provisioning) = told(missing, room(2, 0, 0));
    assert_eq!(replicas, None);
    assert!(ready.is_some_and(|said| said.starts_with("False PodTemplateNotFound")));
    assert!(
        provisioning
            .is_some_and(|said| said.starts_with("False NotReadyForProvisioning: there is no PodTemplate t"))
    );
}
