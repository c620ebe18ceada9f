//! NodeOverlay: what machines cost or have beyond what is said of them, for planning.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slipway_packing::{model::ResourceList, requirement::RequirementSpec};

use super::schema;

/// A price, or resources, of the machines that meet its requirements.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "karpenter.sh",
    version = "v1alpha1",
    kind = "NodeOverlay",
    category = "karpenter",
    shortname = "overlays",
    status = "NodeOverlayStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".spec.weight", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend(
    "x-kubernetes-validations" = schema::overlay_rules(),
    "required" = ["requirements"]
))]
pub struct NodeOverlaySpec {
    /// Which machines it is for, by the labels of their nodes: those that everybody knows, `karpenter.sh/nodepool`, and labels of
    /// the NodePool's template. None is every machine.
    #[serde(default)]
    #[schemars(schema_with = "schema::overlay_requirements")]
    pub requirements: Vec<RequirementSpec>,
    /// How much the price changes: by an amount per hour (`-0.5`, `+1.2`) or by a share of it (`+10%`, `-15%`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "pattern" = r"^(([+-]{1}(\d*\.?\d+))|(\+{1}\d*\.?\d+%)|(^(-\d{1,2}(\.\d+)?%)$)|(-100%))$"
    ))]
    pub price_adjustment: Option<String>,
    /// The price per hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = r"^\d+(\.\d+)?$"))]
    pub price: Option<String>,
    /// What the machines have besides, e.g. devices. What everybody knows of machines (cpu, memory, ephemeral-storage, pods) cannot be
    /// changed.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::overlay_capacity")]
    pub capacity: ResourceList,
    /// Of several that say something about a machine, the one with the highest weight counts. Zero if absent; two of one weight may
    /// not say the same thing about one machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "maximum" = 10000))]
    pub weight: Option<i32>,
}

/// Whether it is applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeOverlayStatus {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
