//! Pods out of a file: themselves, or those that a workload in it would make. Pure.

use serde_json::{Value, json};
use slipway_packing::model::Pod;

/// More than this are a mistake in the file.
const MOST: u64 = 100_000;

/// `namespace/name`.
pub fn key(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}

/// The pods of a file, as kube-scheduler would leave them.
pub fn pods(text: &str) -> Result<Vec<Pod>, String> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| format!("it is no YAML: {error}"))?;
    let mut all = Vec::new();
    for document in documents.into_iter().filter(|document| !document.is_null()) {
        let items = match &document["items"] {
            Value::Array(items) => items.clone(),
            _ => vec![document],
        };
        for item in items {
            for pod in of_object(&item)? {
                let number = all.len();
                all.push(read(pod, number)?);
            }
        }
    }
    if all.is_empty() {
        return Err("there is no pod in it".to_owned());
    }
    Ok(all)
}

fn of_object(object: &Value) -> Result<Vec<Value>, String> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let (template, count) = match kind {
        "Pod" => return Ok(vec![object.clone()]),
        "Deployment" | "ReplicaSet" | "StatefulSet" => {
            (&object["spec"]["template"], &object["spec"]["replicas"])
        }
        "Job" => (&object["spec"]["template"], &object["spec"]["parallelism"]),
        _ => {
            return Err(format!(
                "it holds a {kind:?}: pods come from Pod, Deployment, ReplicaSet, StatefulSet or Job"
            ));
        }
    };
    let count = count.as_u64().unwrap_or(1);
    if count > MOST {
        return Err(format!("{count} pods are more than {MOST}"));
    }
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let name = text("/metadata/name").unwrap_or("unnamed");
    let made = (0..count).map(|number| {
        let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
        if pod["metadata"].is_null() {
            pod["metadata"] = json!({});
        }
        pod["metadata"]["name"] = json!(format!("{name}-{number}"));
        pod["metadata"]["namespace"] = json!(text("/metadata/namespace").unwrap_or("default"));
        pod
    });
    Ok(made.collect())
}

/// As a pod that kube-scheduler has given up on.
fn read(mut pod: Value, number: usize) -> Result<Pod, String> {
    if pod["metadata"]["namespace"].is_null() {
        pod["metadata"]["namespace"] = json!("default");
    }
    pod["metadata"]["uid"] = json!(format!("simulated-{number}"));
    pod["status"] =
        json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]});
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    serde_json::from_value(pod).map_err(|error| format!("pod {name:?} cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_what_makes_them_are_read() {
        let text = "\
apiVersion: v1
kind: Pod
metadata: {name: one}
spec: {containers: [{name: main, resources: {requests: {cpu: 500m}}}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main}]}
";
        let pods = pods(text).expect("pods");
        let keys: Vec<String> = pods.iter().map(key).collect();
        assert_eq!(keys, ["default/one", "shop/web-0", "shop/web-1"]);
        assert!(pods.iter().all(Pod::is_provisionable));
        assert_eq!(
            pods[2].metadata.labels.get("app").map(String::as_str),
            Some("web")
        );
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        for (text, expected) in [
            ("kind: Service\n", "it holds a \"Service\""),
            ("", "there is no pod in it"),
            ("{", "it is no YAML"),
        ] {
            let error = pods(text).expect_err("a mistake");
            assert!(error.contains(expected), "{error}");
        }
    }
}
