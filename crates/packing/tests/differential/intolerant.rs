//! Which domains an affinity or anti-affinity term knows. To Karpenter they are those of the NodePools whose taints the first pod
//! with the term tolerates; for the anti-affinity of pods that run already not even nodes that stand add to them. From any
//! other domain the term keeps away every pod it selects. This crate looks at where pods are. Where that is the cause, both agree
//! as soon as running pods tolerate everything, and no pod that waits brings such a term without tolerating every NodePool.

use serde_json::{Value, json};

use super::KINDS;

/// The workload without terms of that kind; none if there are none.
pub fn tolerant_terms_only(workload: &Value) -> Option<Value> {
    let taints: Vec<&Value> = workload["nodePools"]
        .as_array()?
        .iter()
        .filter_map(|pool| pool.pointer("/spec/template/spec/taints")?.as_array())
        .flatten()
        .collect();
    let tolerant = |pod: &Value| taints.iter().all(|taint| tolerates(pod, taint));
    let mut changed = workload.clone();
    // Indexing would add the list where there is none.
    let bound = changed.get_mut("boundPods").and_then(Value::as_array_mut);
    for pod in bound.into_iter().flatten() {
        if pod.pointer("/spec/affinity/podAntiAffinity").is_some() && !tolerant(pod) {
            pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        }
    }
    for pod in changed["pods"].as_array_mut().into_iter().flatten() {
        if tolerant(pod) {
            continue;
        }
        for affinity in ["podAffinity", "podAntiAffinity"] {
            for kind in KINDS {
                let terms = pod.pointer_mut(&format!("/spec/affinity/{affinity}/{kind}"));
                if let Some(terms) = terms.and_then(Value::as_array_mut) {
                    terms.retain(|own| {
                        let term = own.get("podAffinityTerm").unwrap_or(own);
                        term["topologyKey"] == "kubernetes.io/hostname"
                    });
                }
            }
        }
    }
    (changed != *workload).then_some(changed)
}

fn tolerates(pod: &Value, taint: &Value) -> bool {
    let tolerations = pod.pointer("/spec/tolerations").and_then(Value::as_array);
    tolerations.into_iter().flatten().any(|toleration| {
        let same = |name: &str| toleration[name].is_null() || toleration[name] == taint[name];
        let value = toleration["operator"] == "Exists" || toleration["value"] == taint["value"];
        same("key") && same("effect") && value
    })
}

#[test]
fn terms_stay_where_every_pool_is_tolerated() {
    let zone = "topology.kubernetes.io/zone";
    let term = |key: &str| json!({"topologyKey": key});
    let pod = |tolerations: Value| {
        json!({"spec": {"tolerations": tolerations, "affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term(zone), term("kubernetes.io/hostname")]}}}})
    };
    let taint = json!({"key": "dedicated", "value": "a", "effect": "NoSchedule"});
    let pools = json!([{"spec": {"template": {"spec": {"taints": [taint]}}}}]);
    let tolerant = json!([{"key": "dedicated", "operator": "Exists"}]);
    let agreed = json!({"nodePools": pools, "pods": [pod(tolerant)], "boundPods": []});
    assert_eq!(tolerant_terms_only(&agreed), None);
    assert_eq!(
        tolerant_terms_only(&json!({"nodePools": pools, "pods": []})),
        None
    );
    let other = json!([{"key": "dedicated", "operator": "Equal", "value": "b"}]);
    let workload = json!({"nodePools": pools, "pods": [pod(other)], "boundPods": [pod(json!([]))]});
    let changed = tolerant_terms_only(&workload).expect("there is such a term");
    let terms = "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    assert_eq!(
        changed["pods"][0].pointer(terms),
        Some(&json!([term("kubernetes.io/hostname")]))
    );
    assert_eq!(
        changed["boundPods"][0]["spec"]["tolerations"],
        json!([{"operator": "Exists"}])
    );
    assert!(
        changed["boundPods"][0]
            .pointer(terms)
            .is_some_and(|terms| terms[0] == term(zone))
    );
}
