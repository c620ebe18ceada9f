//! What the tests of plans ask of a plan, and how a health check marks a server.

use slipway_k3s::control_plane::{
    observed::Observed,
    plan::{Action, Plan},
};

/// What a plan does.
pub fn actions(plan: &Plan) -> Vec<&Action> {
    plan.actions().collect()
}

/// What a plan does to servers.
pub fn operations(plan: &Plan) -> Vec<&Action> {
    plan.actions().filter(|action| action.is_operation()).collect()
}

pub fn says(plan: &Plan, text: &str) {
    assert!(
        plan.waits().any(|(_, why)| why.contains(text)),
        "{text:?} is not in {plan}"
    );
}

/// Marks a server as failed, the way a health check does.
pub fn mark(observed: &mut Observed, name: &str) {
    let server = observed
        .servers
        .iter_mut()
        .find(|server| server.name == name)
        .expect("the server");
    server.health_check.failed = true;
    server.health_check.ours_to_remediate = true;
}
