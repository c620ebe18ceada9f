//! Parts of status that several kinds share, and the empty object.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// An object without fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Empty {}

/// What the OIDC issuer has become.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OidcIssuerStatus {
    /// The issuer's address.
    #[serde(rename = "issuerURL", default, skip_serializing_if = "Option::is_none")]
    pub issuer_url: Option<String>,
}

/// A record that earlier controllers kept of an operation. Read so that it is not lost; never written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LongRunningOperation {
    /// Opaque to us.
    pub data: String,
    /// The resource's name.
    pub name: String,
    /// The resource's group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_group: Option<String>,
    /// Which part of the controller kept it.
    pub service_name: String,
    /// The kind of operation.
    #[serde(rename = "type")]
    pub type_: String,
}

/// The schema of old-form conditions, no narrower than the one their first authors published.
pub(crate) fn old_conditions(_generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "status", "type"],
            "properties": {
                "type": {"type": "string", "minLength": 1, "maxLength": 256},
                "status": {"type": "string"},
                "severity": {"type": "string", "maxLength": 32},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "reason": {"type": "string", "minLength": 1, "maxLength": 256},
                "message": {"type": "string", "minLength": 1, "maxLength": 10240}
            }
        }
    })
}
