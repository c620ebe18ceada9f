//! The conformance script: the same requests to the in-memory apiserver and to a real one, and the answers
//! compared. It grows with every new pattern of traffic the project uses.

mod script;

use std::collections::BTreeMap;

use http::Request;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

use self::script::script;
use super::{boat_crd, harbour};

/// Sends the script and returns every answer, normalised.
async fn play(client: &Client, namespace: &str) -> Vec<Value> {
    let mut normaliser = Normaliser {
        namespace: namespace.to_owned(),
        ..Normaliser::default()
    };
    let mut answers = Vec::new();
    for step in script() {
        let body = if step.body.is_null() {
            Vec::new()
        } else {
            step.body.to_string().into_bytes()
        };
        let request = Request::builder()
            .method(step.method)
            .uri(step.path.replace("{}", namespace))
            .header("content-type", step.content_type)
            .header("accept", "application/json")
            .header("user-agent", "conformance/1")
            .body(kube::client::Body::from(body))
            .unwrap();
        let response = client.send(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await.unwrap();
        let body: Value =
            serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes)));
        answers.push(normaliser.answer(code, body));
    }
    answers
}

/// Takes out what two good servers may say differently, and keeps that equal values stay equal.
#[derive(Default)]
struct Normaliser {
    namespace: String,
    names: BTreeMap<(String, String), usize>,
}

impl Normaliser {
    fn answer(&mut self, code: u16, mut body: Value) -> Value {
        if body["kind"] == "Status" && body["status"] == "Failure" {
            return json!({"code": code, "reason": body["reason"]});
        }
        self.walk(&mut body, "");
        json!({"code": code, "body": body})
    }

    /// The n-th different value of this field seen in the script.
    fn name(&mut self, field: &str, value: &str) -> Value {
        let next = self.names.keys().filter(|(known, _)| known == field).count();
        let number = *self
            .names
            .entry((field.to_owned(), value.to_owned()))
            .or_insert(next);
        json!(format!("{field}-{number}"))
    }

    fn walk(&mut self, value: &mut Value, field: &str) {
        match value {
            Value::Object(map) => {
                // The continue token is opaque; that there is one is what counts.
                if let Some(token) = map.get_mut("continue").filter(|token| *token != "") {
                    *token = json!("token");
                }
                for (name, inner) in map.iter_mut() {
                    self.walk(inner, &name.clone());
                }
            }
            Value::Array(items) => {
                if field == "managedFields" {
                    items.iter_mut().for_each(tidy_manager);
                    items.sort_by_key(ToString::to_string);
                }
                for item in items {
                    self.walk(item, "");
                }
            }
            Value::String(text) => {
                let text = text.clone();
                if matches!(field, "uid" | "resourceVersion") {
                    *value = self.name(field, &text);
                } else if field.ends_with("Timestamp") || field == "time" {
                    *value = json!("a time");
                } else if text == self.namespace {
                    *value = json!("the namespace");
                }
            }
            _ => {}
        }
    }
}

/// The `.` of a container says that it was made by this manager; it decides nothing we rely on.
fn tidy_manager(entry: &mut Value) {
    fn drop_dots(value: &mut Value) {
        if let Value::Object(map) = value {
            map.remove(".");
            map.values_mut().for_each(drop_dots);
        }
    }
    drop_dots(&mut entry["fieldsV1"]);
}

#[tokio::test]
async fn the_real_apiserver_gives_the_same_answers() {
    let cluster = slipway_testbed::shared("plain").await.unwrap();
    slipway_testbed::install::install(&cluster.client(), &[serde_json::to_value(boat_crd()).unwrap()])
        .await
        .unwrap();
    let namespace = cluster.namespace("conformance").await.unwrap();
    let real = play(&cluster.client(), &namespace).await;

    let server = harbour();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(server.client());
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    namespaces
        .create(&PostParams::default(), &serde_json::from_value(body).unwrap())
        .await
        .unwrap();
    let memory = play(&server.client(), &namespace).await;

    let mut differences = Vec::new();
    let steps = script();
    for ((step, real), memory) in steps.iter().zip(&real).zip(&memory) {
        if real != memory {
            let patch = json_patch::diff(memory, real);
            differences.push(format!(
                "{}: {}",
                step.what,
                serde_json::to_string(&patch).unwrap()
            ));
        }
    }
    println!(
        "report: apiserver conformance: {} of {} answers agree",
        steps.len() - differences.len(),
        steps.len()
    );
    assert!(
        differences.is_empty(),
        "what turns ours into the real answer:\n{}",
        differences.join("\n")
    );
}
