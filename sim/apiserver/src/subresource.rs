//! `/scale` of custom kinds, and `/eviction` of pods.

use serde_json::{Value, json};

use crate::{
    failure::{Answer, Failure},
    route::Call,
    server::State,
};

/// A patch of a Scale, as one of the object behind it.
pub fn of_scale(patch: &Value) -> Value {
    let mut of_object = json!({});
    if let Some(version) = patch["metadata"].get("resourceVersion") {
        of_object["metadata"] = json!({ "resourceVersion": version });
    }
    if let Some(replicas) = patch["spec"].get("replicas") {
        of_object["spec"] = json!({ "replicas": replicas });
    }
    of_object
}

/// The Scale of an object.
pub fn scale(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"]},
        "spec": {"replicas": object["spec"]["replicas"].as_i64().unwrap_or(0)},
        "status": {"replicas": object["status"]["replicas"].as_i64().unwrap_or(0)},
    })
}

/// Deletes a pod, unless a PodDisruptionBudget with no disruption left selects it.
pub fn evict(state: &mut State, call: &Call, body: &[u8]) -> Answer<Value> {
    let eviction: Value =
        serde_json::from_slice(body).map_err(|error| Failure::bad_request(error.to_string()))?;
    let pod = state.get(call)?;
    let namespace = call.namespace.clone().unwrap_or_default();
    let budgets: Vec<Value> = state
        .store
        .list("poddisruptionbudgets.policy")
        .filter(|(key, budget)| key.0 == namespace && selects(budget, &pod))
        .map(|(_, budget)| Value::clone(budget))
        .collect();
    for budget in &budgets {
        if budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) <= 0 {
            return Err(Failure::too_many_requests(
                "Cannot evict pod as it would violate the pod's disruption budget.",
            ));
        }
    }
    for mut budget in budgets {
        let left = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(1) - 1;
        budget["status"]["disruptionsAllowed"] = json!(left);
        state.store.put("poddisruptionbudgets.policy", budget);
    }
    let mut deletion = call.clone();
    deletion.subresource = None;
    state.delete(&deletion, &eviction["deleteOptions"])?;
    Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}))
}

fn selects(budget: &Value, pod: &Value) -> bool {
    let labels = &pod["metadata"]["labels"];
    let selected = budget["spec"]["selector"]["matchLabels"].as_object();
    selected.is_some_and(|selected| selected.iter().all(|(key, value)| labels.get(key) == Some(value)))
}
