//! What is changed when an adoption is confirmed: each resource gets the policy that its manifest says it is to have, and what is to be
//! managed is recorded as ours, so that it goes with its object. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use slipway_azure::{reconcile::Records, resource::Table};

use super::ADOPTED_POLICY;
use crate::inline::{Policy, RECONCILE_POLICY};

/// The patch that confirms an object. `None`: nothing of it waits for it. An error: it is not known yet where a resource is in Azure.
pub fn patch(object: &Value, now: Timestamp) -> Result<Option<Value>, String> {
    let resources = object["spec"]["resources"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let Some(managed) = confirmed(&resources) else {
        return Ok(None);
    };
    let metadata: ObjectMeta = serde_json::from_value(object["metadata"].clone())
        .map_err(|error| format!("its metadata cannot be read: {error}"))?;
    let mut records = Records::of(&metadata);
    for resource in &resources {
        let annotation = &resource["metadata"]["annotations"][ADOPTED_POLICY];
        if annotation.as_str().and_then(Policy::by_name) == Some(Policy::Manage) {
            let id = id_of(resource, object).ok_or_else(|| {
                format!(
                    "it is not known yet where {} {} is in Azure",
                    resource["kind"], resource["metadata"]["name"]
                )
            })?;
            records.adopt(&id, &api_version(resource), now);
        }
    }
    let mut patch = records.patch().unwrap_or_else(|| json!({}));
    // A list is replaced as a whole: one that somebody changed meanwhile is read again by whoever confirms again.
    patch["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
    patch["spec"] = json!({"resources": managed});
    Ok(Some(patch))
}

/// The resource's id, as the status tells it.
fn id_of(resource: &Value, object: &Value) -> Option<String> {
    let lines = object["status"]["resources"].as_array()?;
    let is_it = |line: &&Value| {
        line["resource"]["kind"] == resource["kind"]
            && line["resource"]["name"] == resource["metadata"]["name"]
    };
    lines.iter().find(is_it)?["id"].as_str().map(str::to_owned)
}

fn api_version(resource: &Value) -> String {
    let kind = resource["kind"].as_str().unwrap_or_default();
    let version = resource["apiVersion"].as_str().unwrap_or_default();
    let found = version
        .split_once('/')
        .map(|(group, version)| Table::get().lookup(group, kind, version));
    match found {
        Some(Ok(mapping)) => mapping.api_version,
        _ => String::new(),
    }
}

/// The resources of an object as they are once confirmed. `None`: nothing of them waits for it.
pub fn confirmed(resources: &[Value]) -> Option<Vec<Value>> {
    let mut resources = resources.to_vec();
    let mut changed = false;
    for resource in &mut resources {
        let annotations = resource.pointer_mut("/metadata/annotations");
        let Some(annotations) = annotations.and_then(Value::as_object_mut) else {
            continue;
        };
        if let Some(policy) = annotations.remove(ADOPTED_POLICY) {
            changed = true;
            match policy.as_str() {
                // It is what a resource without a policy has; said, because the operator's settings may say otherwise.
                Some(policy) => annotations.insert(RECONCILE_POLICY.to_owned(), json!(policy)),
                None => annotations.remove(RECONCILE_POLICY),
            };
        }
    }
    changed.then_some(resources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_managed_is_recorded_as_ours_and_what_stays_is_not() {
        let resource = |name: &str, policy: &str| {
            json!({"apiVersion": "resources.azure.com/v1api20200601", "kind": "ResourceGroup", "metadata": {"name": name,
                "annotations": {(RECONCILE_POLICY): "skip", (ADOPTED_POLICY): policy}}})
        };
        let mut object = json!({
            "metadata": {"name": "fleet", "namespace": "default", "resourceVersion": "7"},
            "spec": {"resources": [resource("ours", "manage"), resource("shared", "detach-on-delete")]},
        });
        let error = patch(&object, Timestamp::UNIX_EPOCH).unwrap_err();
        assert!(error.contains("not known yet"), "{error}");
        let line = |name: &str| json!({"resource": {"kind": "ResourceGroup", "name": name}, "id": format!("/subscriptions/s/resourceGroups/{name}")});
        object["status"] = json!({"resources": [line("ours"), line("shared")]});
        let patch = patch(&object, Timestamp::UNIX_EPOCH).unwrap().unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let metadata: ObjectMeta = serde_json::from_value(json!({"name": "fleet", "namespace": "default",
            "annotations": patch["metadata"]["annotations"]}))
        .unwrap();
        let records = Records::of(&metadata);
        let made: Vec<_> = records.made().collect();
        assert_eq!(made, [("/subscriptions/s/resourcegroups/ours", "2020-06-01")]);
    }

    #[test]
    fn only_what_was_adopted_is_managed_and_only_once() {
        let resource =
            |annotations: Value| json!({"kind": "X", "metadata": {"name": "x", "annotations": annotations}});
        let adopted = resource(json!({(RECONCILE_POLICY): "skip", (ADOPTED_POLICY): "detach-on-delete"}));
        let skipped = resource(json!({(RECONCILE_POLICY): "skip"}));
        let plain = json!({"kind": "X", "metadata": {"name": "y"}});
        let resources = confirmed(&[adopted, skipped.clone(), plain.clone()]).unwrap();
        assert_eq!(
            resources[0],
            resource(json!({(RECONCILE_POLICY): "detach-on-delete"}))
        );
        assert_eq!(resources[1..], [skipped, plain]);
        assert_eq!(confirmed(&resources), None);
    }
}
