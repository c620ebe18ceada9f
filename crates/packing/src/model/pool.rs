//! NodePools (`karpenter.sh/v1`).

use serde::{Deserialize, Serialize};

use super::{Condition, ObjectMeta, Options, PackingPolicy, ResourceList, StringMap, Taint};
use crate::labels;
use crate::requirement::RequirementSpec;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePool {
    pub metadata: ObjectMeta,
    pub spec: NodePoolSpec,
    pub status: NodePoolStatus,
}

impl NodePool {
    /// What decides which nodes are created: what the pool's annotation says, or else the option.
    pub fn packing(&self, options: &Options) -> PackingPolicy {
        let own = self.metadata.annotations.get(labels::PACKING);
        own.and_then(|own| PackingPolicy::named(own))
            .unwrap_or(options.packing)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePoolStatus {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePoolSpec {
    pub template: NodePoolTemplate,
    pub disruption: Disruption,
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub limits: ResourceList,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// Set on static pools, which are not scheduled to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePoolTemplate {
    pub metadata: TemplateMeta,
    pub spec: NodePoolTemplateSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateMeta {
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    pub labels: StringMap,
    #[serde(skip_serializing_if = "StringMap::is_empty")]
    pub annotations: StringMap,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePoolTemplateSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<RequirementSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_class_ref: Option<NodeClassRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeClassRef {
    pub group: String,
    pub kind: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Disruption {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consolidate_after: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub consolidation_policy: String,
    /// Absent means one budget of ten per cent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budgets: Option<Vec<Budget>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Budget {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<String>>,
    pub nodes: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
}
