//! The settings of the cluster autoscaler that AKS runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The cluster autoscaler's settings; AKS takes them all as text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerProfile {
    /// Keeps pools of the same kind at the same size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["true", "false"], "default" = "false"))]
    pub balance_similar_node_groups: Option<String>,
    /// How a pool is chosen to grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["least-waste", "most-pods", "priority", "random"], "default" = "random"))]
    pub expander: Option<String>,
    /// How many empty nodes may go at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "10"))]
    pub max_empty_bulk_delete: Option<String>,
    /// Seconds that pods get to end before their node goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "600", "pattern" = r"^(\d+)$"))]
    pub max_graceful_termination_sec: Option<String>,
    /// Minutes to wait for a node, as `15m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "15m", "pattern" = r"^(\d+)m$"))]
    pub max_node_provision_time: Option<String>,
    /// Percentage of unready nodes beyond which nothing is scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "45", "minLength" = 1, "maxLength" = 3, "pattern" = r"^(\d+)$"))]
    pub max_total_unready_percentage: Option<String>,
    /// How old an unscheduled pod must be to count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "0s"))]
    pub new_pod_scale_up_delay: Option<String>,
    /// Unready nodes that are tolerated whatever the percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "3", "pattern" = r"^(\d+)$"))]
    pub ok_total_unready_count: Option<String>,
    /// Minutes without removal after a node came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "10m", "pattern" = r"^(\d+)m$"))]
    pub scale_down_delay_after_add: Option<String>,
    /// Seconds without removal after a node went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "10s", "pattern" = r"^(\d+)s$"))]
    pub scale_down_delay_after_delete: Option<String>,
    /// Minutes without removal after one failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "3m", "pattern" = r"^(\d+)m$"))]
    pub scale_down_delay_after_failure: Option<String>,
    /// Minutes a node must be unneeded before it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "10m", "pattern" = r"^(\d+)m$"))]
    pub scale_down_unneeded_time: Option<String>,
    /// Minutes an unready node must be unneeded before it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "20m", "pattern" = r"^(\d+)m$"))]
    pub scale_down_unready_time: Option<String>,
    /// Use, from 0 to 1, below which a node counts as unneeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "0.5"))]
    pub scale_down_utilization_threshold: Option<String>,
    /// Seconds between two looks at the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "10s", "pattern" = r"^(\d+)s$"))]
    pub scan_interval: Option<String>,
    /// Keeps nodes whose pods have local storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["true", "false"], "default" = "false"))]
    pub skip_nodes_with_local_storage: Option<String>,
    /// Keeps nodes with pods of kube-system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["true", "false"], "default" = "true"))]
    pub skip_nodes_with_system_pods: Option<String>,
}
