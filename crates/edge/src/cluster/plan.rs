//! What an EdgeCluster waits for, and the endpoint that its virtual address makes: pure.

use std::{collections::BTreeSet, fmt};

use slipway_capi::{contract::Endpoint, frame::Plan};

use super::{admit::endpoint_of, api::EdgeCluster};

#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub object: EdgeCluster,
    /// The Cluster itself has an endpoint.
    pub given_by_cluster: bool,
    /// Of the hosts of its namespace.
    pub failure_domains: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    WriteEndpoint(Endpoint),
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::WriteEndpoint(endpoint) = self;
        write!(formatter, "write endpoint {}:{}", endpoint.host, endpoint.port)
    }
}

pub fn plan(observed: &Observed) -> Plan<Action> {
    let mut plan = Plan::new();
    let spec = &observed.object.spec;
    let endpoint = spec.control_plane_endpoint.as_ref();
    let is_given = endpoint.is_some_and(|endpoint| !endpoint.host.is_empty() && endpoint.port > 0);
    if observed.object.metadata.deletion_timestamp.is_some() || is_given {
        return plan;
    }
    match spec.virtual_address.as_ref().map(endpoint_of) {
        Some(Some(endpoint)) => {
            plan.then(
                Action::WriteEndpoint(endpoint),
                "the servers hold their virtual address in turn",
            );
        }
        Some(None) => {
            plan.wait(
                "VirtualAddressInvalid",
                "spec.virtualAddress.address must be an address with its prefix length, e.g. 192.0.2.10/24",
            );
        }
        None if observed.given_by_cluster => {}
        None => {
            plan.wait(
                "NoEndpoint",
                "the endpoint of a load balancer is needed in spec.controlPlaneEndpoint, or an address that the servers hold in \
                 spec.virtualAddress",
            );
        }
    }
    plan
}
