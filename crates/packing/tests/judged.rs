//! The crate's functions as the tests call them: whatever is decided goes through the independent checker first.

use slipway_packing::disrupt::{Method, Outcome};
use slipway_packing::model::{Plan, Pod, Snapshot};

use crate::judge;

pub fn schedule(snapshot: &Snapshot, pods: &[Pod]) -> Plan {
    let plan = slipway_packing::schedule(snapshot, pods);
    judge::check(snapshot, pods, &plan);
    plan
}

pub fn disrupt(snapshot: &Snapshot, pending: &[Pod], method: Method) -> Outcome {
    checked(
        snapshot,
        pending,
        slipway_packing::disrupt::disrupt(snapshot, pending, method),
    )
}

pub fn next_command(snapshot: &Snapshot, pending: &[Pod]) -> Outcome {
    checked(
        snapshot,
        pending,
        slipway_packing::disrupt::next_command(snapshot, pending),
    )
}

fn checked(snapshot: &Snapshot, pending: &[Pod], outcome: Outcome) -> Outcome {
    for command in outcome.commands() {
        judge::check_command(snapshot, pending, command);
    }
    outcome
}
