//! The labels, annotations, finalizers and other names that Cluster API gives a meaning to.

/// The group of Cluster, Machine and their kin.
pub const GROUP: &str = "cluster.x-k8s.io";
/// The version the views read.
pub const VERSION: &str = "v1beta2";
/// A kind's template is named with this suffix.
pub const TEMPLATE_SUFFIX: &str = "Template";

pub mod label {
    pub const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";
    pub const WATCH_FILTER: &str = "cluster.x-k8s.io/watch-filter";
    /// On Machines of a control plane; the value does not matter.
    pub const CONTROL_PLANE: &str = "cluster.x-k8s.io/control-plane";
    pub const CONTROL_PLANE_NAME: &str = "cluster.x-k8s.io/control-plane-name";
    pub const MACHINE_SET_NAME: &str = "cluster.x-k8s.io/set-name";
    pub const MACHINE_DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";
    pub const MACHINE_POOL_NAME: &str = "cluster.x-k8s.io/pool-name";
    pub const MACHINE_TEMPLATE_HASH: &str = "machine-template-hash";
    pub const INTERRUPTIBLE: &str = "cluster.x-k8s.io/interruptible";
    pub const PROVIDER: &str = "cluster.x-k8s.io/provider";
    pub const TOPOLOGY_OWNED: &str = "topology.cluster.x-k8s.io/owned";
    pub const MOVE: &str = "clusterctl.cluster.x-k8s.io/move";
    /// A CustomResourceDefinition's versions that fulfil a contract are listed under `<prefix><contract>`.
    pub const CONTRACT_PREFIX: &str = "cluster.x-k8s.io/";
}

pub mod annotation {
    pub const PAUSED: &str = "cluster.x-k8s.io/paused";
    pub const MANAGED_BY: &str = "cluster.x-k8s.io/managed-by";
    pub const REPLICAS_MANAGED_BY: &str = "cluster.x-k8s.io/replicas-managed-by";
    pub const CLONED_FROM_NAME: &str = "cluster.x-k8s.io/cloned-from-name";
    pub const CLONED_FROM_GROUP_KIND: &str = "cluster.x-k8s.io/cloned-from-groupkind";
    pub const DELETE_MACHINE: &str = "cluster.x-k8s.io/delete-machine";
    pub const REMEDIATE_MACHINE: &str = "cluster.x-k8s.io/remediate-machine";
    pub const CERTIFICATES_EXPIRY: &str = "machine.cluster.x-k8s.io/certificates-expiry";
    pub const EXCLUDE_NODE_DRAINING: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
    pub const EXCLUDE_WAIT_FOR_VOLUME_DETACH: &str =
        "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";
    /// An annotation with this prefix holds a Machine before its infrastructure is deleted.
    pub const PRE_TERMINATE_HOOK_PREFIX: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io";
    pub const TOPOLOGY_DRY_RUN: &str = "topology.cluster.x-k8s.io/dry-run";
    pub const BLOCK_MOVE: &str = "clusterctl.cluster.x-k8s.io/block-move";
    pub const DELETE_FOR_MOVE: &str = "clusterctl.cluster.x-k8s.io/delete-for-move";
    /// A comma-separated list of the hooks that are to be called for the object.
    pub const PENDING_HOOKS: &str = "runtime.cluster.x-k8s.io/pending-hooks";
    /// These are Cluster API's internals for updates in place. What counts is that the key is there; later
    /// versions store data in the values.
    pub const UPDATE_IN_PROGRESS: &str = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress";
}

pub mod finalizer {
    pub const CLUSTER: &str = "cluster.cluster.x-k8s.io";
    pub const MACHINE: &str = "machine.cluster.x-k8s.io";
}

pub mod taint {
    /// Removed by Cluster API once a node has the labels of its Machine.
    pub const NODE_UNINITIALIZED: &str = "node.cluster.x-k8s.io/uninitialized";
}

