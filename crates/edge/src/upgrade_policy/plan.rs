//! What an UpgradePolicy says to whoever goes by it: pure. Nothing is done for a policy; one that cannot be read is told, because every
//! upgrade by it waits.

use std::convert::Infallible;

use slipway_capi::frame::Plan;

use super::{admit, api::UpgradePolicy};

#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub object: UpgradePolicy,
    /// ClusterUpgrades that name it and are not done.
    pub cluster_upgrades: Vec<String>,
    /// NodeUpgrades by it that have not ended.
    pub node_upgrades: usize,
}

/// The reason of a policy that cannot be gone by.
pub const INVALID: &str = "Invalid";

pub fn plan(observed: &Observed) -> Plan<Infallible> {
    let mut plan = Plan::new();
    let wrong = admit::errors(&observed.object.spec);
    if !wrong.is_empty() {
        let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        let waits = match observed.node_upgrades {
            0 => String::new(),
            1 => "; 1 upgrade waits for it".to_owned(),
            number => format!("; {number} upgrades wait for it"),
        };
        plan.wait(INVALID, format!("correct {}{waits}", wrong.join("; ")));
    }
    plan
}
