//! Requests and responses of the hooks for updates in place, as they go over the wire.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

/// A request to a hook.
pub trait Request: Serialize {
    const HOOK: &'static str;
    type Response: Response;
}

/// An answer of a hook.
pub trait Response: for<'de> Deserialize<'de> + Default {
    fn status(&self) -> &str;
    fn message(&self) -> &str;
    /// What a failed call is taken for under the failure policy `Ignore`.
    fn ignored() -> Self;
}

/// The objects of one machine, each reduced by [`crate::apply::for_hook`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineObjects {
    pub machine: Value,
    pub infrastructure_machine: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_config: Option<Value>,
}

/// The objects that machines of a MachineSet are made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineSetObjects {
    pub machine_set: Value,
    pub infrastructure_machine_template: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_config_template: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CanUpdateMachineRequest {
    pub current: MachineObjects,
    pub desired: MachineObjects,
}

impl Request for CanUpdateMachineRequest {
    const HOOK: &'static str = super::CAN_UPDATE_MACHINE;
    type Response = CanUpdateMachineResponse;
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CanUpdateMachineSetRequest {
    pub current: MachineSetObjects,
    pub desired: MachineSetObjects,
}

impl Request for CanUpdateMachineSetRequest {
    const HOOK: &'static str = super::CAN_UPDATE_MACHINE_SET;
    type Response = CanUpdateMachineSetResponse;
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpdateMachineRequest {
    pub desired: MachineObjects,
}

impl Request for UpdateMachineRequest {
    const HOOK: &'static str = super::UPDATE_MACHINE;
    type Response = UpdateMachineResponse;
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CanUpdateMachineResponse {
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "Patch::is_empty")]
    pub machine_patch: Patch,
    #[serde(skip_serializing_if = "Patch::is_empty")]
    pub infrastructure_machine_patch: Patch,
    #[serde(skip_serializing_if = "Patch::is_empty")]
    pub bootstrap_config_patch: Patch,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CanUpdateMachineSetResponse {
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "Patch::is_empty")]
    pub machine_set_patch: Patch,
    #[serde(skip_serializing_if = "Patch::is_empty")]
    pub infrastructure_machine_template_patch: Patch,
    #[serde(skip_serializing_if = "Patch::is_empty")]
    pub bootstrap_config_template_patch: Patch,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpdateMachineResponse {
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Not zero: the update goes on; ask again after at most this long.
    pub retry_after_seconds: i32,
}

macro_rules! response {
    ($($response:ident),*) => {$(
        impl Response for $response {
            fn status(&self) -> &str {
                &self.status
            }

            fn message(&self) -> &str {
                &self.message
            }

            fn ignored() -> Self {
                Self { status: SUCCESS.to_owned(), ..Self::default() }
            }
        }
    )*};
}

response!(
    CanUpdateMachineResponse,
    CanUpdateMachineSetResponse,
    UpdateMachineResponse
);

pub const SUCCESS: &str = "Success";
pub const FAILURE: &str = "Failure";

/// How an extension would change an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Patch {
    pub patch_type: String,
    /// The patch document; base64 on the wire.
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub patch: Vec<u8>,
}

pub const JSON_PATCH: &str = "JSONPatch";
pub const JSON_MERGE_PATCH: &str = "JSONMergePatch";

impl Patch {
    pub fn is_empty(&self) -> bool {
        self.patch_type.is_empty() && self.patch.is_empty()
    }

    pub fn json(operations: &json_patch::Patch) -> Self {
        Self {
            patch_type: JSON_PATCH.to_owned(),
            patch: serde_json::to_vec(operations).unwrap_or_default(),
        }
    }

    pub fn merge(document: &Value) -> Self {
        Self {
            patch_type: JSON_MERGE_PATCH.to_owned(),
            patch: document.to_string().into_bytes(),
        }
    }
}

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    STANDARD.decode(text).map_err(de::Error::custom)
}

/// The JSON that goes out: the request, what kind of request it is, and the extension's settings.
pub fn envelope<R: Request>(
    request: &R,
    settings: &BTreeMap<String, String>,
) -> Result<Value, serde_json::Error> {
    let mut body = serde_json::to_value(request)?;
    body["apiVersion"] = Value::from(format!("{}/{}", super::GROUP, super::VERSION));
    body["kind"] = Value::from(format!("{}Request", R::HOOK));
    if !settings.is_empty() {
        body["settings"] = serde_json::to_value(settings)?;
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_and_answers_have_the_wire_form() {
        let request = UpdateMachineRequest {
            desired: MachineObjects {
                machine: json!({"kind": "Machine"}),
                infrastructure_machine: json!({"kind": "EdgeMachine"}),
                bootstrap_config: None,
            },
        };
        let settings = [("policy".to_owned(), "external".to_owned())].into();
        assert_eq!(
            envelope(&request, &settings).unwrap(),
            json!({
                "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "kind": "UpdateMachineRequest",
                "settings": {"policy": "external"},
                "desired": {"machine": {"kind": "Machine"}, "infrastructureMachine": {"kind": "EdgeMachine"}},
            })
        );
        let response: CanUpdateMachineResponse = serde_json::from_value(json!({
            "status": "Success", "affectsAvailability": true,
            "machinePatch": {"patchType": "JSONPatch",
                "patch": "W3sib3AiOiJyZXBsYWNlIiwicGF0aCI6Ii9zcGVjL3ZlcnNpb24iLCJ2YWx1ZSI6InYxLjM0LjMrazNzMSJ9XQ=="},
        }))
        .unwrap();
        assert_eq!(
            response.machine_patch.patch,
            br#"[{"op":"replace","path":"/spec/version","value":"v1.34.3+k3s1"}]"#
        );
        assert!(response.bootstrap_config_patch.is_empty());
        assert!(serde_json::from_value::<Patch>(json!({"patchType": "JSONPatch", "patch": "!"})).is_err());
    }
}
