//! Storage accounts: made in a while, polled by Location alone, shown in full once they stand.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{Draft, Kind, PLAIN, States, View, at_once, polled, without_body};
use crate::{
    aks::since,
    arm_id::ArmId,
    azure::Azure,
    error_response::ErrorResponse,
    operation::Style,
    store::{Resource, object_mut},
    wire::Response,
};

pub const STORAGE_ACCOUNT: &str = "Microsoft.Storage/storageAccounts";

/// What an account answers `listKeys` with.
pub fn account_keys(id: &ArmId) -> Response {
    let key = |name: &str| {
        let value = Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("{id}/{name}").as_bytes());
        json!({"keyName": name, "value": value.to_string(), "permissions": "FULL"})
    };
    Response::json(200, &json!({"keys": [key("key1"), key("key2")]}))
}

pub const KINDS: &[Kind] = &[Kind {
    path: STORAGE_ACCOUNT,
    style: Style::Storage,
    create: polled(202, false, true, Some(17)),
    update: at_once(200),
    unchanged: at_once(200),
    delete: without_body(at_once(200)),
    states: States {
        creating: "Creating",
        updating: "Succeeded",
        deleting: "Deleting",
    },
    complete,
    present,
    ..PLAIN
}];

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    draft.body.entry("tags").or_insert_with(|| json!({}));
    let sku = object_mut(&mut draft.body, "sku");
    sku.entry("name").or_insert_with(|| "Standard_LRS".into());
    sku.entry("tier").or_insert_with(|| "Standard".into());
    let strict = since(draft.now, 2023, 12);
    if since(draft.now, 2024, 11) {
        draft.fill("minimumTlsVersion", "TLS1_2".into());
    }
    for (key, value) in [
        ("allowCrossTenantReplication", json!(!strict)),
        ("allowBlobPublicAccess", json!(!strict)),
        ("supportsHttpsTrafficOnly", json!(true)),
        ("privateEndpointConnections", json!([])),
        (
            "networkAcls",
            json!({"bypass": "AzureServices", "virtualNetworkRules": [], "ipRules": [], "defaultAction": "Allow"}),
        ),
    ] {
        draft.fill(key, value);
    }
    Ok(())
}

fn present(_: &Azure, resource: &Resource, _: &View<'_>, document: &mut Map<String, Value>) {
    let (name, location) = (resource.name().to_owned(), resource.location().to_owned());
    let created = resource.created.to_string();
    let service = json!({"keyType": "Account", "enabled": true, "lastEnabledTime": created});
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default();
    let services: &[&str] = match kind {
        "BlobStorage" => &["dfs", "blob", "table"],
        _ => &["dfs", "web", "blob", "queue", "table", "file"],
    };
    let endpoints: Map<String, Value> = services
        .iter()
        .map(|word| {
            (
                (*word).to_owned(),
                format!("https://{name}.{word}.core.windows.net/").into(),
            )
        })
        .collect();
    let properties = object_mut(document, "properties");
    for (key, value) in [
        ("keyCreationTime", json!({"key1": created, "key2": created})),
        (
            "encryption",
            json!({"services": {"file": service, "blob": service}, "keySource": "Microsoft.Storage"}),
        ),
        ("creationTime", json!(created)),
        ("primaryEndpoints", Value::Object(endpoints)),
        ("primaryLocation", json!(location)),
        ("statusOfPrimary", json!("available")),
    ] {
        properties.entry(key).or_insert(value);
    }
}
