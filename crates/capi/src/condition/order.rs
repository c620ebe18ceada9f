//! Cluster API's order of conditions: availability first, then by how telling they are, deletion last.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Types that have a place of their own. All others share the place of `""`, by name.
const ORDER: &[&str] = &[
    "Available",
    "Ready",
    "UpToDate",
    "RemoteConnectionProbe",
    "BootstrapConfigReady",
    "InfrastructureReady",
    "ControlPlaneInitialized",
    "ControlPlaneAvailable",
    "WorkersAvailable",
    "CertificatesAvailable",
    "Initialized",
    "EtcdClusterHealthy",
    "ControlPlaneComponentsHealthy",
    "NodeHealthy",
    "NodeReady",
    "NodeKubeadmLabelsAndTaintsSet",
    "EtcdPodHealthy",
    "EtcdMemberHealthy",
    "APIServerPodHealthy",
    "ControllerManagerPodHealthy",
    "SchedulerPodHealthy",
    "HealthCheckSucceeded",
    "OwnerRemediated",
    "TopologyReconciled",
    "Updating",
    "RollingOut",
    "Remediating",
    "ScalingDown",
    "ScalingUp",
    "MachinesReady",
    "ControlPlaneMachinesReady",
    "WorkerMachinesReady",
    "MachinesUpToDate",
    "ControlPlaneMachinesUpToDate",
    "WorkerMachinesUpToDate",
    "",
    "Paused",
    "Deleting",
];

fn place(type_: &str) -> usize {
    let index = |desired: &str| ORDER.iter().position(|known| *known == desired);
    index(type_).or_else(|| index("")).unwrap_or(ORDER.len())
}

pub(super) fn sort(conditions: &mut [Condition]) {
    conditions.sort_by(|left, right| {
        place(&left.type_)
            .cmp(&place(&right.type_))
            .then_with(|| left.type_.cmp(&right.type_))
    });
}

#[cfg(test)]
mod tests {
    use super::super::{Report, Status, set};
    use jiff::Timestamp;

    #[test]
    fn availability_comes_first_and_deletion_last() {
        let mut conditions = Vec::new();
        for type_ in [
            "Deleting",
            "Zebra",
            "Ready",
            "Paused",
            "Apple",
            "ScalingUp",
            "Available",
        ] {
            set(
                &mut conditions,
                &Report::new(type_, Status::True, "Reason", ""),
                None,
                Timestamp::UNIX_EPOCH,
            );
        }
        let types: Vec<_> = conditions
            .iter()
            .map(|condition| condition.type_.as_str())
            .collect();
        assert_eq!(
            types,
            [
                "Available",
                "Ready",
                "ScalingUp",
                "Apple",
                "Zebra",
                "Paused",
                "Deleting"
            ]
        );
    }
}
