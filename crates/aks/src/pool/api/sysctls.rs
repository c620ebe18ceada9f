//! Kernel settings of a pool's nodes, within what AKS accepts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kernel settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sysctls {
    /// `fs.aio-max-nr`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 65_536, "maximum" = 6_553_500))]
    pub fs_aio_max_nr: Option<i64>,
    /// `fs.file-max`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 8192, "maximum" = 12_000_500))]
    pub fs_file_max: Option<i64>,
    /// `fs.inotify.max_user_watches`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 781_250, "maximum" = 2_097_152))]
    pub fs_inotify_max_user_watches: Option<i64>,
    /// `fs.nr_open`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 8192, "maximum" = 20_000_500))]
    pub fs_nr_open: Option<i64>,
    /// `kernel.threads-max`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 20, "maximum" = 513_785))]
    pub kernel_threads_max: Option<i64>,
    /// `net.core.netdev_max_backlog`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1000, "maximum" = 3_240_000))]
    pub net_core_netdev_max_backlog: Option<i64>,
    /// `net.core.optmem_max`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 20_480, "maximum" = 4_194_304))]
    pub net_core_optmem_max: Option<i64>,
    /// `net.core.rmem_default`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 212_992, "maximum" = 134_217_728))]
    pub net_core_rmem_default: Option<i64>,
    /// `net.core.rmem_max`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 212_992, "maximum" = 134_217_728))]
    pub net_core_rmem_max: Option<i64>,
    /// `net.core.somaxconn`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 4096, "maximum" = 3_240_000))]
    pub net_core_somaxconn: Option<i64>,
    /// `net.core.wmem_default`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 212_992, "maximum" = 134_217_728))]
    pub net_core_wmem_default: Option<i64>,
    /// `net.core.wmem_max`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 212_992, "maximum" = 134_217_728))]
    pub net_core_wmem_max: Option<i64>,
    /// `net.ipv4.ip_local_port_range`
    #[serde(
        rename = "netIpv4IPLocalPortRange",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub net_ipv4_ip_local_port_range: Option<String>,
    /// `net.ipv4.neigh.default.gc_thresh1`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 128, "maximum" = 80_000))]
    pub net_ipv4_neigh_default_gc_thresh1: Option<i64>,
    /// `net.ipv4.neigh.default.gc_thresh2`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 512, "maximum" = 90_000))]
    pub net_ipv4_neigh_default_gc_thresh2: Option<i64>,
    /// `net.ipv4.neigh.default.gc_thresh3`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1024, "maximum" = 100_000))]
    pub net_ipv4_neigh_default_gc_thresh3: Option<i64>,
    /// `net.ipv4.tcp_fin_timeout`
    #[serde(
        rename = "netIpv4TCPFinTimeout",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("minimum" = 5, "maximum" = 120))]
    pub net_ipv4_tcp_fin_timeout: Option<i64>,
    /// `net.ipv4.tcp_keepalive_probes`
    #[serde(
        rename = "netIpv4TCPKeepaliveProbes",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("minimum" = 1, "maximum" = 15))]
    pub net_ipv4_tcp_keepalive_probes: Option<i64>,
    /// `net.ipv4.tcp_keepalive_time`
    #[serde(
        rename = "netIpv4TCPKeepaliveTime",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("minimum" = 30, "maximum" = 432_000))]
    pub net_ipv4_tcp_keepalive_time: Option<i64>,
    /// `net.ipv4.tcp_max_syn_backlog`
    #[serde(
        rename = "netIpv4TCPMaxSynBacklog",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("minimum" = 128, "maximum" = 3_240_000))]
    pub net_ipv4_tcp_max_syn_backlog: Option<i64>,
    /// `net.ipv4.tcp_max_tw_buckets`
    #[serde(
        rename = "netIpv4TCPMaxTwBuckets",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("minimum" = 8000, "maximum" = 1_440_000))]
    pub net_ipv4_tcp_max_tw_buckets: Option<i64>,
    /// `net.ipv4.tcp_tw_reuse`
    #[serde(
        rename = "netIpv4TCPTwReuse",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub net_ipv4_tcp_tw_reuse: Option<bool>,
    /// `net.ipv4.tcp_keepalive_intvl`
    #[serde(
        rename = "netIpv4TCPkeepaliveIntvl",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(extend("minimum" = 1, "maximum" = 75))]
    pub net_ipv4_tc_pkeepalive_intvl: Option<i64>,
    /// `net.netfilter.nf_conntrack_buckets`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 65_536, "maximum" = 147_456))]
    pub net_netfilter_nf_conntrack_buckets: Option<i64>,
    /// `net.netfilter.nf_conntrack_max`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 131_072, "maximum" = 1_048_576))]
    pub net_netfilter_nf_conntrack_max: Option<i64>,
    /// `vm.max_map_count`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 65_530, "maximum" = 262_144))]
    pub vm_max_map_count: Option<i64>,
    /// `vm.swappiness`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0, "maximum" = 100))]
    pub vm_swappiness: Option<i64>,
    /// `vm.vfs_cache_pressure`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "maximum" = 500))]
    pub vm_vfs_cache_pressure: Option<i64>,
}
