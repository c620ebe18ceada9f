//! What the status of a fleet says: pure.

use jiff::Timestamp;
use slipway_capi::{
    condition::{self, Report, Status},
    names,
};

use super::{
    api::FleetStatus,
    observe::Observed,
    plan::{afloat, desired},
};

pub fn status(observed: &Observed, now: Timestamp) -> FleetStatus {
    let mut status = observed.fleet.status.clone().unwrap_or_default();
    if observed.fleet.metadata.deletion_timestamp.is_some() {
        return status;
    }
    let (afloat, desired) = (afloat(observed), desired(observed));
    let is_ready = afloat == desired && observed.vessels.len() as i32 == desired;
    status.vessels = afloat;
    if is_ready {
        status.initialization.provisioned = Some(true);
    }
    let report = match &observed.charter {
        Some((problem, _)) => Report::new(names::condition::READY, Status::False, "BadCharter", problem),
        None if is_ready => Report::new(names::condition::READY, Status::True, "Afloat", ""),
        None => {
            let message = format!("{afloat} of {desired} vessels are afloat");
            Report::new(names::condition::READY, Status::False, "NotAfloat", message)
        }
    };
    let generation = observed.fleet.metadata.generation;
    condition::set(&mut status.conditions, &report, generation, now);
    status
}
