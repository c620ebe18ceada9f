//! The environment variables that Karpenter is set by: which count here, and what stands for the others. Whoever brings a
//! Deployment of Karpenter's along is told of each that is set and does not count.

/// What a variable of Karpenter's is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// It counts, unless the flag of this name is given.
    As(&'static str),
    /// It counts, unless the manager's flag of this name is given.
    AsManagers(&'static str),
    /// The manager has a flag for it.
    ByFlag(&'static str),
    /// Nothing here is set by it, and why.
    Not(&'static str),
    /// Nothing is set by it, and nobody misses it.
    NotNeeded(&'static str),
}

/// Every variable that Karpenter v1.15.0 reads, in its order.
pub const KARPENTER: &[(&str, Counts)] = &[
    (
        "KARPENTER_SERVICE",
        Counts::NotNeeded("it named the Service of a webhook that is gone; the chart sets it"),
    ),
    ("METRICS_PORT", Counts::ByFlag("--diagnostics-address")),
    ("HEALTH_PROBE_PORT", Counts::ByFlag("--health-addr")),
    ("KUBE_CLIENT_QPS", Counts::ByFlag("--kube-api-qps")),
    ("KUBE_CLIENT_BURST", Counts::ByFlag("--kube-api-burst")),
    ("ENABLE_PROFILING", Counts::Not("there is no profile to serve")),
    (
        "DISABLE_CONTROLLER_WARMUP",
        Counts::NotNeeded("whoever does not lead watches nothing"),
    ),
    ("DISABLE_LEADER_ELECTION", Counts::ByFlag("--leader-elect")),
    (
        "DISABLE_CLUSTER_STATE_OBSERVABILITY",
        Counts::Not("the metrics of the cluster's state are always kept"),
    ),
    (
        "LEADER_ELECTION_NAME",
        Counts::Not("the lease has Karpenter's usual name, by which other autoscalers are found"),
    ),
    (
        "LEADER_ELECTION_NAMESPACE",
        Counts::ByFlag("--leader-election-namespace"),
    ),
    (
        "MEMORY_LIMIT",
        Counts::NotNeeded("there is no garbage collector to tell"),
    ),
    (
        "CPU_REQUESTS",
        Counts::NotNeeded("as many threads run as there are processors"),
    ),
    ("LOG_LEVEL", Counts::ByFlag("-v")),
    ("LOG_OUTPUT_PATHS", Counts::Not("logs go to standard error")),
    ("LOG_ERROR_OUTPUT_PATHS", Counts::Not("logs go to standard error")),
    ("BATCH_MAX_DURATION", Counts::As("batch-max-duration")),
    ("BATCH_IDLE_DURATION", Counts::As("batch-idle-duration")),
    ("PREFERENCE_POLICY", Counts::As("preference-policy")),
    ("MIN_VALUES_POLICY", Counts::As("min-values-policy")),
    (
        "IGNORE_DRA_REQUESTS",
        Counts::Not("pods that need dynamic resources are always refused, with the reason"),
    ),
    (
        "LEGACY_NODE_REPAIR",
        Counts::Not("there is one way to repair nodes, by the gate NodeRepair"),
    ),
    ("FEATURE_GATES", Counts::AsManagers("feature-gates")),
    (
        "SCHEDULER_CONFIG",
        Counts::Not("pods that bring no spread constraint are planned for without one"),
    ),
];

/// What to say of the variables that are set and do not count.
pub fn warnings(is_set: impl Fn(&str) -> bool) -> Vec<String> {
    KARPENTER
        .iter()
        .filter(|(name, _)| is_set(name))
        .filter_map(|(name, counts)| match counts {
            Counts::As(_) | Counts::AsManagers(_) | Counts::NotNeeded(_) => None,
            Counts::ByFlag(flag) => Some(format!("{name} does not count here: give {flag} instead")),
            Counts::Not(why) => Some(format!("{name} does not count here: {why}")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_set_and_does_not_count_is_told() {
        assert_eq!(warnings(|_| false), [""; 0]);
        let set = [
            "BATCH_MAX_DURATION",
            "KARPENTER_SERVICE",
            "LOG_LEVEL",
            "SCHEDULER_CONFIG",
        ];
        let told = warnings(|name| set.contains(&name));
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0], "LOG_LEVEL does not count here: give -v instead");
        assert!(
            told[1].starts_with("SCHEDULER_CONFIG does not count here: pods"),
            "{told:?}"
        );
    }
}
