//! User-assigned identities and their federated credentials.

use serde_json::{Map, Value, json};

use super::{Draft, Kind, Missing, PLAIN, View, at_once, without_body};
use crate::{azure::Azure, error_response::ErrorResponse, store::Resource};

pub const IDENTITY: &str = "Microsoft.ManagedIdentity/userAssignedIdentities";
pub const FEDERATED: &str = "Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials";

pub const KINDS: &[Kind] = &[
    Kind {
        path: IDENTITY,
        create: at_once(201),
        delete: without_body(at_once(200)),
        shows_state: false,
        links_itself: true,
        complete: complete_identity,
        present: present_id,
        ..PLAIN
    },
    Kind {
        path: FEDERATED,
        create: at_once(201),
        delete: without_body(at_once(200)),
        shows_state: false,
        links_itself: true,
        located: false,
        parent_first: true,
        missing: Missing::Provider("NotFound"),
        complete: complete_federated,
        present: present_id,
        ..PLAIN
    },
];

#[expect(clippy::unnecessary_wraps, reason = "one signature for every type")]
fn complete_identity(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    let tenant = draft.azure.settings.tenant.clone();
    let (principal, client) = (draft.made_up("principal"), draft.made_up("client"));
    draft.body.entry("tags").or_insert_with(|| json!({}));
    draft.own("tenantId", || tenant.into());
    draft.own("principalId", || principal.into());
    draft.own("clientId", || client.into());
    Ok(())
}

fn complete_federated(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    for key in ["issuer", "subject", "audiences"] {
        if !draft.properties().contains_key(key) {
            return Err(ErrorResponse::new(
                400,
                "BadRequest",
                format!("The federated identity credential needs properties.{key}."),
            ));
        }
    }
    Ok(())
}

fn present_id(_: &Azure, resource: &Resource, _: &View<'_>, document: &mut Map<String, Value>) {
    document.insert("id".to_owned(), resource.arm_id().aks_spelling().into());
}
