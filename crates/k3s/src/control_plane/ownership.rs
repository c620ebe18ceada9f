//! Taking machines over, and letting all of them go: pure.

use super::{
    observed::{Observed, Server},
    plan::{Action, Plan, Why},
};
use crate::version::Version;

/// Machines near enough are taken over; others are refused with the reason.
pub fn plan_adoption(observed: &Observed, plan: Plan) -> Plan {
    let wanted: Option<Version> = observed.desired.version.parse().ok();
    let mut plan = plan;
    for machine in &observed.adoptable {
        if !machine.is_k3s {
            return plan.wait(format!(
                "refusing to adopt machine {}: its bootstrap configuration is not a KThreesConfig",
                machine.name
            ));
        }
        let version: Option<Version> = machine
            .version
            .as_deref()
            .and_then(|version| version.parse().ok());
        let near = match (&version, &wanted) {
            (Some(has), Some(wants)) => has.minors_to(wants).abs() <= 1,
            _ => false,
        };
        if !near {
            return plan.wait(format!(
                "refusing to adopt machine {}: its version {} is more than one minor version from {}",
                machine.name,
                machine.version.as_deref().unwrap_or("(none)"),
                observed.desired.version
            ));
        }
        plan = plan.act(Action::Adopt {
            machine: machine.name.clone(),
        });
    }
    plan
}

/// Workers first, then all servers at once; nothing of etcd is left to guard.
pub fn plan_deletion(observed: &Observed, plan: Plan) -> Plan {
    if observed.servers.is_empty() {
        return plan.act(Action::RemoveFinalizer);
    }
    if observed.workers > 0 && !observed.servers.iter().any(Server::is_deleting) {
        return plan.wait(format!(
            "waiting for {} worker machine(s) and pool(s) to be deleted first",
            observed.workers
        ));
    }
    let mut plan = plan;
    for server in &observed.servers {
        if !server.is_deleting() {
            plan = plan.act(Action::DeleteServer {
                machine: server.name.clone(),
                why: Why::ScaleDown,
            });
        } else if server.hooks.ours || server.hooks.legacy {
            plan = plan.act(Action::ReleaseHook {
                machine: server.name.clone(),
            });
        }
    }
    plan.wait("waiting for the servers to be deleted")
}
