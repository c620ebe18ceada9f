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

/// What an account answers `listKeys` with. A key that was regenerated is another.
pub fn account_keys(id: &ArmId, account: &Resource) -> Response {
    let key = |name: &str| {
        let made = regenerated(account, name);
        let of = if made == 0 {
            format!("{id}/{name}")
        } else {
            format!("{id}/{name}/{made}")
        };
        let value = Uuid::new_v5(&Uuid::NAMESPACE_URL, of.as_bytes());
        json!({"keyName": name, "value": value.to_string(), "permissions": "FULL"})
    };
    Response::json(200, &json!({"keys": [key("key1"), key("key2")]}))
}

/// How often a key was regenerated.
fn regenerated(account: &Resource, name: &str) -> u64 {
    let times = account.hidden.get(name).and_then(Value::as_u64);
    times.unwrap_or_default()
}

/// Regenerates a key, and answers with all of them.
pub fn regenerate_key(id: &ArmId, account: &mut Resource, body: &Value) -> Result<Response, ErrorResponse> {
    let Some(name @ ("key1" | "key2")) = body["keyName"].as_str() else {
        return Err(ErrorResponse::new(
            400,
            "InvalidValuesForRequestParameters",
            "Values for request parameters are invalid: keyName.",
        ));
    };
    let next = regenerated(account, name) + 1;
    account.hidden.insert(name.to_owned(), next.into());
    Ok(account_keys(id, account))
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
