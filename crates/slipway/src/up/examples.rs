//! Applies a provider's example and shows each object as it becomes what it should.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::join_all};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
    runtime::{WatchStreamExt, wait::await_condition, watcher},
};
use serde_json::Value;
use slipway_insight::{Catalogue, Id};
use slipway_runtime::provider::Example;

use super::live::{self, Line};

/// A hang guard: an example on this machine is ready within seconds, and hosts reboot within a minute or two.
const DEADLINE: Duration = Duration::from_mins(6);

/// Shows an example; its simulator has `said` where things are.
pub async fn show(
    client: &kube::Client,
    catalogue: &Catalogue,
    example: &Example,
    said: &Value,
) -> Result<(), String> {
    // Nothing is followed that the example does not name, and then nothing ends it.
    let following = async {
        join_all(example.follows.iter().map(|kind| follow(client, *kind))).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        shown = until_shown(client, catalogue, example, said) => shown,
        () = following => Ok(()),
    }
}

async fn until_shown(
    client: &kube::Client,
    catalogue: &Catalogue,
    example: &Example,
    said: &Value,
) -> Result<(), String> {
    println!("  {}", example.title);
    let cluster = example
        .objects
        .iter()
        .find(|object| object["kind"] == "Cluster")
        .map(Id::of);
    let mut line = Line::new(cluster.as_ref().map_or("", |cluster| &cluster.name));
    let mut applied = Vec::new();
    for object in &example.objects {
        applied.push(apply(client, &filled(object, said)).await?);
    }
    for (index, condition) in &example.becomes {
        let Some((api, what, name)) = applied.get(*index) else {
            return Err(format!(
                "the example {:?} waits for an object it does not have",
                example.title
            ));
        };
        let started = Instant::now();
        let expected = *condition;
        let reached = await_condition(api.clone(), name, move |object: Option<&DynamicObject>| {
            object.is_some_and(|object| status(&object.data, expected) == "True")
        });
        let reached = tokio::time::timeout(DEADLINE, reached);
        let is_reached = match &cluster {
            Some(cluster) => tokio::select! {
                reached = reached => matches!(reached, Ok(Ok(_))),
                () = live::follow(client, catalogue, cluster, &mut line) => false,
            },
            None => matches!(reached.await, Ok(Ok(_))),
        };
        line.clear();
        if !is_reached {
            let now = api.get_opt(name).await.ok().flatten();
            let message = now
                .map(|object| message_of(&object.data, expected))
                .unwrap_or_default();
            let next = cluster.map_or_else(String::new, |cluster| {
                format!("; `slipway why cluster/{}` says more", cluster.name)
            });
            return Err(format!(
                "{what} is not {expected} after six minutes: {message}{next}"
            ));
        }
        println!(
            "  {what} is {expected} ({:.1} s)",
            started.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Tells of each object of a kind how ready it is, as that changes.
async fn follow(client: &kube::Client, [group, version, kind]: [&str; 3]) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    let mut events = std::pin::pin!(
        watcher(api, watcher::Config::default())
            .default_backoff()
            .applied_objects()
    );
    while let Some(event) = events.next().await {
        let Ok(object) = event else { continue };
        let name = object.name_any();
        let line = match condition_of(&object.data, "Ready") {
            None => continue,
            Some(ready) if ready["status"] == "True" => "it is ready".to_owned(),
            Some(_) => message_of(&object.data, "Ready"),
        };
        if said.get(&name) != Some(&line) {
            println!("    {kind} {name}: {line}");
            said.insert(name, line);
        }
    }
}

/// The object with what the simulator said in it.
fn filled(object: &Value, said: &Value) -> Value {
    match object {
        Value::String(text) => match text.strip_prefix("$said") {
            Some(pointer) => said.pointer(pointer).cloned().unwrap_or(Value::Null),
            None => object.clone(),
        },
        Value::Array(items) => items.iter().map(|item| filled(item, said)).collect(),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| (name.clone(), filled(value, said)));
            Value::Object(fields.collect())
        }
        _ => object.clone(),
    }
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

/// Both lists of conditions: a kind with both contracts keeps its v1beta2 conditions one level deeper.
fn lists(data: &Value) -> impl Iterator<Item = &Vec<Value>> {
    let status = &data["status"];
    [&status["v1beta2"]["conditions"], &status["conditions"]]
        .into_iter()
        .filter_map(Value::as_array)
}

fn condition_of<'a>(data: &'a Value, expected: &str) -> Option<&'a Value> {
    lists(data).flatten().find(|one| one["type"] == expected)
}

fn status<'a>(data: &'a Value, expected: &str) -> &'a str {
    condition_of(data, expected)
        .and_then(|one| one["status"].as_str())
        .unwrap_or_default()
}

fn message_of(data: &Value, expected: &str) -> String {
    match condition_of(data, expected) {
        Some(one) => one["message"].as_str().unwrap_or_default().to_owned(),
        None => "it does not have that condition".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_simulator_said_is_filled_in_with_its_type() {
        let said = json!({"endpoint": {"host": "127.0.0.1", "port": 6443}, "images": ["one"]});
        let object = json!({"spec": {"host": "$said/endpoint/host", "port": "$said/endpoint/port", "all": ["$said/images/0", 3]}});
        assert_eq!(
            filled(&object, &said),
            json!({"spec": {"host": "127.0.0.1", "port": 6443, "all": ["one", 3]}})
        );
    }

    #[test]
    fn a_condition_is_found_in_both_places() {
        let own = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let upstream = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}],
            "v1beta2": {"conditions": [{"type": "Ready", "status": "False", "message": "waiting"}]}}});
        assert_eq!(status(&own, "Ready"), "True");
        assert_eq!(status(&upstream, "Ready"), "False");
        assert_eq!(message_of(&upstream, "Ready"), "waiting");
        assert_eq!(status(&own, "Available"), "");
    }
}
