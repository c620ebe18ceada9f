//! Schemas that are written rather than derived, because a manifest must be accepted or refused exactly as Karpenter's
//! definitions do it.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";
const QUALIFIED_NAME: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$";
const LABEL_VALUE: &str = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
const CONDITION_TYPE: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";

/// Amounts by resource name.
pub fn resources(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY,
            "x-kubernetes-int-or-string": true,
        },
    })
}

fn rule(rule: &str, message: &str) -> Value {
    json!({"message": message, "rule": rule})
}

/// Labels that nobody may ask for, because Karpenter sets them or a node is alone in having them.
fn restricted(is_pool: bool, quantified: bool) -> Vec<Value> {
    let say = |one: &str| {
        if quantified {
            format!("self.all(x, {})", one.replace("self", "x"))
        } else {
            one.to_owned()
        }
    };
    let mut rules = vec![rule(
        &say(
            r#"self in ["karpenter.sh/capacity-type", "karpenter.sh/nodepool"] || !self.find("^([^/]+)").endsWith("karpenter.sh")"#,
        ),
        r#"label domain "karpenter.sh" is restricted"#,
    )];
    let labels: &[&str] = if is_pool {
        &["karpenter.sh/nodepool", "kubernetes.io/hostname"]
    } else {
        &["kubernetes.io/hostname"]
    };
    rules.extend(labels.iter().map(|label| {
        rule(
            &say(&format!(r#"self != "{label}""#)),
            &format!(r#"label "{label}" is restricted"#),
        )
    }));
    rules
}

/// What a NodePool may ask of its nodes.
pub fn pool_requirements(_: &mut SchemaGenerator) -> Schema {
    requirements(true)
}

/// What a NodeClaim asks of its node; it names its NodePool.
pub fn claim_requirements(_: &mut SchemaGenerator) -> Schema {
    requirements(false)
}

fn requirements(is_pool: bool) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 100,
        "x-kubernetes-list-type": "atomic",
        "x-kubernetes-validations": [
            rule(
                "self.all(x, x.operator == 'In' ? x.values.size() != 0 : true)",
                "requirements with operator 'In' must have a value defined",
            ),
            rule(
                "self.all(x, (x.operator == 'Gt' || x.operator == 'Lt' || x.operator == 'Gte' || x.operator == 'Lte') ? (x.values.size() == 1 && int(x.values[0]) >= 0) : true)",
                "requirements operator 'Gt', 'Lt', 'Gte', or 'Lte' must have a single positive integer value",
            ),
            rule(
                "self.all(x, (x.operator == 'In' && has(x.minValues)) ? x.values.size() >= x.minValues : true)",
                "requirements with 'minValues' must have at least that many values specified in the 'values' field",
            ),
        ],
        "items": {
            "type": "object",
            "required": ["key", "operator"],
            "properties": {
                "key": {
                    "description": "The label.",
                    "type": "string",
                    "maxLength": 316,
                    "pattern": QUALIFIED_NAME,
                    "x-kubernetes-validations": restricted(is_pool, false),
                },
                "operator": {
                    "description": "How the label's value and the values are related.",
                    "type": "string",
                    "enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"],
                },
                "values": {
                    "description": "None for Exists and DoesNotExist, one number for Gt, Lt, Gte and Lte, else one or more.",
                    "type": "array",
                    "maxLength": 63,
                    "pattern": LABEL_VALUE,
                    "x-kubernetes-list-type": "atomic",
                    "items": {"type": "string"},
                },
                "minValues": {
                    "description": "How many different values the node's instance types must leave open.",
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 50,
                },
            },
        },
    })
}

/// Taints as a node carries them.
pub fn taints(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["effect", "key"],
            "properties": {
                "effect": {"type": "string", "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
                "key": {"type": "string", "minLength": 1, "pattern": QUALIFIED_NAME},
                "timeAdded": {"type": "string", "format": "date-time"},
                "value": {"type": "string", "pattern": QUALIFIED_NAME},
            },
        },
    })
}

/// What a budget can be for.
pub fn reasons(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 50,
        "x-kubernetes-list-type": "set",
        "items": {"type": "string", "enum": ["Underutilized", "Empty", "Drifted", "Unhealthy"]},
    })
}

