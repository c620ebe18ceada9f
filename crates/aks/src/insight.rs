//! How AKS clusters are shown to people, and what the reasons in their conditions mean.

use slipway_insight::{Insight, Kind, Link, Numbers, Part, Reason};

use crate::api::GROUP;

const CONTROL_PLANE: &[Link] = &[Link::OfCluster("/spec/controlPlaneRef")];
const IDENTITY: &[Link] = &[Link::Name {
    group: GROUP,
    kind: "AzureClusterIdentity",
    at: "/spec/identityRef",
}];

const KINDS: &[Kind] = &[
    Kind::new(GROUP, "AzureManagedCluster", Part::Infrastructure).needs(CONTROL_PLANE),
    Kind::new(GROUP, "AzureManagedControlPlane", Part::ControlPlane)
        .needs(IDENTITY)
        .facts(&[
            ("location", "/spec/location"),
            ("resource group", "/spec/resourceGroupName"),
        ]),
    Kind::new(GROUP, "AzureManagedMachinePool", Part::Detail)
        .needs(CONTROL_PLANE)
        .counting(
            "nodes",
            Numbers {
                desired: "",
                current: "/status/replicas",
                ready: "/status/replicas",
                available: "",
                up_to_date: "",
            },
        )
        .facts(&[("mode", "/spec/mode"), ("size", "/spec/sku")]),
    Kind::new(GROUP, "AzureManagedMachine", Part::Detail)
        .facts(&[("power", "/status/powerState"), ("zone", "/status/failureDomain")]),
    Kind::new(GROUP, "AzureClusterIdentity", Part::Detail),
];

const REASONS: &[Reason] = &[Reason::waiting(
    "WaitingForSystemPool",
    "no AzureManagedMachinePool of mode System belongs to the Cluster yet",
)
.advice(
    "create one, or set `defaultPoolTemplate`; without one a default pool comes at the time in the message",
)];

pub fn insight() -> Insight {
    slipway_capi::insight::with(KINDS, &[slipway_azure::insight::REASONS, REASONS].concat())
}
