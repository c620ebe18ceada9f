//! The plan of an AzureManagedCluster: carry over where the API server answers. Pure.

use std::fmt;

use slipway_capi::{frame::Plan, names::reason};

use super::observe::Observed;
use crate::api::Endpoint;

/// What is said while the address is not there.
pub const NO_ENDPOINT: &str = "the control plane has no API server yet";

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write where the API server answers.
    SetEndpoint(Endpoint),
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::SetEndpoint(endpoint) = self;
        write!(formatter, "set endpoint {}", text(endpoint))
    }
}

fn text(endpoint: &Endpoint) -> String {
    format!("{}:{}", endpoint.host, endpoint.port)
}

pub fn plan(observed: &Observed) -> Plan<Action> {
    let mut plan = Plan::new();
    let stored = observed.object.spec.control_plane_endpoint.as_ref();
    match &observed.endpoint {
        None => {
            plan.wait(reason::NOT_READY, NO_ENDPOINT);
        }
        Some(endpoint) if stored != Some(endpoint) => {
            let before = stored.map_or_else(|| "none".to_owned(), text);
            plan.then(
                Action::SetEndpoint(endpoint.clone()),
                "the control plane's API server answers there",
            )
            .changing("spec.controlPlaneEndpoint", before, text(endpoint));
        }
        Some(_) => {}
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_of_the_control_plane_is_carried_over_once() {
        let mut observed = Observed::default();
        assert_eq!(
            plan(&observed).to_string(),
            "1. wait NotReady: the control plane has no API server yet\n"
        );
        observed.endpoint = Some(Endpoint {
            host: "aks.example".to_owned(),
            port: 443,
        });
        assert_eq!(
            plan(&observed).to_string(),
            "1. set endpoint aks.example:443: the control plane's API server answers there\n     \
             spec.controlPlaneEndpoint: none -> aks.example:443\n"
        );
        observed.object.spec.control_plane_endpoint = observed.endpoint.clone();
        assert!(plan(&observed).is_empty());
    }
}
