//! Whether a machine still is what the spec asks for. Absent, null, empty and defaulted mean the same, so that neither
//! an upgrade of the provider nor another client's way of writing replaces a machine.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::observed::Outdated;
use crate::{api::KThreesConfigSpec, bootstrap::admit::default_config_spec};

/// What a machine was made from.
#[derive(Clone, Debug, Default)]
pub struct Made<'machine> {
    pub created_at: Timestamp,
    pub version: Option<&'machine str>,
    /// `None` where the config cannot be read: that alone is no reason to replace a machine.
    pub config: Option<&'machine KThreesConfigSpec>,
    /// Name, and kind with group, of the template its host was cloned from.
    pub cloned_from: Option<(&'machine str, &'machine str)>,
    pub certificates_expire_at: Option<Timestamp>,
}

/// What the spec asks for.
#[derive(Clone, Debug)]
pub struct Desired<'spec> {
    pub version: &'spec str,
    pub config: &'spec KThreesConfigSpec,
    pub template: (&'spec str, &'spec str),
    pub rollout_after: Option<Timestamp>,
    pub certificates_expiry_days: Option<i32>,
}

pub fn differences(made: &Made<'_>, desired: &Desired<'_>, now: Timestamp) -> Vec<Outdated> {
    let mut found = Vec::new();
    if made.version != Some(desired.version) {
        found.push(Outdated::Version {
            has: made.version.unwrap_or("(none)").to_owned(),
            wants: desired.version.to_owned(),
        });
    }
    if let Some(config) = made.config {
        let fields = differing_fields(&normal(config), &normal(desired.config));
        if !fields.is_empty() {
            found.push(Outdated::Config { fields });
        }
    }
    if let Some(cloned_from) = made.cloned_from
        && cloned_from != desired.template
    {
        found.push(Outdated::InfrastructureTemplate {
            has: cloned_from.0.to_owned(),
            wants: desired.template.0.to_owned(),
        });
    }
    if desired
        .rollout_after
        .is_some_and(|after| after <= now && made.created_at < after)
    {
        found.push(Outdated::RolloutAfter);
    }
    if let (Some(days), Some(at)) = (desired.certificates_expiry_days, made.certificates_expire_at)
        && at
            .checked_sub(SignedDuration::from_hours(24 * i64::from(days)))
            .is_ok_and(|from| from <= now)
    {
        found.push(Outdated::CertificatesExpire { at });
    }
    found
}

/// A config with its defaults written down and everything that means nothing left out. The version is compared on the
/// Machine.
fn normal(spec: &KThreesConfigSpec) -> Value {
    let mut spec = spec.clone();
    default_config_spec(&mut spec);
    spec.version = None;
    let mut value = serde_json::to_value(&spec).unwrap_or(Value::Null);
    if let Some(server) = value.get_mut("serverConfig").and_then(Value::as_object_mut) {
        server.remove("disableExternalCloudProvider");
        if server.get("agentToken").and_then(Value::as_str) == Some("Shared") {
            server.remove("agentToken");
        }
    }
    if let Some(agent) = value.get_mut("agentConfig").and_then(Value::as_object_mut)
        && agent.get("airGapped") == Some(&Value::Bool(false))
    {
        agent.remove("airGapped");
    }
    prune(&mut value);
    value
}

/// Whether nothing is left of the value.
fn prune(value: &mut Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => {
            for item in items.iter_mut() {
                prune(item);
            }
            items.is_empty()
        }
        Value::Object(map) => {
            map.retain(|_, value| !prune(value));
            map.is_empty()
        }
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Paths at which two values differ, as a user writes them.
fn differing_fields(left: &Value, right: &Value) -> Vec<String> {
    fn walk(left: &Value, right: &Value, path: &str, found: &mut Vec<String>) {
        if left == right {
            return;
        }
        if let (Value::Object(left), Value::Object(right)) = (left, right) {
            let keys: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let child = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                walk(
                    left.get(key).unwrap_or(&Value::Null),
                    right.get(key).unwrap_or(&Value::Null),
                    &child,
                    found,
                );
            }
            return;
        }
        found.push(if path.is_empty() {
            "spec".into()
        } else {
            path.to_owned()
        });
    }
    let mut found = Vec::new();
    walk(left, right, "", &mut found);
    found
}
