//! Role assignments as far as they decide something: who may write, and who may fetch credentials.

use http::Method;

use crate::{arm::Context, arm_id::ArmId, azure::Azure, error_response::ErrorResponse};

/// Built-in roles that matter here, by the id at the end of a role definition id.
const OWNER: &str = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635";
const CONTRIBUTOR: &str = "b24988ac-6180-42a0-ab88-20f7382dd24c";
const READER: &str = "acdd72a7-3385-48ef-bd42-f606fba81ae7";
const AKS_CONTRIBUTOR: &str = "ed7f3fbd-7b88-4dd4-9017-9adb7ce333f8";
const AKS_CLUSTER_ADMIN: &str = "0ab0b1a8-8aac-4efd-b8c2-3ee1fb270be8";
const AKS_CLUSTER_USER: &str = "4abbcc35-e782-43d8-92c5-2d3f1bd2253f";

/// Whether a principal holds one of the roles at the scope or above it.
pub fn holds(azure: &Azure, object_id: &str, scope: &str, roles: &[&str]) -> bool {
    let scope = scope.to_ascii_lowercase();
    azure
        .state()
        .resources
        .iter()
        .filter(|resource| resource.kind == "Microsoft.Authorization/roleAssignments")
        .any(|assignment| {
            let at = assignment
                .id
                .to_ascii_lowercase()
                .split("/providers/microsoft.authorization")
                .next()
                .unwrap_or_default()
                .to_owned();
            let covers = scope == at || scope.starts_with(&format!("{at}/"));
            let definition = assignment.text("roleDefinitionId").to_ascii_lowercase();
            covers
                && assignment.text("principalId").eq_ignore_ascii_case(object_id)
                && roles.iter().any(|role| definition.ends_with(role))
        })
}

/// The gate for plain reads and writes; open unless roles are enforced.
pub fn check(azure: &Azure, context: &Context<'_>, id: &ArmId) -> Result<(), ErrorResponse> {
    let verb = match context.request.method {
        Method::GET | Method::HEAD => "read",
        Method::DELETE => "delete",
        _ => "write",
    };
    let roles: &[&str] = match verb {
        "read" => &[OWNER, CONTRIBUTOR, READER, AKS_CONTRIBUTOR],
        _ if id.key().contains("/microsoft.authorization/") => &[OWNER],
        _ if id.key().contains("/microsoft.containerservice/") => &[OWNER, CONTRIBUTOR, AKS_CONTRIBUTOR],
        _ => &[OWNER, CONTRIBUTOR],
    };
    require(azure, context, id, &format!("{}/{verb}", id.type_path()), roles)
}

/// The gate for actions: credentials have roles of their own.
pub fn check_action(
    azure: &Azure,
    context: &Context<'_>,
    id: &ArmId,
    word: &str,
) -> Result<(), ErrorResponse> {
    let roles: &[&str] = match word {
        "listClusterAdminCredential" => &[OWNER, CONTRIBUTOR, AKS_CONTRIBUTOR, AKS_CLUSTER_ADMIN],
        "listClusterUserCredential" | "listClusterMonitoringUserCredential" => &[
            OWNER,
            CONTRIBUTOR,
            AKS_CONTRIBUTOR,
            AKS_CLUSTER_ADMIN,
            AKS_CLUSTER_USER,
        ],
        _ => &[OWNER, CONTRIBUTOR, AKS_CONTRIBUTOR],
    };
    let action = format!("{}/{word}/action", id.type_path());
    require(azure, context, id, &action, roles)
}

fn require(
    azure: &Azure,
    context: &Context<'_>,
    id: &ArmId,
    action: &str,
    roles: &[&str],
) -> Result<(), ErrorResponse> {
    if !azure.settings.enforce_roles {
        return Ok(());
    }
    let Some(caller) = &context.caller else {
        return Ok(());
    };
    let scope = id.to_string();
    if holds(azure, &caller.object_id, &scope, roles) {
        return Ok(());
    }
    Err(ErrorResponse::authorization_failed(
        &caller.object_id,
        action,
        &scope,
    ))
}
