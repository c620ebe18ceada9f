//! What an object of Azure Service Operator says: whose it is, what the operator may do, how far it is. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{ResourceExt, api::DynamicObject};
use serde_json::Value;
use slipway_azure::takeover::{BEFORE_PAUSE, POLICY, RESOURCE_ID, SKIP};
use slipway_capi::owner;

/// What an operation in Azure that the operator follows is known by.
const POLLER: &str = "serviceoperator.azure.com/poller-resume-token";

/// What the operator says of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is in Azure as the object says.
    Ready,
    /// The operator is at work, or waits for something.
    Waiting { reason: String, message: String },
    /// Azure refused, or something is wrong; `terminal`: only a change helps.
    Failed {
        reason: String,
        message: String,
        terminal: bool,
    },
}

/// An object of the operator.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatedObject(pub DynamicObject);

impl OperatedObject {
    fn annotation(&self, name: &str) -> Option<&str> {
        self.0.annotations().get(name).map(String::as_str)
    }

    pub fn metadata(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    pub fn uid(&self) -> &str {
        self.0.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn is_controlled_by(&self, holder: &ObjectMeta) -> bool {
        owner::is_controlled_by(&self.0.metadata, holder)
    }

    /// Another object that controls it, as a user reads it.
    pub fn other_controller(&self, holder: &ObjectMeta) -> Option<String> {
        let controller = owner::controller_of(&self.0.metadata)?;
        let is_other = holder.uid.as_deref() != Some(controller.uid.as_str());
        is_other.then(|| {
            let namespace = self.0.metadata.namespace.as_deref().unwrap_or_default();
            format!("{} {namespace}/{}", controller.kind, controller.name)
        })
    }

    pub fn policy(&self) -> Option<&str> {
        self.annotation(POLICY)
    }

    /// Whether the operator leaves Azure alone.
    pub fn is_quiet(&self) -> bool {
        self.policy() == Some(SKIP)
    }

    /// Whether it was told so here, and what its policy was before.
    pub fn policy_before(&self) -> Option<&str> {
        self.annotation(BEFORE_PAUSE)
    }

    pub fn is_deleting(&self) -> bool {
        self.0.metadata.deletion_timestamp.is_some()
    }

    /// The resource that it stands for, in lower case, once the operator has noted it.
    pub fn id(&self) -> Option<String> {
        let status = || self.0.data.pointer("/status/id").and_then(Value::as_str);
        self.annotation(RESOURCE_ID)
            .or_else(status)
            .map(str::to_lowercase)
    }

    fn condition(&self) -> Option<&Value> {
        let conditions = self.0.data.pointer("/status/conditions")?.as_array()?;
        conditions.iter().find(|one| one["type"] == "Ready")
    }

    /// Whether the operator follows an operation in Azure.
    pub fn is_busy(&self) -> bool {
        let reason = self.condition().and_then(|ready| ready["reason"].as_str());
        self.annotation(POLLER).is_some_and(|token| !token.is_empty())
            || matches!(reason, Some("Reconciling" | "Deleting"))
    }

    /// What it says of the spec that it has now.
    pub fn told(&self) -> Told {
        let waiting = |reason: &str, message: &str| Told::Waiting {
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let Some(ready) = self.condition() else {
            return waiting(
                "Reconciling",
                "Azure Service Operator has not said anything of it yet",
            );
        };
        let observed = ready["observedGeneration"].as_i64().unwrap_or_default();
        if observed < self.0.metadata.generation.unwrap_or_default() {
            return waiting(
                "Reconciling",
                "Azure Service Operator has not seen what is asked for now",
            );
        }
        if ready["status"] == "True" {
            return Told::Ready;
        }
        let text = |name: &str| ready[name].as_str().filter(|text| !text.is_empty());
        let reason = text("reason").unwrap_or("Failed");
        let message = text("message").unwrap_or("Azure Service Operator works on it");
        match text("severity") {
            Some(severity @ ("Error" | "Warning")) => Told::Failed {
                reason: reason.to_owned(),
                message: message.to_owned(),
                terminal: severity == "Error",
            },
            _ => waiting(reason, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(annotations: &Value, ready: &Value) -> OperatedObject {
        let conditions = if ready.is_null() {
            json!([])
        } else {
            json!([ready])
        };
        OperatedObject(
            serde_json::from_value(json!({
                "apiVersion": "resources.azure.com/v1api20200601", "kind": "ResourceGroup",
                "metadata": {"name": "g", "namespace": "n", "generation": 2, "annotations": annotations,
                    "ownerReferences": [{"apiVersion": "a/v1", "kind": "K", "name": "k", "uid": "u", "controller": true}]},
                "status": {"conditions": conditions},
            }))
            .unwrap(),
        )
    }

    #[test]
    fn a_condition_counts_for_the_spec_that_it_was_made_from() {
        let ready = |status: &str, generation: i64, severity: &str| {
            json!({"type": "Ready", "status": status, "observedGeneration": generation, "severity": severity,
                "reason": "Why", "message": "because"})
        };
        let told = |ready: &Value| match object(&json!({}), ready).told() {
            Told::Ready => "ready".to_owned(),
            Told::Waiting { reason, .. } => format!("waiting {reason}"),
            Told::Failed { reason, terminal, .. } => format!("failed {reason} {terminal}"),
        };
        for (condition, expected) in [
            (json!(null), "waiting Reconciling"),
            (ready("True", 2, ""), "ready"),
            (ready("True", 1, ""), "waiting Reconciling"),
            (ready("False", 2, "Info"), "waiting Why"),
            (ready("False", 2, "Warning"), "failed Why false"),
            (ready("False", 2, "Error"), "failed Why true"),
        ] {
            assert_eq!(told(&condition), expected, "{condition}");
        }
    }

    #[test]
    fn it_says_whose_it_is_and_what_the_operator_may_do() {
        let ours = ObjectMeta {
            uid: Some("u".to_owned()),
            ..ObjectMeta::default()
        };
        let plain = object(&json!({}), &json!(null));
        assert!(plain.is_controlled_by(&ours) && plain.other_controller(&ours).is_none());
        assert_eq!(
            plain.other_controller(&ObjectMeta::default()).as_deref(),
            Some("K n/k")
        );
        assert!(!plain.is_quiet() && !plain.is_busy());
        let by_hand = object(&json!({(POLICY): "skip"}), &json!(null));
        assert!(by_hand.is_quiet() && by_hand.policy_before().is_none());
        let paused = object(&json!({(POLICY): "skip", (BEFORE_PAUSE): ""}), &json!(null));
        assert!(paused.is_quiet());
        assert_eq!(paused.policy_before(), Some(""));
        assert!(object(&json!({(POLLER): "x"}), &json!(null)).is_busy());
        let working =
            json!({"type": "Ready", "status": "False", "reason": "Reconciling", "observedGeneration": 2});
        assert!(object(&json!({}), &working).is_busy());
        assert_eq!(
            object(&json!({(RESOURCE_ID): "/Subscriptions/S"}), &json!(null))
                .id()
                .as_deref(),
            Some("/subscriptions/s")
        );
    }
}
