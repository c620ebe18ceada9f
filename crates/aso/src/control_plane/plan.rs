//! The plan of an AzureASOManagedControlPlane: its resources, and the kubeconfigs of who uses the cluster. Pure.

use std::fmt;

use jiff::Timestamp;
use slipway_azure::reconcile::planning::SOON;
use slipway_capi::frame::{Plan, Progress};
use slipway_runtime::Class;

use super::observe::Observed;
use crate::{
    inline::Problem,
    resources::{self, Wraps, push_outgoing},
};

/// The reason of a Cluster whose infrastructure this kind does not go with.
pub const OTHER_INFRASTRUCTURE: &str = "UnsupportedInfrastructure";

/// What is said of a Cluster whose infrastructure this kind does not go with.
pub fn other_infrastructure(kind: &str) -> String {
    format!(
        "spec.infrastructureRef of the Cluster must name an AzureASOManagedCluster, but its kind is {kind}: change it, or use the \
         control plane that goes with it"
    )
}

/// One idempotent call: all of them are for resources.
#[derive(Clone, Debug)]
pub struct Action(pub resources::Action);

impl From<resources::Action> for Action {
    fn from(action: resources::Action) -> Self {
        Self(action)
    }
}

impl Wraps for Action {
    fn resource_action(&self) -> Option<&resources::Action> {
        Some(&self.0)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// What keeps the cluster's credentials from being used.
pub fn credentials_problem(observed: &Observed) -> Option<Problem> {
    observed.endpoint()?;
    observed.access()?.err()
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan<Action> {
    let mut plan = Plan::new();
    if observed.held.is_deleting() {
        resources::delete(&observed.held, &mut plan, None, now);
        return plan;
    }
    if let Some(kind) = &observed.other_infrastructure {
        plan.blocked(OTHER_INFRASTRUCTURE, other_infrastructure(kind), Class::Terminal);
        return plan;
    }
    resources::plan(&observed.held, &mut plan, now);
    if let Some(problem) = credentials_problem(observed) {
        let entry = plan.blocked(problem.reason(), problem.to_string(), Class::Terminal);
        entry.group = None;
    }
    for outgoing in observed.kubeconfigs(now) {
        push_outgoing(&mut plan, outgoing, now);
    }
    if let Some(name) = observed.unclaimed() {
        let why = "Cluster API looks for it by its label";
        plan.regardless(resources::Action::ClaimKubeconfig { name }.into(), why);
    }
    if let Some((ca, why)) = observed.ca() {
        plan.regardless(resources::Action::WriteCa(ca).into(), why);
    }
    plan
}

/// What follows from what the actions came to.
pub fn follow_up<E>(observed: &Observed, progress: &Progress<Action, E>) -> Plan<Action> {
    let mut plan = resources::follow_up(&observed.held, progress);
    let has_written = progress.actions().any(|(action, attempt)| {
        matches!(action.0, resources::Action::WriteKubeconfig(_)) && attempt.is_done()
    });
    if has_written {
        plan.revisit(SOON, "a token in the kubeconfig has a time to be renewed");
    }
    plan
}
