//! What the conditions of these kinds mean, for the reference.

use slipway_capi::names::condition as names;
use slipway_runtime::provider::ConditionType;

use crate::{
    control_plane::status::KUBECONFIG_READY,
    engine::OPERATOR_READY,
    resources::{IDENTITY_BORROWED, MAPPED_BY_RULE, RESOURCES_READY},
};

/// Every condition of every kind.
pub fn described() -> Vec<ConditionType> {
    let of = |kind: &'static str, found: &[(&'static str, &'static str)]| -> Vec<ConditionType> {
        found
            .iter()
            .map(|&(name, meaning)| ConditionType { kind, name, meaning })
            .collect()
    };
    let resources = (
        RESOURCES_READY,
        "every inline resource is in Azure as written, and Azure is done with it",
    );
    let borrowed = (
        IDENTITY_BORROWED,
        "it signs in to Azure as the manager, as every namespace could; absent where it signs in as itself",
    );
    let by_rule = (
        MAPPED_BY_RULE,
        "a resource is newer than the types that are known here; absent where none is",
    );
    let operator = (
        OPERATOR_READY,
        "Azure Service Operator runs, and serves the kinds of the resources that it writes; absent where it writes none and none runs",
    );
    let paused = (
        names::PAUSED,
        "it or its Cluster is paused, and nothing is done for it",
    );
    [
        of(
            "AzureASOManagedCluster",
            &[
                (
                    names::READY,
                    "every inline resource is there, and the control plane has an API server",
                ),
                resources,
                borrowed,
                by_rule,
                operator,
                paused,
            ],
        ),
        of(
            "AzureASOManagedControlPlane",
            &[
                (names::READY, "everything below is True"),
                (names::AVAILABLE, "AKS answers with an API server"),
                resources,
                (
                    KUBECONFIG_READY,
                    "the Secret that Cluster API reads holds a kubeconfig",
                ),
                borrowed,
                by_rule,
                operator,
                paused,
            ],
        ),
        of(
            "AzureASOManagedMachinePool",
            &[
                (
                    names::READY,
                    "every inline resource is there, and the nodes that were asked for are in the cluster",
                ),
                resources,
                borrowed,
                by_rule,
                operator,
                paused,
            ],
        ),
    ]
    .concat()
}
