//! What the conditions of the AKS kinds mean, for the reference. The names are interface: dashboards made for CAPZ and
//! `clusterctl describe` read them.

use slipway_capi::names::condition as names;
use slipway_runtime::provider::ConditionType;

/// Every condition of every kind.
pub fn described() -> Vec<ConditionType> {
    let of = |kind: &'static str, found: &[(&'static str, &'static str)]| -> Vec<ConditionType> {
        found
            .iter()
            .map(|&(name, meaning)| ConditionType { kind, name, meaning })
            .collect()
    };
    let paused = (
        names::PAUSED,
        "it or its Cluster is paused, and nothing is done for it",
    );
    [
        of(
            "AzureManagedCluster",
            &[(names::READY, "the control plane has an API server"), paused],
        ),
        of(
            "AzureManagedControlPlane",
            &[
                (names::READY, "everything below is True"),
                (names::AVAILABLE, "AKS answers with an API server"),
                ("ResourceGroupReady", "the resource group exists as asked for"),
                ("VNetReady", "the virtual network exists as asked for"),
                ("SubnetsReady", "the subnets exist as asked for"),
                (
                    "ManagedClusterRunning",
                    "the AKS cluster exists as asked for and runs, and Azure is done with it",
                ),
                (
                    "PrivateEndpointsReady",
                    "the private endpoints exist as asked for; absent without any",
                ),
                (
                    "FleetReady",
                    "the cluster is a member of its fleet; absent without one",
                ),
                (
                    "AKSExtensionsReady",
                    "the extensions are installed as asked for; absent without any",
                ),
                paused,
            ],
        ),
        of(
            "AzureManagedMachinePool",
            &[
                (names::READY, "everything below is True"),
                (
                    "AgentPoolsReady",
                    "the node pool exists as asked for, and Azure is done with it",
                ),
                paused,
            ],
        ),
        of(
            "AzureManagedMachine",
            &[
                (names::READY, "the VM is there and runs, and nobody deletes it"),
                (
                    slipway_azure::machine::status::RUNNING,
                    "Azure says that the VM runs",
                ),
                paused,
            ],
        ),
    ]
    .concat()
}
