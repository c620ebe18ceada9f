//! Key vaults: answered at once, and known by name a little later.

use serde_json::{Map, Value, json};

use super::{Draft, Kind, PLAIN, States, View, at_once, polled, without_body};
use crate::{
    azure::Azure,
    error_response::ErrorResponse,
    store::{Resource, object_mut},
};

pub const VAULT: &str = "Microsoft.KeyVault/vaults";
pub const DELETED: &str = "Microsoft.KeyVault/locations/deletedVaults";

pub const KINDS: &[Kind] = &[
    Kind {
        path: VAULT,
        create: polled(200, false, false, None),
        update: at_once(200),
        unchanged: at_once(200),
        delete: without_body(at_once(200)),
        states: States {
            creating: "RegisteringDns",
            updating: "Succeeded",
            deleting: "Deleting",
        },
        complete,
        present,
        ..PLAIN
    },
    Kind {
        path: DELETED,
        located: false,
        missing: super::Missing::Provider("DeletedVaultNotFound"),
        orphan: true,
        ..PLAIN
    },
];

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    draft.body.entry("tags").or_insert_with(|| json!({}));
    if draft.properties().remove("createMode") == Some(json!("recover")) {
        // It comes back as it was, name and all.
        draft.state = Some("Succeeded");
    }
    for (key, value) in [
        ("enabledForDeployment", json!(false)),
        ("enableSoftDelete", json!(true)),
        ("softDeleteRetentionInDays", json!(90)),
        ("enableRbacAuthorization", json!(false)),
        ("publicNetworkAccess", json!("Enabled")),
    ] {
        draft.fill(key, value);
    }
    Ok(())
}

fn present(_: &Azure, resource: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    document.insert("systemData".to_owned(), super::system_data(resource));
    let uri = format!("https://{}.vault.azure.net/", resource.name());
    let properties = object_mut(document, "properties");
    properties.insert("vaultUri".to_owned(), uri.into());
    if view.api < "2023" {
        for key in [
            "softDeleteRetentionInDays",
            "enableRbacAuthorization",
            "publicNetworkAccess",
        ] {
            properties.remove(key);
        }
    }
}
