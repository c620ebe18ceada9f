//! Refusals: every error answer of ARM and of the resource providers, with the codes and wording they use.

use serde_json::{Value, json};

use crate::{arm_id::ArmId, wire::Response};

/// An answer that is not a success.
#[derive(Clone, Debug)]
pub struct ErrorResponse {
    pub status: u16,
    pub body: Value,
    /// `x-ms-failure-cause: gateway`: ARM itself refused, the resource provider was not asked.
    pub from_gateway: bool,
    pub retry_after: Option<u64>,
}

impl ErrorResponse {
    /// The usual shape, `{"error": {"code", "message"}}`.
    pub fn new(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self::with_body(
            status,
            json!({"error": {"code": code, "message": message.into()}}),
        )
    }

    pub fn with_body(status: u16, body: Value) -> Self {
        Self {
            status,
            body,
            from_gateway: false,
            retry_after: None,
        }
    }

    pub fn gateway(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self {
            from_gateway: true,
            ..Self::new(status, code, message)
        }
    }

    /// The shape of the AKS provider: code, details, message and subcode without a wrapper.
    pub fn aks(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self::with_body(
            status,
            json!({"code": code, "details": null, "message": message.into(), "subcode": ""}),
        )
    }

    #[must_use]
    pub fn target(mut self, target: &str) -> Self {
        let object = if self.body.get("error").is_some() {
            self.body.get_mut("error")
        } else {
            Some(&mut self.body)
        };
        if let Some(object) = object.and_then(Value::as_object_mut) {
            object.insert("target".to_owned(), target.into());
        }
        self
    }

    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    pub fn into_response(self) -> Response {
        let mut response = Response::json(self.status, &self.body);
        if self.from_gateway {
            response = response.with("x-ms-failure-cause", "gateway");
        }
        if let Some(seconds) = self.retry_after {
            response = response.with("retry-after", &seconds.to_string());
        }
        response
    }

    pub fn resource_group_not_found(group: &str) -> Self {
        Self::gateway(
            404,
            "ResourceGroupNotFound",
            format!("Resource group '{group}' could not be found."),
        )
    }

    pub fn resource_not_found(id: &ArmId) -> Self {
        let mut kind = id.type_path();
        let mut name = id.name().to_owned();
        // ARM spells nested resources `type/sub` and `name/subname`.
        let mut parent = id.parent();
        while let Some(above) = parent {
            name = format!("{}/{name}", above.name());
            parent = above.parent();
        }
        kind.push('/');
        kind.push_str(&name);
        Self::gateway(
            404,
            "ResourceNotFound",
            format!(
                "The Resource '{kind}' under resource group '{}' was not found. For more details please go to https://aka.ms/ARMResourceNotFoundFix",
                id.group.as_deref().unwrap_or("<null>")
            ),
        )
    }

    pub fn parent_not_found(id: &ArmId, verb: &str) -> Self {
        let kind = id.type_path();
        let kind = kind.split_once('/').map_or(kind.as_str(), |(_, kind)| kind);
        let parent = id
            .parent()
            .or_else(|| id.scope())
            .map(|parent| parent.to_string());
        Self::gateway(
            404,
            "ParentResourceNotFound",
            format!(
                "Failed to perform '{verb}' on resource(s) of type '{kind}', because the parent resource '{}' could not be found.",
                parent.unwrap_or_default()
            ),
        )
    }

    pub fn bad_json(error: &serde_json::Error) -> Self {
        Self::gateway(
            400,
            "InvalidRequestContent",
            format!("The request content was invalid and could not be deserialized: '{error}'."),
        )
    }

    pub fn missing_api_version() -> Self {
        Self::gateway(
            400,
            "MissingApiVersionParameter",
            "The api-version query parameter (?api-version=) is required for all requests.",
        )
    }

    pub fn etag_mismatch(id: &ArmId, given: &str) -> Self {
        Self::new(
            412,
            "PreconditionFailed",
            format!(
                "Operation is not allowed: the precondition on the etag failed for '{id}': the given value '{given}' does not match the current state."
            ),
        )
    }

    pub fn property_change_not_allowed(property: &str) -> Self {
        Self::aks(
            400,
            "PropertyChangeNotAllowed",
            format!("Changing property '{property}' is not allowed."),
        )
        .target(property)
    }

    pub fn invalid_parameter(property: &str, message: impl Into<String>) -> Self {
        Self::aks(400, "InvalidParameter", message).target(property)
    }

    pub fn authorization_failed(object_id: &str, action: &str, scope: &str) -> Self {
        Self::gateway(
            403,
            "AuthorizationFailed",
            format!(
                "The client '{object_id}' with object id '{object_id}' does not have authorization to perform action '{action}' over scope '{scope}' or the scope is invalid. If access was recently granted, please refresh your credentials."
            ),
        )
    }
}
