//! What a HostImage says of itself: pure.

use jiff::Timestamp;
use slipway_capi::{
    condition::{self, Report, Status},
    frame::Plan,
    names::{condition as names, reason},
};

use super::{
    api::HostImageStatus,
    observe::Observed,
    plan::{Action, decide},
};

pub fn status(observed: &Observed, plan: &Plan<Action>, now: Timestamp) -> HostImageStatus {
    let image = &observed.image;
    let mut status = decide(&observed.facts, now).status;
    status.conditions = image
        .status
        .as_ref()
        .map(|before| before.conditions.clone())
        .unwrap_or_default();
    let report = ready(observed, &status, plan);
    condition::set(&mut status.conditions, &report, image.metadata.generation, now);
    status
}

fn ready(observed: &Observed, status: &HostImageStatus, plan: &Plan<Action>) -> Report {
    let no = |reason: &str, message: String| Report::new(names::READY, Status::False, reason, message);
    if observed.facts.is_deleting {
        return no(reason::DELETING, "hosts let go of its images".to_owned());
    }
    if status.complete == status.hosts {
        return Report::new(names::READY, Status::True, reason::READY, "");
    }
    let counted = format!("{} of {} hosts have every image", status.complete, status.hosts);
    if let Some((wait, message)) = plan.waits().next() {
        return no(&wait.reason, format!("{counted}; {message}"));
    }
    if status.running > 0 {
        return no("Fetching", counted);
    }
    if status.failed > 0 {
        return no(
            "Failed",
            format!("{counted}, and {} will not by themselves", status.failed),
        );
    }
    no("HostsAway", counted)
}
