//! What is to be done with nodes that are not well.

use serde::{Deserialize, Serialize};

/// What one condition of a node, as Karpenter's providers describe it, calls for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RepairPolicy {
    pub condition_type: String,
    pub condition_status: String,
    /// Matched against the condition's reason. One policy of the set has none: it is for every condition that the set
    /// names whose reason matches no other policy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason_regex: String,
    /// How long the condition may last before anything is done; none is no time at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_duration: Option<String>,
    /// How long pods get at most, whatever the claim says; `0s` does not wait for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<String>,
    /// From 0 to 100; the higher the sooner.
    pub priority: i32,
    pub action: RepairAction,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RepairAction {
    /// The node stays and is started again.
    Reboot,
    #[default]
    Replace,
}
