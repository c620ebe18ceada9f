//! What a machine says of its VM. Pure.

use jiff::Timestamp;
use slipway_capi::{
    condition::{self, Report, Status},
    contract::InfrastructureInitialization,
    frame::Plan,
    names::{condition as type_, reason},
};

use super::{MachineStatus, Told, Vm, plan::Facts};

/// Whether Azure says that the VM runs.
pub const RUNNING: &str = "VirtualMachineRunning";
const NOT_RUNNING: &str = "NotRunning";
const GONE: &str = "Gone";

/// `before`: what stands in the status.
pub fn status<A>(
    before: &MachineStatus,
    facts: &Facts,
    plan: &Plan<A>,
    generation: Option<i64>,
    now: Timestamp,
) -> MachineStatus {
    let mut status = before.clone();
    let running = match &facts.told {
        Told::Present { vm, .. } => {
            fill(&mut status, vm);
            runs(vm)
        }
        Told::Absent => Report::new(RUNNING, Status::False, GONE, "Azure has no such VM any more"),
        Told::Nothing | Told::Off if !facts.is_deleting => return status,
        Told::Nothing | Told::Off => Report::new(RUNNING, Status::Unknown, "Unknown", ""),
    };
    let waits = plan.waits().next();
    let ready = if facts.is_deleting {
        let (reason, message) = waits.map_or((reason::DELETING, ""), |(wait, message)| {
            (wait.reason.as_str(), message)
        });
        Report::new(type_::READY, Status::False, reason, message)
    } else if running.status == Status::True {
        Report::new(type_::READY, Status::True, reason::READY, "")
    } else {
        Report::new(
            type_::READY,
            running.status,
            &running.reason,
            running.message.clone(),
        )
    };
    status.ready = Some(ready.status == Status::True);
    condition::set(&mut status.conditions, &ready, generation, now);
    condition::set(&mut status.conditions, &running, generation, now);
    status
}

fn fill(status: &mut MachineStatus, vm: &Vm) {
    status.initialization = Some(InfrastructureInitialization {
        provisioned: Some(true),
    });
    status.failure_domain.clone_from(&vm.zone);
    status.power_state.clone_from(&vm.power);
    // What a node said stands while nobody hears of it.
    if vm.has_node {
        status.node_name = Some(vm.name.clone());
        status.addresses.clone_from(&vm.addresses);
        status.image.clone_from(&vm.image);
        status.version.clone_from(&vm.version);
    }
}

/// A VM of which Azure tells no power state is taken for one that runs: its node says the rest.
fn runs(vm: &Vm) -> Report {
    match vm.power.as_deref() {
        None | Some("running") => Report::new(RUNNING, Status::True, "Running", ""),
        Some(power) => Report::new(
            RUNNING,
            Status::False,
            NOT_RUNNING,
            format!("Azure says that the VM is {power}"),
        ),
    }
}
