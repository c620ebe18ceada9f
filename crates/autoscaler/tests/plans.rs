//! What is planned for a claim and for an object, step by step, in the words that `/debug/plans` shows.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use serde_json::{Value, json};
use slipway_autoscaler::{
    accounting::Group,
    api::{ClusterAPINodeClass, ConfigMapKey, NodeClaim},
    cluster_api::{self, Described},
    group,
    instances::Reference,
    node_claim::{self, Assignment, Observed, Part, drain::PodFacts},
    node_class, read,
    safety::Rival,
};
use slipway_capi::view::{Machine, MachineDeployment};

use crate::instances::{shape, usual};

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

fn now() -> Timestamp {
    "2026-11-17T12:00:00Z".parse().expect("a moment")
}

fn claim(change: impl FnOnce(&mut Value)) -> NodeClaim {
    let mut value = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": "general-abc", "uid": "u1", "creationTimestamp": "2026-11-17T11:59:00Z",
            "labels": {"karpenter.sh/nodepool": "general"}, "annotations": {}},
        "spec": {"requirements": [], "resources": {"requests": {"cpu": "1"}},
            "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "c"}},
    });
    change(&mut value);
    object(value)
}

fn assigned() -> Assignment {
    Assignment::To {
        object: Reference::new("MachineDeployment", "default", "a"),
        shape: Some(Box::new(shape(&usual("a", &[])))),
        stuck: None,
        waits_for: "Cluster API has not made its Machine yet".to_owned(),
        is_paused: false,
    }
}

fn machine(change: impl FnOnce(&mut Value)) -> Machine {
    let mut value = json!({"metadata": {"name": "a-1", "namespace": "default", "uid": "m1",
        "creationTimestamp": "2026-11-17T11:59:30Z", "labels": {"karpenter.cluster.x-k8s.io/nodeclaim": "u1"}},
        "spec": {"providerID": "test://a-1"}, "status": {"nodeRef": {"name": "a-1"}}});
    change(&mut value);
    object(value)
}

