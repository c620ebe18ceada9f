//! The status of a node pool: ready when AKS says Succeeded and has the nodes that were asked for.

use jiff::Timestamp;
use slipway_azure::reconcile::{ResourceKind, StepStatus};

use super::{condition_of, set_both, set_ready};
use crate::{
    api::{AzureManagedMachinePoolStatus, InfrastructureInitialization, MODE_SYSTEM, NewerConditions},
    plan::pool::{Observed, count, scales},
};

/// How many nodes the pool is to have: AKS's number where AKS scales, else the MachinePool's.
fn desired(observed: &Observed) -> Option<i32> {
    if scales(&observed.state) || observed.pool.spec.class.scaling.is_some() {
        return count(&observed.state);
    }
    let asked = observed.machine_pool.as_ref()?.spec.replicas.unwrap_or(1);
    Some(asked.max(i32::from(observed.pool.spec.class.mode == MODE_SYSTEM)))
}

pub fn status(observed: &Observed, step: &StepStatus, now: Timestamp) -> AzureManagedMachinePoolStatus {
    let mut status = observed.pool.status.clone().unwrap_or_default();
    let generation = observed.pool.metadata.generation;
    let mut newer = status.newer.take().unwrap_or_default().conditions;
    let succeeded = observed.state.provisioning_state() == Some("Succeeded");
    let there = count(&observed.state);
    let complete = succeeded && there.is_some() && there == desired(observed);
    let shown = match step {
        StepStatus::Done if !complete => {
            let state = observed.state.provisioning_state().unwrap_or("unknown");
            let (there, desired) = (there.unwrap_or(0), desired(observed).unwrap_or(0));
            StepStatus::Updating(format!("AKS says {state}: {there} of {desired} nodes"))
        }
        other => other.clone(),
    };
    let type_ = condition_of(ResourceKind::AgentPool);
    set_both(&mut status.conditions, &mut newer, type_, &shown, generation, now);
    let ready = set_ready(
        &mut status.conditions,
        &mut newer,
        &[(type_, &shown)],
        generation,
        now,
    );
    let ready = ready && observed.pool.metadata.deletion_timestamp.is_none();
    status.ready = Some(ready);
    let before = status
        .initialization
        .as_ref()
        .and_then(|before| before.provisioned)
        == Some(true);
    status.initialization = Some(InfrastructureInitialization {
        provisioned: (before || ready).then_some(true),
    });
    if let Some(there) = there {
        status.replicas = Some(there);
    }
    status.observed_generation = generation;
    status.newer = Some(NewerConditions { conditions: newer });
    status
}