/// Labels an object must carry, each `key=value` or `key`.
pub fn label_filters(_: &mut SchemaGenerator) -> Schema {
    let pattern = format!(
        "{}(=(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?)?$",
        QUALIFIED_NAME.trim_end_matches('$')
    );
    json_schema!({
        "type": "array",
        "maxItems": 50,
        "x-kubernetes-list-type": "set",
        "items": {"type": "string", "maxLength": 380, "pattern": pattern},
    })
}

/// Labels of a NodePool's nodes.
pub fn template_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 100,
        "x-kubernetes-map-type": "atomic",
        "x-kubernetes-validations": restricted(true, true),
        "additionalProperties": {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
    })
}

pub fn template_annotations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "granular",
        "additionalProperties": {"type": "string"},
    })
}

/// A reference that names all of a NodeClass, and in a NodePool keeps its kind.
pub fn pool_class_reference(_: &mut SchemaGenerator) -> Schema {
    let immutable = ["group", "kind"].map(|part| {
        rule(
            &format!("self.{part} == oldSelf.{part}"),
            &format!("nodeClassRef.{part} is immutable"),
        )
    });
    let mut schema = class_reference_value();
    schema["x-kubernetes-validations"] = json!(immutable);
    schema.try_into().expect("an object is a schema")
}

pub fn claim_class_reference(_: &mut SchemaGenerator) -> Schema {
    class_reference_value().try_into().expect("an object is a schema")
}

fn class_reference_value() -> Value {
    let part = |name: &str| {
        json!({
            "type": "string",
            "x-kubernetes-validations": [rule("self != ''", &format!("{name} may not be empty"))],
        })
    };
    let mut schema = json!({
        "type": "object",
        "required": ["group", "kind", "name"],
        "properties": {"group": part("group"), "kind": part("kind"), "name": part("name")},
    });
    schema["properties"]["group"]["pattern"] = json!("^[^/]*$");
    schema
}

/// Conditions of a NodePool or NodeClass: every part is needed.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    conditions_of(
        json!({
            "type": "string",
            "minLength": 1,
            "maxLength": 1024,
            "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        }),
        &["lastTransitionTime", "message", "reason", "status", "type"],
    )
}

/// Conditions of a NodeClaim, which may be without a reason.
pub fn claim_conditions(_: &mut SchemaGenerator) -> Schema {
    conditions_of(
        json!({
            "type": "string",
            "maxLength": 1024,
            "pattern": "^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?|)$",
        }),
        &["lastTransitionTime", "status", "type"],
    )
}

#[allow(clippy::needless_pass_by_value, reason = "the value becomes part of another")]
fn conditions_of(reason: Value, required: &[&str]) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": required,
            "properties": {
                "type": {"type": "string", "maxLength": 316, "pattern": CONDITION_TYPE},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "reason": reason,
                "message": {"type": "string", "maxLength": 32768},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
            },
        },
    })
}

/// A NodePool is static or dynamic for life, and a static one leaves out what it would ignore.
pub fn pool_rules() -> Value {
    json!([
        rule(
            "has(self.replicas) == has(oldSelf.replicas)",
            "Cannot transition NodePool between static (replicas set) and dynamic (replicas unset) provisioning modes",
        ),
        rule(
            "!has(self.replicas) || (!has(self.limits) || size(self.limits) == 0 || (size(self.limits) == 1 && 'nodes' in self.limits))",
            "only 'limits.nodes' is supported on static NodePools",
        ),
        rule(
            "!has(self.replicas) || !has(self.weight)",
            "'weight' is not supported on static NodePools",
        ),
    ])
}

/// A budget with hours of its own needs both of their parts.
pub fn budget_rules() -> Value {
    json!([rule(
        "self.all(x, has(x.schedule) == has(x.duration))",
        "'schedule' must be set with 'duration'",
    )])
}

/// What a NodeClaim asks for never changes.
pub fn claim_rules() -> Value {
    json!([rule("self == oldSelf", "spec is immutable")])
}

/// Machines are made from a template only where there is one to boot them with.
pub fn class_rules() -> Value {
    json!([
        rule(
            "!has(self.scalableResource) || !self.scalableResource.kind.endsWith('Template') || has(self.machineTemplate)",
            "machineTemplate is needed where scalableResource is a machine template: it says with what a Machine boots",
        ),
        rule(
            "!has(self.scalableResource) || !self.scalableResource.kind.endsWith('Template') || has(self.clusterName)",
            "clusterName is needed where scalableResource is a machine template: a template belongs to no Cluster",
        ),
    ])
}