fn node(labels: &Value, taints: &Value) -> Node {
    object(
        json!({"metadata": {"name": "a-1", "labels": labels}, "spec": {"providerID": "test://a-1", "taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}}),
    )
}

fn printed(observed: &Observed) -> String {
    node_claim::plan(observed, now()).to_string()
}

#[test]
fn a_claim_is_assigned_followed_and_initialized() {
    let mut observed = Observed {
        claim: claim(|_| {}),
        assignment: Assignment::Chosen {
            shape: Box::new(shape(&usual("a", &[]))),
            why: "the cheapest of 2 that fit".to_owned(),
        },
        ..Observed::default()
    };
    assert_eq!(
        printed(&observed),
        "1. assign to MachineDeployment/fleet/a: the cheapest of 2 that fit\n"
    );
    observed.assignment = assigned();
    assert_eq!(
        printed(&observed),
        "1. wait WaitingForMachine until 2026-11-17T12:04:00Z: Cluster API has not made its Machine yet\n"
    );
    observed.machine = Some(Arc::new(machine(|_| {})));
    assert_eq!(
        printed(&observed),
        "-  note Machine default/a-1: it stands for the claim\n\
         1. wait NodeNotFound until 2026-11-17T12:14:30Z: its Node has not joined yet\n"
    );
    observed.claim = claim(|claim| {
        claim["metadata"]["annotations"]["cluster.x-k8s.io/machine"] = json!("default/a-1");
    });
    let unregistered = json!([{"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
    observed.nodes = vec![Arc::new(node(&json!({}), &unregistered))];
    assert_eq!(
        printed(&observed),
        "1. give Node a-1 2 labels and 0 taints, and take 1 taints: its node has joined\n\
         2. wait KnownEphemeralTaintsExist: the taint node.kubernetes.io/not-ready:NoSchedule is still there\n"
    );
    let labels = json!({"karpenter.sh/nodepool": "general", "karpenter.sh/registered": "true"});
    observed.nodes = vec![Arc::new(node(&labels, &json!([])))];
    assert_eq!(
        printed(&observed),
        "1. give Node a-1 1 labels and 0 taints, and take 0 taints: its node is initialized\n"
    );
}

#[test]
fn a_claim_that_comes_to_nothing_is_given_up() {
    let mut observed = Observed {
        claim: claim(|_| {}),
        assignment: Assignment::NoChoice("none of 0 objects can give a machine".to_owned()),
        ..Observed::default()
    };
    assert_eq!(
        printed(&observed),
        "1. delete the claim: none of 0 objects can give a machine\n"
    );
    observed.assignment = assigned();
    observed.claim = claim(|claim| claim["metadata"]["creationTimestamp"] = json!("2026-11-17T11:55:00Z"));
    assert_eq!(
        printed(&observed),
        "1. delete the claim: no Machine stood for it within 300s\n"
    );
    // One that lost its Machine begins again.
    observed.claim = claim(|claim| {
        claim["metadata"]["creationTimestamp"] = json!("2026-11-16T12:00:00Z");
        claim["status"] = json!({"conditions": [{"type": "Launched", "status": "True", "reason": "Launched", "message": "",
            "lastTransitionTime": "2026-11-16T12:00:00Z"}]});
    });
    assert_eq!(
        printed(&observed),
        "1. wait WaitingForMachine until 2026-11-17T12:05:00Z: Cluster API has not made its Machine yet\n"
    );
    observed.machine = Some(Arc::new(machine(|machine| {
        machine["status"]["phase"] = json!("Failed");
    })));
    assert_eq!(
        printed(&observed),
        "1. delete the claim: Machine a-1 has failed\n"
    );
    observed.assignment = Assignment::Gone(Reference::new("MachineDeployment", "default", "a"));
    assert_eq!(
        printed(&observed),
        "1. delete the claim: MachineDeployment/default/a is gone\n"
    );
    observed.claim = claim(|claim| claim["spec"]["expireAfter"] = json!("30s"));
    assert_eq!(printed(&observed), "1. delete the claim: it has expired\n");
    observed.is_frozen = true;
    assert!(!printed(&observed).contains("expired"), "{}", printed(&observed));
}

#[test]
fn a_deleted_claim_is_drained_and_let_go() {
    let deleted = |annotations: &Value| {
        claim(|claim| {
            claim["metadata"]["deletionTimestamp"] = json!("2026-11-17T11:59:50Z");
            claim["metadata"]["annotations"] = annotations.clone();
            claim["spec"]["terminationGracePeriod"] = json!("10m");
        })
    };
    let mut observed = Observed {
        claim: deleted(
            &json!({"karpenter.cluster.x-k8s.io/scalable-resource": "MachineDeployment/default/a"}),
        ),
        assignment: assigned(),
        machine: Some(Arc::new(machine(|_| {}))),
        nodes: vec![Arc::new(node(&json!({}), &json!([])))],
        pods: vec![PodFacts {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid: "p".to_owned(),
            grace_seconds: 30,
            ..PodFacts::default()
        }],
        ..Observed::default()
    };
    assert_eq!(
        printed(&observed),
        "1. note that the grace period ends at 2026-11-17T12:09:50Z: the claim was deleted\n\
         2. taint Node a-1: the claim was deleted\n\
         3. evict Pod default/web: its node is being drained\n\
         4. wait Draining until 2026-11-17T12:09:20Z: 1 pods are told to go\n"
    );
    let mut annotations = json!({"karpenter.cluster.x-k8s.io/scalable-resource": "MachineDeployment/default/a",
        "karpenter.sh/nodeclaim-termination-timestamp": "2026-11-17T12:09:50Z"});
    observed.claim = deleted(&annotations);
    observed.pods.clear();
    observed.volumes = vec!["pv-1".to_owned()];
    let tainted = json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
    observed.nodes = vec![Arc::new(node(&json!({}), &tainted))];
    assert_eq!(
        printed(&observed),
        "1. wait AwaitingVolumeDetachment until 2026-11-17T12:09:50Z: volumes pv-1 are still attached\n"
    );
    observed.volumes.clear();
    assert_eq!(printed(&observed), "1. let the Machine go: its node is drained\n");
    annotations["karpenter.cluster.x-k8s.io/drained"] = json!("true");
    observed.claim = deleted(&annotations);
    assert_eq!(
        printed(&observed),
        "1. wait InstanceTerminating: Machine a-1 is on its way out\n"
    );
    observed.machine = None;
    observed.nodes.clear();
    assert_eq!(
        printed(&observed),
        "1. wait InstanceTerminating: its account is not settled yet\n"
    );
    annotations["karpenter.cluster.x-k8s.io/settled"] = json!("true");
    observed.claim = deleted(&annotations);
    assert_eq!(
        printed(&observed),
        "1. release finalizer: its Machine is gone, and replicas have fallen\n"
    );
}

#[test]
fn an_account_is_planned_in_order() {
    let reference = Reference::new("MachineDeployment", "default", "a");
    let claims: Vec<NodeClaim> = ["u1", "u2"]
        .into_iter()
        .map(|uid| claim(|claim| claim["metadata"]["uid"] = json!(uid)))
        .collect();
    let mut group = Group::new(reference, 0);
    group.claims = claims.iter().map(read::claim).collect();
    let mut observed = group::Observed {
        object: Arc::new(MachineDeployment::default()),
        group,
        machines: [].into(),
        claims: claims
            .into_iter()
            .map(|claim| (claim.metadata.uid.clone().unwrap_or_default(), Arc::new(claim)))
            .collect(),
        rival: None,
        is_owned: false,
    };
    let printed = |observed: &group::Observed<MachineDeployment>| group::plan(observed, now()).0.to_string();
    assert_eq!(
        printed(&observed),
        "1. scale from 0 to 2: 2 claims need a Machine\n"
    );
    observed.group.max_size = Some(1);
    assert_eq!(
        printed(&observed),
        "1. scale from 0 to 1: 2 claims need a Machine\n2. unassign claim u2: there is no room for it\n"
    );
    observed.group.is_paused = true;
    assert_eq!(
        printed(&observed),
        "1. wait Paused: MachineDeployment/default/a is paused\n"
    );
    observed.rival = Some(Rival {
        who: "Karpenter",
        lease: "kube-system/karpenter-leader-election".to_owned(),
        holder: "karpenter-7f".to_owned(),
        until: "2026-11-17T12:00:15Z".parse().expect("a moment"),
    });
    assert_eq!(
        printed(&observed),
        "1. wait AnotherAutoscaler until 2026-11-17T12:00:15Z: Karpenter scales this cluster: karpenter-7f holds Lease \
         kube-system/karpenter-leader-election until 2026-11-17T12:00:15Z; stop it, and nothing is written before its lease has \
         ended\n"
    );
}

/// One claim on a template is one Machine: made, followed, deleted, and nothing left of it.
#[test]
fn a_claim_on_a_template_makes_and_deletes_its_machine() {
    const TEMPLATE: &str = "EdgeMachineTemplate.infrastructure.cluster.x-k8s.io/default/small";
    let assignment = |is_paused: bool| Assignment::To {
        object: Reference::parse(TEMPLATE).expect("a reference"),
        shape: Some(Box::new(shape(&usual("a", &[])))),
        stuck: None,
        waits_for: "Cluster API has not made its Machine yet".to_owned(),
        is_paused,
    };
    let of_template = |change: fn(&mut Value)| {
        claim(|value| {
            value["metadata"]["annotations"]["karpenter.cluster.x-k8s.io/scalable-resource"] =
                json!(TEMPLATE);
            change(value);
        })
    };
    let mut observed = Observed {
        claim: of_template(|_| {}),
        assignment: assignment(false),
        ..Observed::default()
    };
    let wait =
        "wait WaitingForMachine until 2026-11-17T12:04:00Z: Cluster API has not made its Machine yet\n";
    assert_eq!(
        printed(&observed),
        format!("1. make a Machine from {TEMPLATE}: one claim on a template is one Machine\n2. {wait}")
    );
    observed.assignment = assignment(true);
    assert_eq!(printed(&observed), format!("1. {wait}"), "its Cluster is paused");
    observed.assignment = assignment(false);
    observed.claim = of_template(|claim| {
        claim["metadata"]["annotations"]["cluster.x-k8s.io/machine"] = json!("default/general-abc");
    });
    assert_eq!(printed(&observed), "1. delete the claim: its Machine is gone\n");

    observed.claim = of_template(|claim| {
        claim["metadata"]["deletionTimestamp"] = json!("2026-11-17T11:59:30Z");
        claim["metadata"]["annotations"]["karpenter.cluster.x-k8s.io/drained"] = json!("true");
    });
    observed.machine = Some(Arc::new(machine(|_| {})));
    assert_eq!(
        printed(&observed),
        "1. delete Machine a-1: the claim is deleted and its node drained\n"
    );
    observed.machine = Some(Arc::new(machine(|machine| {
        machine["metadata"]["deletionTimestamp"] = json!("2026-11-17T11:59:40Z");
    })));
    assert_eq!(
        printed(&observed),
        "1. wait InstanceTerminating: Machine a-1 is on its way out\n"
    );
    observed.machine = None;
    let left = kube::api::DynamicObject::new("general-abc", &kube::api::ApiResource::erase::<Machine>(&()));
    observed.parts = vec![Part {
        resource: kube::api::ApiResource::erase::<Machine>(&()),
        object: left,
    }];
    assert_eq!(
        printed(&observed),
        "1. delete what was made for a Machine that never came: the claim is deleted\n"
    );
    observed.parts = Vec::new();
    assert_eq!(printed(&observed), "1. release finalizer: its Machine is gone\n");
}

/// Nobody says when a kind is installed, so it is looked for again, and the NodeClass says what it misses.
#[test]
fn a_kind_that_is_not_installed_is_looked_for_again() {
    let class: ClusterAPINodeClass = object(json!({"metadata": {"name": "edge"}, "spec": {
        "scalableResource": {"group": "infrastructure.cluster.x-k8s.io", "kind": "EdgeMachineTemplate"}}}));
    let observed = |is_unknown: bool| node_class::Observed {
        class: class.clone(),
        described: Described {
            is_unknown,
            ..Described::default()
        },
        news: Vec::new(),
    };
    let looks_again = |is_unknown: bool| {
        node_class::plan(&observed(is_unknown))
            .revisit
            .map(|(after, _)| after.as_secs())
    };
    assert_eq!((looks_again(true), looks_again(false)), (Some(30), None));
    let message = |is_unknown: bool| {
        let status = node_class::status(&observed(is_unknown), now());
        let ready = status.conditions.into_iter().find(|one| one.type_ == "Ready");
        ready.expect("it is told").message
    };
    assert_eq!(
        message(true),
        "EdgeMachineTemplate of infrastructure.cluster.x-k8s.io is not installed, or may not be listed"
    );
    assert_eq!(message(false), "there is no EdgeMachineTemplate");
}

/// A price that cannot be read is told where its reader looks, and the others count.
#[test]
fn a_price_list_that_cannot_be_read_is_told() {
    let key: ConfigMapKey = object(json!({"namespace": "fleet", "name": "prices"}));
    let read = |data: Option<serde_json::Value>| {
        let map: Option<ConfigMap> = data.map(|data| object(json!({"data": data})));
        let (list, price_problems) = cluster_api::read_prices(&key, map.as_ref());
        let observed = node_class::Observed {
            described: Described {
                price_problems,
                ..Described::default()
            },
            ..node_class::Observed::default()
        };
        let conditions = node_class::status(&observed, now()).conditions;
        let valid = conditions
            .into_iter()
            .find(|one| one.type_ == "ValidationSucceeded");
        let valid = valid.expect("it is told");
        (list.find("m5.large", "", ""), valid.reason, valid.message)
    };
    let (price, reason, _) = read(Some(json!({"prices": "m5.large 0.1"})));
    assert_eq!((price, reason.as_str()), (Some(0.1), "ValidationSucceeded"));
    for (data, known, problem) in [
        (
            Some(json!({"prices": "m5.large 0.1\nm5.xlarge dear"})),
            Some(0.1),
            "ConfigMap fleet/prices: line 2 of the price list is \"m5.xlarge dear\"",
        ),
        (
            Some(json!({"cost": "m5.large 0.1"})),
            None,
            "ConfigMap fleet/prices has no key \"prices\"",
        ),
        (None, None, "there is no ConfigMap fleet/prices"),
    ] {
        let (price, reason, message) = read(data);
        assert_eq!((price, reason.as_str()), (known, "InvalidPriceList"));
        assert!(message.contains(problem), "{message}");
    }
}
