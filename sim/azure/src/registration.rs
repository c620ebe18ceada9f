//! Resource providers and preview features: asked for and registered per subscription.

use serde_json::{Value, json};

use crate::{
    arm::Context, arm_id::ArmId, azure::Azure, error_response::ErrorResponse, kinds, wire::Response,
};

fn key(parent: &ArmId, namespace: &str) -> String {
    format!("{}/{namespace}", parent.subscription).to_ascii_lowercase()
}

pub fn one(azure: &Azure, parent: &ArmId, namespace: &str) -> Value {
    let state = azure
        .state()
        .providers
        .get(&key(parent, namespace))
        .map_or("Registered", String::as_str);
    let types: Vec<Value> = kinds::known()
        .filter_map(|path| {
            let (own, kind) = path.split_once('/')?;
            own.eq_ignore_ascii_case(namespace).then(|| {
                json!({
                    "resourceType": kind,
                    "locations": ["West US 3", "East US", "West Europe"],
                    "apiVersions": ["2025-08-01", "2024-09-01", "2023-10-01", "2020-06-01"],
                })
            })
        })
        .collect();
    json!({
        "id": format!("/subscriptions/{}/providers/{namespace}", parent.subscription),
        "namespace": namespace,
        "registrationState": state,
        "registrationPolicy": "RegistrationRequired",
        "resourceTypes": types,
    })
}

pub fn all(azure: &Azure, parent: &ArmId) -> Vec<Value> {
    let mut namespaces: Vec<&str> = kinds::known()
        .filter_map(|path| path.split_once('/').map(|(namespace, _)| namespace))
        .collect();
    namespaces.push("Microsoft.Compute");
    namespaces.sort_unstable();
    namespaces.dedup();
    namespaces
        .into_iter()
        .map(|namespace| one(azure, parent, namespace))
        .collect()
}

/// `POST …/providers/{namespace}/register`, and the same for a preview feature.
pub fn act(
    azure: &mut Azure,
    parent: &ArmId,
    namespace: &str,
    word: &str,
    context: &Context<'_>,
) -> Result<Response, ErrorResponse> {
    let state = if word == "unregister" {
        "Unregistered"
    } else {
        "Registered"
    };
    if namespace.is_empty() {
        return Err(ErrorResponse::gateway(
            404,
            "InvalidResourceNamespace",
            format!("The path '{}' names no resource provider.", context.request.path),
        ));
    }
    if let Some((_, pairs)) = parent.providers.last() {
        let names: Vec<&str> = pairs.iter().map(|(_, name)| name.as_str()).collect();
        let name = names.join("/");
        azure.state.providers.insert(key(parent, &name), state.to_owned());
        azure.touch();
        return Ok(Response::json(
            200,
            &json!({
                "id": parent.to_string(),
                "name": name,
                "type": "Microsoft.Features/providers/features",
                "properties": {"state": state},
            }),
        ));
    }
    azure
        .state
        .providers
        .insert(key(parent, namespace), state.to_owned());
    azure.touch();
    Ok(Response::json(200, &one(azure, parent, namespace)))
}
