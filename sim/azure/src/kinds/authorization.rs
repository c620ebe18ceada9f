//! Role assignments, on any scope.

use serde_json::{Map, Value};

use super::{Draft, Kind, Missing, PLAIN, View, at_once};
use crate::{azure::Azure, error_response::ErrorResponse, store::Resource};

pub const KINDS: &[Kind] = &[Kind {
    path: "Microsoft.Authorization/roleAssignments",
    create: at_once(201),
    update: at_once(200),
    delete: at_once(200),
    shows_state: false,
    located: false,
    missing: Missing::Provider("RoleAssignmentNotFound"),
    parent_missing: Missing::Gateway,
    complete,
    present,
    ..PLAIN
}];

fn complete(draft: &mut Draft<'_>) -> Result<(), ErrorResponse> {
    for key in ["principalId", "roleDefinitionId"] {
        if !draft.properties().contains_key(key) {
            return Err(ErrorResponse::new(
                400,
                "InvalidRequestContent",
                format!("The role assignment needs properties.{key}."),
            ));
        }
    }
    if let Some(old) = draft.old {
        let same = ["principalId", "roleDefinitionId"]
            .iter()
            .all(|key| draft.body["properties"].get(*key) == old.properties().get(*key));
        if !same {
            return Err(ErrorResponse::new(
                409,
                "RoleAssignmentUpdateNotPermitted",
                "Tenant ID, application ID, principal ID, and scope are not allowed to be updated.",
            ));
        }
    }
    let principal = draft.body["properties"]["principalId"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let is_named = draft.properties().contains_key("principalType");
    if !is_named && !draft.azure.settings.open_sign_in && !draft.azure.knows_principal(&principal) {
        return Err(ErrorResponse::new(
            400,
            "PrincipalNotFound",
            format!(
                "Principal {} does not exist in the directory {}. Check that you have the correct principal ID. If you are creating this principal and then immediately assigning a role, this error might be related to a replication delay. In this case, set the role assignment principalType property to a value, such as ServicePrincipal, User, or Group.  See https://aka.ms/docs-principaltype",
                principal.replace('-', ""),
                draft.azure.settings.tenant
            ),
        ));
    }
    let scope = draft
        .id
        .scope()
        .map(|scope| scope.to_string())
        .unwrap_or_default();
    draft.fill("principalType", "ServicePrincipal".into());
    draft.own("scope", || scope.into());
    Ok(())
}

fn present(_: &Azure, resource: &Resource, view: &View<'_>, document: &mut Map<String, Value>) {
    let properties = crate::store::object_mut(document, "properties");
    let author = Value::from("00000000-0000-0000-0000-00000000a000");
    for key in [
        "condition",
        "conditionVersion",
        "delegatedManagedIdentityResourceId",
        "description",
    ] {
        properties.entry(key).or_insert(Value::Null);
    }
    properties.insert("createdOn".to_owned(), resource.created.to_string().into());
    properties.insert("updatedOn".to_owned(), resource.changed.to_string().into());
    // The answer to the write does not yet know who created it.
    let creator = if view.written { Value::Null } else { author.clone() };
    properties.insert("createdBy".to_owned(), creator);
    properties.insert("updatedBy".to_owned(), author);
}
