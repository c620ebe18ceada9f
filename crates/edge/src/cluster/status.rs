//! What an EdgeCluster says of itself: pure.

use jiff::Timestamp;
use slipway_capi::{
    condition::{self, Report, Status},
    frame::Plan,
    names::{condition as condition_type, reason},
    view::FailureDomain,
};

use super::{
    api::EdgeClusterStatus,
    plan::{Action, Observed},
};

pub fn status(observed: &Observed, plan: &Plan<Action>, now: Timestamp) -> EdgeClusterStatus {
    let object = &observed.object;
    let mut status = object.status.clone().unwrap_or_default();
    // A server may be in any of them.
    let domain = |name: &String| FailureDomain {
        name: name.clone(),
        control_plane: Some(true),
        ..FailureDomain::default()
    };
    status.failure_domains = observed.failure_domains.iter().map(domain).collect();
    let waits = plan.waits().next();
    let report = if object.metadata.deletion_timestamp.is_some() {
        Report::new(condition_type::READY, Status::False, reason::DELETING, "")
    } else if let Some((wait, message)) = waits {
        Report::new(condition_type::READY, Status::False, &wait.reason, message)
    } else if let Some(planned) = plan.actions().next() {
        Report::new(
            condition_type::READY,
            Status::False,
            "EndpointNotWritten",
            planned.to_string(),
        )
    } else {
        status.initialization.provisioned = Some(true);
        Report::new(condition_type::READY, Status::True, reason::READY, "")
    };
    condition::set(&mut status.conditions, &report, object.metadata.generation, now);
    status
}
