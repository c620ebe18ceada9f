//! The status of a node pool: ready when AKS says Succeeded and has the nodes that were asked for.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::Resource;
use slipway_azure::{
    machine::{self, Size},
    reconcile::{Error, ResourceKind, StepStatus},
};
use slipway_capi::frame::{Attempt, Progress};
use slipway_runtime::Outcome;

use super::plan::{Action, KEEPS_ONE_NODE, Observed, count, keeps_one_node, scales};
use crate::{
    api::{
        AzureManagedMachine, AzureManagedMachinePoolStatus, InfrastructureInitialization, MODE_SYSTEM,
        V1Beta2Conditions,
    },
    planning::{failed, is_unanswered, shown, was_ready},
    status::{condition_of, set_both, set_ready, set_saying},
    version::with_v,
};

/// How it went with the pool itself. What went wrong besides leaves the pool what it is. `None`: nothing was learnt.
pub fn step(progress: &Progress<Action, Error>, learnt: Option<&StepStatus>) -> Option<StepStatus> {
    let mut step = Some(StepStatus::Done);
    for (entry, attempt) in progress.entries().filter(|(entry, _)| entry.group.is_some()) {
        if let Some(wait) = entry.as_wait() {
            step = Some(shown(wait, &entry.why));
            continue;
        }
        match entry.action() {
            Some(
                Action::Ensure(_)
                | Action::Delete { .. }
                | Action::AcceptVanished { .. }
                | Action::Machine(machine::Action::DeleteVms { .. }),
            ) => {
                step = failed(attempt).or_else(|| learnt.cloned());
            }
            Some(Action::Record { .. } | Action::StoreRecords)
                if matches!(failed(attempt), Some(StepStatus::Failed { terminal: true, .. })) =>
            {
                return failed(attempt);
            }
            Some(Action::Detach | Action::Record { .. }) if !attempt.is_done() => return None,
            _ => {}
        }
    }
    step
}

/// What the status says after a reconcile. One question that Azure did not answer does not make a working pool unready; a
/// change that does not get through is shown.
pub fn after(
    observed: &Observed,
    progress: &Progress<Action, Error>,
    learnt: Option<&StepStatus>,
    now: Timestamp,
) -> AzureManagedMachinePoolStatus {
    let before = observed.pool.status.clone().unwrap_or_default();
    let was_ready = was_ready(before.ready, before.observed_generation, &observed.pool);
    let mut after = match step(progress, learnt) {
        Some(step) if !(was_ready && hides(progress, &step)) => status(observed, &step, now),
        _ => before,
    };
    let kind = after.infrastructure_machine_kind.take();
    let told = AzureManagedMachine::kind(&()).into_owned();
    after.infrastructure_machine_kind = observed.fleet.kind_to_tell(kind, told);
    if after.infrastructure_machine_kind.is_none() {
        (after.capacity, after.node_info) = (BTreeMap::new(), None);
    } else if let Some((capacity, node_info)) = Size::of_pool(&observed.state) {
        (after.capacity, after.node_info) = (capacity, Some(node_info));
    }
    after
}

/// Whether nothing was learnt that is worse than a question without an answer.
fn hides(progress: &Progress<Action, Error>, step: &StepStatus) -> bool {
    let is_throttled = |attempt: &Attempt<Error>| matches!(attempt, Attempt::Came(Outcome::Throttled(_)));
    is_unanswered(progress)
        && (matches!(step, StepStatus::Failed { .. } | StepStatus::Waiting { .. })
            || progress.entries().any(|(_, attempt)| is_throttled(attempt)))
}

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
    let mut v1beta2 = status.v1beta2.take().unwrap_or_default().conditions;
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
    let remark = keeps_one_node(observed).then_some(KEEPS_ONE_NODE);
    let remark = remark.or_else(|| observed.fleet.remark());
    if let Some(remark) = remark.filter(|_| shown == StepStatus::Done) {
        let said = (type_, &shown, remark);
        set_saying(&mut status.conditions, &mut v1beta2, said, generation, now);
    } else {
        set_both(
            &mut status.conditions,
            &mut v1beta2,
            type_,
            &shown,
            generation,
            now,
        );
    }
    let ready = set_ready(
        &mut status.conditions,
        &mut v1beta2,
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
    // While AKS is at work on the pool, nodes of the old version run.
    let runs = observed
        .state
        .property("currentOrchestratorVersion")
        .filter(|_| status.version.is_none() || succeeded);
    if let Some(running) = runs {
        status.version = Some(with_v(running));
    }
    status.observed_generation = generation;
    status.v1beta2 = Some(V1Beta2Conditions { conditions: v1beta2 });
    status
}