/// Condition types and reasons that have the same meaning on every kind.
pub mod condition {
    pub const AVAILABLE: &str = "Available";
    pub const READY: &str = "Ready";
    pub const MACHINES_READY: &str = "MachinesReady";
    pub const MACHINES_UP_TO_DATE: &str = "MachinesUpToDate";
    pub const ROLLING_OUT: &str = "RollingOut";
    pub const SCALING_UP: &str = "ScalingUp";
    pub const SCALING_DOWN: &str = "ScalingDown";
    pub const REMEDIATING: &str = "Remediating";
    pub const DELETING: &str = "Deleting";
    pub const PAUSED: &str = "Paused";
    pub const UP_TO_DATE: &str = "UpToDate";
    pub const UPDATING: &str = "Updating";
    pub const HEALTH_CHECK_SUCCEEDED: &str = "HealthCheckSucceeded";
    pub const OWNER_REMEDIATED: &str = "OwnerRemediated";
    pub const DISCOVERED: &str = "Discovered";
}

pub mod reason {
    pub const AVAILABLE: &str = "Available";
    pub const NOT_AVAILABLE: &str = "NotAvailable";
    pub const READY: &str = "Ready";
    pub const NOT_READY: &str = "NotReady";
    pub const UP_TO_DATE: &str = "UpToDate";
    pub const NOT_UP_TO_DATE: &str = "NotUpToDate";
    pub const UPDATING: &str = "Updating";
    pub const ROLLING_OUT: &str = "RollingOut";
    pub const NOT_ROLLING_OUT: &str = "NotRollingOut";
    pub const SCALING_UP: &str = "ScalingUp";
    pub const NOT_SCALING_UP: &str = "NotScalingUp";
    pub const SCALING_DOWN: &str = "ScalingDown";
    pub const NOT_SCALING_DOWN: &str = "NotScalingDown";
    pub const REMEDIATING: &str = "Remediating";
    pub const NOT_REMEDIATING: &str = "NotRemediating";
    pub const PAUSED: &str = "Paused";
    pub const NOT_PAUSED: &str = "NotPaused";
    pub const CONNECTION_DOWN: &str = "ConnectionDown";
    pub const DELETING: &str = "Deleting";
    pub const NOT_DELETING: &str = "NotDeleting";
    pub const NO_REASON_REPORTED: &str = "NoReasonReported";
}

/// The plural that Cluster API and controller-gen derive from a kind.
pub fn plural(kind: &str) -> String {
    let ends_with = |suffixes: &[&str]| suffixes.iter().any(|suffix| kind.ends_with(suffix));
    let mut letters = kind.chars().rev();
    let last = letters.next().map(|letter| letter.to_ascii_lowercase());
    let before = letters.next().map(|letter| letter.to_ascii_lowercase());
    if ends_with(&["s", "x", "z", "ch", "sh", "S", "X"]) {
        format!("{kind}es")
    } else if last == Some('y') && !matches!(before, Some('a' | 'e' | 'i' | 'o' | 'u')) {
        format!("{}ies", &kind[..kind.len() - 1])
    } else {
        format!("{kind}s")
    }
}

/// The name of the CustomResourceDefinition of a kind.
pub fn crd_name(group: &str, kind: &str) -> String {
    format!("{}.{group}", plural(&kind.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plurals_follow_english_as_far_as_kinds_do() {
        for (kind, expected) in [
            ("Machine", "Machines"),
            ("AzureClusterIdentity", "AzureClusterIdentities"),
            ("NodeClass", "NodeClasses"),
            ("UpgradePolicy", "UpgradePolicies"),
            ("Key", "Keys"),
            ("KThreesConfig", "KThreesConfigs"),
        ] {
            assert_eq!(plural(kind), expected);
        }
        assert_eq!(
            crd_name("infrastructure.cluster.x-k8s.io", "EdgeMachine"),
            "edgemachines.infrastructure.cluster.x-k8s.io"
        );
    }
}
