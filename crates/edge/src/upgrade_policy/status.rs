//! What an UpgradePolicy says of itself: pure.

use std::convert::Infallible;

use jiff::Timestamp;
use slipway_capi::{
    condition::{self, Report, Status},
    frame::Plan,
    names::{condition as condition_type, reason},
};

use super::{admit, api::UpgradePolicyStatus, plan::Observed};

pub fn status(observed: &Observed, plan: &Plan<Infallible>, now: Timestamp) -> UpgradePolicyStatus {
    let object = &observed.object;
    let mut status = object.status.clone().unwrap_or_default();
    status.observed_generation = object.metadata.generation;
    status.cluster_upgrades.clone_from(&observed.cluster_upgrades);
    status.node_upgrades = i32::try_from(observed.node_upgrades).unwrap_or(i32::MAX);
    let warnings = admit::warnings(&object.spec).join("; ");
    let report = match plan.waits().next() {
        Some((wait, message)) => Report::new(condition_type::READY, Status::False, &wait.reason, message),
        None => Report::new(condition_type::READY, Status::True, reason::READY, &warnings),
    };
    condition::set(&mut status.conditions, &report, object.metadata.generation, now);
    status
}
