//! The instance metadata service: tokens for managed identities, without a secret.

use jiff::Timestamp;
use serde_json::json;

use crate::{
    azure::Azure,
    entra::Application,
    wire::{Request, Response},
};

pub fn answer(azure: &mut Azure, request: &Request, now: Timestamp) -> Response {
    if request.header_text("metadata") != Some("true") {
        return Response::json(
            400,
            &json!({"error": "invalid_request", "error_description": "Required metadata header not specified"}),
        );
    }
    if request.path.starts_with("/metadata/instance") {
        return Response::json(
            200,
            &json!({"compute": {"azEnvironment": "AzurePublicCloud", "location": "westus3", "provider": "Microsoft.Compute"}}),
        );
    }
    if request.path != "/metadata/identity/oauth2/token" {
        return Response::json(
            404,
            &json!({"error": "not_found", "error_description": format!("{} is not part of the metadata service.", request.path)}),
        );
    }
    let Some(resource) = request.parameter("resource") else {
        return Response::json(
            400,
            &json!({"error": "invalid_resource", "error_description": "AADSTS500011: The resource principal named was not found: the parameter 'resource' is missing."}),
        );
    };
    let application = match identity(azure, request) {
        Ok(application) => application,
        Err(response) => return *response,
    };
    let settings = azure.settings.clone();
    let token = azure
        .directory_mut()
        .issue(&application, &settings.tenant, &resource, now, &settings);
    let lifetime = settings.token_lifetime;
    Response::json(
        200,
        &json!({
            "access_token": token,
            "client_id": application.client_id,
            "expires_in": lifetime.to_string(),
            "expires_on": (now.as_second() + lifetime as i64).to_string(),
            "ext_expires_in": lifetime.to_string(),
            "not_before": now.as_second().to_string(),
            "resource": resource,
            "token_type": "Bearer",
        }),
    )
}

/// The identity that was asked for by client id, object id or resource id; the machine's own without one.
fn identity(azure: &Azure, request: &Request) -> Result<Application, Box<Response>> {
    let by_resource = request
        .parameter("msi_res_id")
        .or_else(|| request.parameter("mi_res_id"));
    let by_client = request.parameter("client_id");
    let by_object = request.parameter("object_id");
    if by_resource.is_none() && by_client.is_none() && by_object.is_none() {
        return Ok(Application::new("00000000-0000-0000-0000-0000000005e1"));
    }
    let found = azure
        .state()
        .resources
        .iter()
        .filter(|resource| resource.kind == "Microsoft.ManagedIdentity/userAssignedIdentities")
        .find(|resource| {
            by_resource
                .as_ref()
                .is_some_and(|id| id.eq_ignore_ascii_case(&resource.id))
                || by_client
                    .as_ref()
                    .is_some_and(|id| id.eq_ignore_ascii_case(resource.text("clientId")))
                || by_object
                    .as_ref()
                    .is_some_and(|id| id.eq_ignore_ascii_case(resource.text("principalId")))
        });
    if let Some(resource) = found {
        return Ok(Application {
            client_id: resource.text("clientId").to_owned(),
            object_id: resource.text("principalId").to_owned(),
            ..Application::default()
        });
    }
    match by_client {
        Some(client_id) if azure.settings.open_sign_in => Ok(Application::new(&client_id)),
        _ => Err(Box::new(Response::json(
            400,
            &json!({"error": "invalid_request", "error_description": "Identity not found"}),
        ))),
    }
}
