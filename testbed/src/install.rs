//! Installs manifests for processes that run outside the cluster: webhook and CRD-conversion client configs
//! that name a Service are pointed at a url with a CA bundle instead, as there is no Service to reach.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    runtime::{conditions, wait::Condition},
};
use serde_json::{Value, json};

use crate::wait::until_within;

/// The field manager of everything that is installed.
pub const FIELD_MANAGER: &str = "slipway-testbed";

/// A hang guard: a CRD is served within milliseconds, and dozens at once on a busy machine within minutes.
const CRD_DEADLINE: Duration = Duration::from_mins(5);
/// A server that has just been given dozens of kinds asks to be asked again.
const AGAIN: Duration = Duration::from_millis(500);
const TRIES: usize = 60;

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("installing {object}: {source}")]
    Apply {
        object: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("an object to install has no {field}: {object}")]
    Incomplete { field: &'static str, object: String },
    #[error("the CRD {name} was installed but is not served: {detail}")]
    NotServed { name: String, detail: String },
    #[error("reading the manifest to install: {0}")]
    Yaml(String),
}

/// Reads a stream of YAML documents, for [`install`].
pub fn parse(yaml: &str) -> Result<Vec<Value>, InstallError> {
    crate::parts::parse_yaml(yaml).map_err(InstallError::Yaml)
}

/// Points every webhook and conversion of `objects` at `url` (`https://127.0.0.1:9443`), trusted by `ca` (PEM).
pub fn point_at(objects: &mut [Value], url: &str, ca: &str) {
    for object in objects {
        match object["kind"].as_str() {
            Some("CustomResourceDefinition") => {
                if let Some(webhook) = object.pointer_mut("/spec/conversion/webhook") {
                    rewrite(webhook, url, ca);
                }
            }
            Some("ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration") => {
                for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
                    rewrite(webhook, url, ca);
                }
            }
            _ => {}
        }
    }
}

fn rewrite(holder: &mut Value, url: &str, ca: &str) {
    let path = holder
        .pointer("/clientConfig/service/path")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    holder["clientConfig"] = json!({
        "url": format!("{}/{}", url.trim_end_matches('/'), path.trim_start_matches('/')),
        "caBundle": BASE64_STANDARD.encode(ca),
    });
}

/// Applies objects server-side and waits until their CRDs are served. Namespaces and CRDs go first.
pub async fn install(client: &Client, objects: &[Value]) -> Result<(), InstallError> {
    let (first, second): (Vec<&Value>, Vec<&Value>) = objects.iter().partition(|object| {
        matches!(
            object["kind"].as_str(),
            Some("CustomResourceDefinition" | "Namespace")
        )
    });
    for group in [first, second] {
        stream::iter(group.iter().map(|object| apply(client, object)))
            .buffer_unordered(8)
            .try_collect::<Vec<()>>()
            .await?;
        stream::iter(
            group
                .iter()
                .filter(|object| object["kind"] == "CustomResourceDefinition")
                .map(|object| served(client, object)),
        )
        .buffer_unordered(8)
        .try_collect::<Vec<()>>()
        .await?;
    }
    Ok(())
}

async fn apply(client: &Client, object: &Value) -> Result<(), InstallError> {
    let text = |field: &'static str, value: &Value| {
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| InstallError::Incomplete {
                field,
                object: short(object),
            })
    };
    let api_version = text("apiVersion", &object["apiVersion"])?;
    let kind = text("kind", &object["kind"])?;
    let name = text("metadata.name", &object["metadata"]["name"])?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    let mut tries = 0;
    loop {
        tries += 1;
        match api.patch(&name, &parameters, &Patch::Apply(object)).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 429 | 503) && tries < TRIES => {
                tokio::time::sleep(AGAIN).await;
            }
            Ok(_) => return Ok(()),
            Err(source) => {
                return Err(InstallError::Apply {
                    object: format!("{kind} {name}"),
                    source: Box::new(source),
                });
            }
        }
    }
}

async fn served(client: &Client, object: &Value) -> Result<(), InstallError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let established = conditions::is_crd_established();
    until_within(CRD_DEADLINE, &crds, name, "be served", |crd| {
        established.matches_object(Some(crd))
    })
    .await
    .map(|_| ())
    .map_err(|error| InstallError::NotServed {
        name: name.to_owned(),
        detail: error.to_string(),
    })
}

fn short(object: &Value) -> String {
    let fields = ["apiVersion", "kind", "metadata"].map(|field| format!("{field}={}", object[field]));
    fields.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_become_urls_and_nothing_else_changes() {
        let mut objects = vec![
            json!({"kind": "CustomResourceDefinition", "spec": {"conversion": {"strategy": "Webhook", "webhook": {
                "clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/convert"}},
                "conversionReviewVersions": ["v1"]}}}}),
            json!({"kind": "CustomResourceDefinition", "spec": {"names": {"kind": "Plain"}}}),
            json!({"kind": "MutatingWebhookConfiguration", "webhooks": [
                {"name": "a", "clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/mutate"}}}]}),
            json!({"kind": "Namespace", "metadata": {"name": "n"}}),
        ];
        point_at(&mut objects, "https://127.0.0.1:9443/", "CA");
        let config =
            |path: &str| json!({"url": format!("https://127.0.0.1:9443/{path}"), "caBundle": "Q0E="});
        assert_eq!(
            objects,
            [
                json!({"kind": "CustomResourceDefinition", "spec": {"conversion": {"strategy": "Webhook", "webhook": {
                    "clientConfig": config("convert"), "conversionReviewVersions": ["v1"]}}}}),
                json!({"kind": "CustomResourceDefinition", "spec": {"names": {"kind": "Plain"}}}),
                json!({"kind": "MutatingWebhookConfiguration", "webhooks": [
                    {"name": "a", "clientConfig": config("mutate")}]}),
                json!({"kind": "Namespace", "metadata": {"name": "n"}}),
            ]
        );
    }
}
