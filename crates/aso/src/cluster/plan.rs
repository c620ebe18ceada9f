//! The plan of an AzureASOManagedCluster: its resources, and where the API server answers. Pure.

use std::fmt;

use jiff::Timestamp;
use slipway_capi::{frame::Plan, names::reason};
use slipway_runtime::Class;

use super::observe::Observed;
use crate::{
    api::Endpoint,
    resources::{self, Wraps},
};

/// What is said while the address is not there.
pub const NO_ENDPOINT: &str = "the control plane has no API server yet";
/// The reason of a Cluster whose control plane this kind does not go with.
pub const OTHER_CONTROL_PLANE: &str = "UnsupportedControlPlane";

/// What is said of a Cluster whose control plane this kind does not go with.
pub fn other_control_plane(kind: &str) -> String {
    format!(
        "spec.controlPlaneRef of the Cluster must name an AzureASOManagedControlPlane, but its kind is {kind}: change it, or use \
         the infrastructure that goes with it"
    )
}

/// One idempotent call.
#[derive(Clone, Debug)]
pub enum Action {
    Resource(resources::Action),
    /// Write where the API server answers.
    SetEndpoint(Endpoint),
}

impl From<resources::Action> for Action {
    fn from(action: resources::Action) -> Self {
        Self::Resource(action)
    }
}

impl Wraps for Action {
    fn resource_action(&self) -> Option<&resources::Action> {
        match self {
            Self::Resource(action) => Some(action),
            Self::SetEndpoint(_) => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource(action) => action.fmt(formatter),
            Self::SetEndpoint(endpoint) => write!(formatter, "set endpoint {}", text(endpoint)),
        }
    }
}

fn text(endpoint: &Endpoint) -> String {
    format!("{}:{}", endpoint.host, endpoint.port)
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan<Action> {
    let mut plan = Plan::new();
    if observed.held.is_deleting() {
        resources::delete(&observed.held, &mut plan, None, now);
        return plan;
    }
    if let Some(kind) = &observed.other_control_plane {
        plan.blocked(OTHER_CONTROL_PLANE, other_control_plane(kind), Class::Terminal);
        return plan;
    }
    resources::plan(&observed.held, &mut plan, now);
    let stored = observed.object.spec.control_plane_endpoint.as_ref();
    match &observed.endpoint {
        None => {
            plan.wait(reason::NOT_READY, NO_ENDPOINT).group = None;
        }
        Some(endpoint) if stored != Some(endpoint) => {
            let before = stored.map_or_else(|| "none".to_owned(), text);
            let why = "the control plane's API server answers there";
            plan.regardless(Action::SetEndpoint(endpoint.clone()), why)
                .changing("spec.controlPlaneEndpoint", before, text(endpoint));
        }
        Some(_) => {}
    }
    plan
}
