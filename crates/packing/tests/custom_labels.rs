//! Labels that no instance type and no NodePool defines: which pods may share a node that is given one, and nodes whose
//! labels are known before they have come.

use serde_json::{Value, json};
use slipway_packing::model::{Plan, Workload};

use crate::judge;
use crate::judged::schedule;

const ZONE: &str = "topology.kubernetes.io/zone";
const TEAM: &str = "example.com/team";

fn workload(pods: &[Value]) -> Value {
    let offering = |zone: &str| {
        json!({"requirements": [{"key": ZONE, "operator": "In", "values": [zone]},
                                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}],
               "price": 0.1, "available": true})
    };
    json!({
        "nodePools": [{"metadata": {"name": "general", "uid": "general"},
                       "spec": {"template": {"spec": {"requirements": []}}}}],
        "instanceTypes": {"general": [{
            "name": "large",
            "requirements": [{"key": ZONE, "operator": "In", "values": ["zone-1", "zone-2"]},
                             {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
                             {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["large"]}],
            "capacity": {"cpu": "8", "memory": "16Gi", "pods": "20"},
            "offerings": [offering("zone-1"), offering("zone-2")]}]},
        "pods": pods,
    })
}

/// Pods are tried largest first: `cpu` gives the order.
fn pod(name: &str, cpu: &str, expressions: &Value) -> Value {
    let terms = json!([{"matchExpressions": expressions}]);
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
                 "affinity": {"nodeAffinity": {
                     "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}},
    })
}

fn team(operator: &str, values: &[&str]) -> Value {
    json!({"key": TEAM, "operator": operator, "values": values})
}

/// Capacity on its way, or a node that has come, in zone-1 and without the label.
fn add_host(workload: &mut Value, joined: bool) {
    let labels = json!({ZONE: "zone-1", "karpenter.sh/nodepool": "general", "karpenter.sh/capacity-type": "spot",
                        "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"});
    let amounts = json!({"cpu": "8", "memory": "16Gi", "pods": "20"});
    let done = if joined { "True" } else { "False" };
    let conditions = json!([{"type": "Launched", "status": "True"}, {"type": "Registered", "status": done},
                            {"type": "Initialized", "status": done}]);
    workload["nodeClaims"] = json!([{
        "metadata": {"name": "held", "uid": "held", "labels": labels},
        "status": {"providerID": "example://1", "capacity": amounts, "allocatable": amounts, "conditions": conditions}}]);
    if joined {
        workload["nodes"] = json!([{
            "metadata": {"name": "node", "uid": "node", "labels": labels},
            "spec": {"providerID": "example://1"},
            "status": {"capacity": amounts, "allocatable": amounts,
                       "conditions": [{"type": "Ready", "status": "True"}]}}]);
    }
}

fn planned(workload: &Value) -> Plan {
    let workload: Workload = serde_json::from_value(workload.clone()).expect("a workload");
    schedule(&workload.snapshot, &workload.pods)
}

fn claims(plan: &Plan) -> Vec<Vec<&str>> {
    plan.new_claims
        .iter()
        .map(|claim| {
            claim
                .pods
                .iter()
                .map(|pod| pod.trim_start_matches("default/"))
                .collect()
        })
        .collect()
}

fn left(plan: &Plan) -> Vec<&str> {
    plan.unschedulable
        .iter()
        .map(|refusal| refusal.pod.as_str())
        .collect()
}

/// Excluding a value gives the node another one, and so the label.
#[test]
fn a_claim_that_got_a_label_takes_pods_that_want_it() {
    let wants = pod("wants", "2", &json!([team("Exists", &[])]));
    let gives = pod("gives", "1", &json!([team("NotIn", &["blue"])]));
    let alone = planned(&workload(std::slice::from_ref(&wants)));
    assert_eq!(left(&alone), ["default/wants"]);
    // The first try comes too early: that refusal must not be remembered.
    let plan = planned(&workload(&[wants, gives]));
    assert_eq!(claims(&plan), [["gives", "wants"]]);
}

#[test]
fn a_label_that_has_to_be_there_does_not_become_absent() {
    let both = json!([team("NotIn", &["blue"]), team("Exists", &[])]);
    let labelled = pod("labelled", "2", &both);
    let absent = pod("absent", "1", &json!([team("DoesNotExist", &[])]));
    let either = pod("either", "500m", &json!([team("NotIn", &["red"])]));
    let plan = planned(&workload(&[labelled.clone(), absent, either]));
    assert_eq!(claims(&plan), [vec!["labelled", "either"], vec!["absent"]]);

    // A node that is there gets no new labels.
    let mut with_node = workload(&[labelled]);
    add_host(&mut with_node, true);
    let plan = planned(&with_node);
    assert_eq!(claims(&plan), [["labelled"]]);
}

#[test]
fn a_pod_that_contradicts_itself_is_left_over() {
    let mut selects = pod("selects", "1", &json!([team("NotIn", &["red"])]));
    selects["spec"]["nodeSelector"] = json!({TEAM: "red"});
    let two = pod("two", "1", &json!([team("In", &["red"]), team("In", &["blue"])]));
    let numbers = pod("numbers", "1", &json!([team("Gt", &["5"]), team("Lt", &["3"])]));
    for joined in [None, Some(false), Some(true)] {
        let mut workload = workload(&[selects.clone(), two.clone(), numbers.clone()]);
        if let Some(joined) = joined {
            add_host(&mut workload, joined);
        }
        let plan = planned(&workload);
        assert_eq!(left(&plan).len(), 3, "{plan:?}");
    }
}

/// Pods on capacity that is on its way count where it will be.
#[test]
fn a_spread_counts_capacity_on_its_way() {
    let pods: Vec<Value> = (0..4)
        .map(|index| {
            let mut pod = pod(&format!("web-{index}"), "1", &json!([]));
            pod["spec"]["affinity"] = Value::Null;
            pod["spec"]["topologySpreadConstraints"] = json!([{
                "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "web"}}}]);
            pod
        })
        .collect();
    let mut value = workload(&pods);
    add_host(&mut value, false);
    let plan = planned(&value);
    assert_eq!(plan.existing[0].node, "held");
    assert_eq!(plan.existing[0].pods.len(), 2);
    assert_eq!(claims(&plan).concat().len(), 2);

    // The checker sees through a plan that puts them all there.
    let workload: Workload = serde_json::from_value(value).expect("a workload");
    let mut lopsided = plan;
    let moved = std::mem::take(&mut lopsided.new_claims);
    lopsided.existing[0]
        .pods
        .extend(moved.into_iter().flat_map(|claim| claim.pods));
    let refused = std::panic::catch_unwind(|| {
        judge::check(&workload.snapshot, &workload.pods, &lopsided);
    });
    assert!(refused.is_err(), "a skew of four passed");
}
