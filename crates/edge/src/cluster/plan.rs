//! What an EdgeCluster waits for: pure.

use std::{collections::BTreeSet, convert::Infallible};

use slipway_capi::frame::Plan;

use super::api::EdgeCluster;

#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub object: EdgeCluster,
    /// The Cluster itself has an endpoint.
    pub given_by_cluster: bool,
    /// Of the hosts of its namespace.
    pub failure_domains: BTreeSet<String>,
}

pub fn plan(observed: &Observed) -> Plan<Infallible> {
    let mut plan = Plan::new();
    let spec = &observed.object.spec;
    let endpoint = spec.control_plane_endpoint.as_ref();
    let is_given = endpoint.is_some_and(|endpoint| !endpoint.host.is_empty() && endpoint.port > 0);
    if observed.object.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    if spec.virtual_address.is_some() {
        plan.wait(
            "VirtualAddressNotServed",
            "agents do not hold addresses for the control plane yet: give the endpoint of a load balancer in \
             spec.controlPlaneEndpoint, and leave virtualAddress out",
        );
    } else if !is_given && !observed.given_by_cluster {
        plan.wait(
            "NoEndpoint",
            "the endpoint of a load balancer is needed in spec.controlPlaneEndpoint",
        );
    }
    plan
}
