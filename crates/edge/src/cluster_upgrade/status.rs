//! What a ClusterUpgrade says of itself: pure.

use jiff::Timestamp;
use slipway_capi::{
    condition::{self, Report, Status},
    names::{condition as condition_type, reason},
};

use super::{
    api::{ClusterUpgradePhase as Phase, ClusterUpgradeStatus},
    observe::Observed,
    plan::decide,
};

/// Machines that went back from an image stop it.
pub const HALTED: &str = "Halted";

pub fn status(observed: &Observed, failure: Option<&str>, now: Timestamp) -> ClusterUpgradeStatus {
    let (decision, upgrade) = (decide(&observed.facts), &observed.upgrade);
    let mut status = upgrade.status.clone().unwrap_or_default();
    status.phase = decision.phase;
    status.stop.clone_from(&decision.stop);
    failure
        .unwrap_or(&decision.message)
        .clone_into(&mut status.message);
    if let Some(cluster) = &observed.facts.cluster {
        let is_target = |version: &str| version == upgrade.spec.version;
        status.machines = cluster.everybody().map(|one| one.replicas).sum();
        status.up_to_date = cluster
            .everybody()
            .filter(|one| is_target(&one.asked.version))
            .map(|one| one.up_to_date().min(one.replicas))
            .sum();
    }
    let waits = decision.plan.waits().next().map(|(wait, _)| wait.reason.as_str());
    let report = if decision.phase == Phase::Done {
        Report::new(condition_type::READY, Status::True, reason::READY, "")
    } else {
        let reason = match (failure, waits) {
            (Some(_), _) => "Failed",
            (None, waits) => waits.unwrap_or("Upgrading"),
        };
        Report::new(condition_type::READY, Status::False, reason, &status.message)
    };
    condition::set(&mut status.conditions, &report, upgrade.metadata.generation, now);
    let halted = if decision.phase == Phase::Halted {
        Report::new(HALTED, Status::True, "RolledBack", &decision.message)
    } else {
        Report::new(HALTED, Status::False, "NotHalted", "")
    };
    condition::set(&mut status.conditions, &halted, upgrade.metadata.generation, now);
    status
}
