//! Applies a provider's example and shows each object as it becomes what it should.

use std::time::{Duration, Instant};

use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
    runtime::wait::await_condition,
};
use serde_json::Value;
use slipway_runtime::provider::Example;

/// A hang guard: an example on this machine is ready within seconds.
const DEADLINE: Duration = Duration::from_mins(3);

pub async fn show(client: &kube::Client, example: &Example) -> Result<(), String> {
    println!("  {}", example.title);
    let mut applied = Vec::new();
    for object in &example.objects {
        applied.push(apply(client, object).await?);
    }
    for (index, condition) in &example.becomes {
        let Some((api, what, name)) = applied.get(*index) else {
            return Err(format!(
                "the example {:?} waits for an object it does not have",
                example.title
            ));
        };
        let started = Instant::now();
        let wanted = *condition;
        let reached = await_condition(api.clone(), name, move |object: Option<&DynamicObject>| {
            object.is_some_and(|object| status(&object.data, wanted) == "True")
        });
        if !matches!(tokio::time::timeout(DEADLINE, reached).await, Ok(Ok(_))) {
            let now = api.get_opt(name).await.ok().flatten();
            let told = now
                .map(|object| message(&object.data, wanted))
                .unwrap_or_default();
            return Err(format!("{what} is not {wanted} after three minutes: {told}"));
        }
        println!("  {what} is {wanted} ({:.1} s)", started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Applies one object and answers with where it can be watched.
async fn apply(
    client: &kube::Client,
    object: &Value,
) -> Result<(Api<DynamicObject>, String, String), String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
    let api_version = text(&object["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let parameters = PatchParams::apply("slipway-up").force();
    let applied = api
        .patch(&name, &parameters, &Patch::Apply(object))
        .await
        .map_err(|error| format!("applying the example's {kind} {name}: {error}"))?;
    Ok((api, format!("{kind} {}", applied.name_any()), name))
}

fn condition<'a>(data: &'a Value, wanted: &str) -> Option<&'a Value> {
    // A peer's kind keeps its new-style conditions one level deeper.
    [
        &data["status"]["v1beta2"]["conditions"],
        &data["status"]["conditions"],
    ]
    .into_iter()
    .flat_map(|list| list.as_array().into_iter().flatten())
    .find(|one| one["type"] == wanted)
}

fn status<'a>(data: &'a Value, wanted: &str) -> &'a str {
    condition(data, wanted)
        .and_then(|one| one["status"].as_str())
        .unwrap_or_default()
}

fn message(data: &Value, wanted: &str) -> String {
    match condition(data, wanted) {
        Some(one) => one["message"].as_str().unwrap_or_default().to_owned(),
        None => "it does not have that condition".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_condition_is_found_in_both_places() {
        let own = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let peer = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}],
            "v1beta2": {"conditions": [{"type": "Ready", "status": "False", "message": "waiting"}]}}});
        assert_eq!(status(&own, "Ready"), "True");
        assert_eq!(status(&peer, "Ready"), "False");
        assert_eq!(message(&peer, "Ready"), "waiting");
        assert_eq!(status(&own, "Available"), "");
    }
}
