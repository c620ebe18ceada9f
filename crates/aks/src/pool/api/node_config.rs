//! The kubelet and the operating system of a pool's nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::Sysctls;

/// The kubelet's settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletConfig {
    /// Unsafe sysctls that pods may set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Log files kept per container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 2))]
    pub container_log_max_files: Option<i64>,
    /// Size at which a log file is rotated.
    #[serde(
        rename = "containerLogMaxSizeMB",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub container_log_max_size_mb: Option<i64>,
    /// Whether CPU limits are enforced by quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_cfs_quota: Option<bool>,
    /// The quota's period, as `100ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_cfs_quota_period: Option<String>,
    /// How CPUs are given to pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["none", "static"]))]
    pub cpu_manager_policy: Option<String>,
    /// Whether the kubelet refuses to run with swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_swap_on: Option<bool>,
    /// Disk use in percent above which images are removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0, "maximum" = 100))]
    pub image_gc_high_threshold: Option<i64>,
    /// Disk use in percent below which they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0, "maximum" = 100))]
    pub image_gc_low_threshold: Option<i64>,
    /// Processes per pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = -1))]
    pub pod_max_pids: Option<i64>,
    /// How hardware locality is honoured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["none", "best-effort", "restricted", "single-numa-node"]))]
    pub topology_manager_policy: Option<String>,
}

/// Settings of Linux nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LinuxOsConfig {
    /// Size of the swap file.
    #[serde(rename = "swapFileSizeMB", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub swap_file_size_mb: Option<i64>,
    /// Kernel settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysctls: Option<Sysctls>,
    /// When the kernel compacts memory for huge pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["always", "defer", "defer+madvise", "madvise", "never"]))]
    pub transparent_huge_page_defrag: Option<String>,
    /// When huge pages are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["always", "madvise", "never"]))]
    pub transparent_huge_page_enabled: Option<String>,
}
