//! What a NodeUpgrade says of itself: pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use slipway_capi::{
    condition::{self, Report, Status},
    names::condition as names,
};

use super::{
    api::{NodeUpgradeStatus, Phase},
    observe::Observed,
};

/// Whether an upgrade that has ended has left nothing on host, node and machine.
pub const SETTLED: &str = "Settled";
/// The reason of what was decided once, and is not decided again.
pub const ENDED: &str = "Ended";

pub fn status(observed: &Observed, now: Timestamp) -> NodeUpgradeStatus {
    let (upgrade, decision) = (&observed.upgrade, observed.decision());
    let mut status = upgrade.status.clone().unwrap_or_default();
    status.phase = decision.phase;
    status.message = match &observed.refused {
        Some(why) => format!("{}: {why}", decision.message),
        None => decision.message.clone(),
    };
    status.percent = decision.percent;
    if decision.aborts_drain {
        status.drain_aborted_at = Some(Time(now));
    }
    if let Some(why) = &decision.goes_back_because {
        status.rollback_reason.get_or_insert_with(|| why.clone());
    }
    if decision.phase.is_terminal() && status.ended_at.is_none() {
        status.ended_at = Some(Time(now));
    }
    let mut reports = vec![settled(observed)];
    // How it ended stays as it was told.
    if decision.reason != ENDED {
        let ready = if decision.phase == Phase::Done {
            Status::True
        } else {
            Status::False
        };
        reports.push(Report::new(names::READY, ready, decision.reason, &status.message));
    }
    for report in reports {
        condition::set(&mut status.conditions, &report, upgrade.metadata.generation, now);
    }
    status
}

fn settled(observed: &Observed) -> Report {
    let no = |reason: &str, message: String| Report::new(SETTLED, Status::False, reason, message);
    if observed.is_settled() {
        return Report::new(SETTLED, Status::True, "NothingLeft", "");
    }
    if !observed.decision().phase.is_terminal() {
        return no("UnderWay", String::new());
    }
    match &observed.unknown {
        Some(why) => no("Unknown", format!("it cannot be looked at: {why}")),
        None => no("TakingBack", "what is left of it is taken back".to_owned()),
    }
}
