//! Taking machines over, and letting all of them go: pure.

use super::{
    observed::{Observed, Server},
    plan::{Action, Draft, Why},
};
use crate::version::Version;

/// Machines near enough are taken over; others are refused with the reason.
pub fn plan_adoption(observed: &Observed, plan: Draft) -> Draft {
    let desired: Option<Version> = observed.desired.version.parse().ok();
    let mut plan = plan;
    for machine in &observed.adoptable {
        if !machine.is_k3s {
            return plan.wait(
                "AdoptionRefused",
                format!(
                    "refusing to adopt machine {}: its bootstrap configuration is not a KThreesConfig",
                    machine.name
                ),
            );
        }
        let version: Option<Version> = machine
            .version
            .as_deref()
            .and_then(|version| version.parse().ok());
        let near = match (&version, &desired) {
            (Some(has), Some(wants)) => has.minors_to(wants).abs() <= 1,
            _ => false,
        };
        if !near {
            return plan.wait(
                "AdoptionRefused",
                format!(
                    "refusing to adopt machine {}: its version {} is more than one minor version from {}",
                    machine.name,
                    machine.version.as_deref().unwrap_or("(none)"),
                    observed.desired.version
                ),
            );
        }
        plan = plan.act(
            Action::Adopt {
                machine: machine.name.clone(),
            },
            "it is a server of this cluster and belongs to nobody",
        );
    }
    plan
}

/// Workers first, then all servers at once; nothing of etcd is left to guard.
pub fn plan_deletion(observed: &Observed, plan: Draft) -> Draft {
    if observed.servers.is_empty() {
        return plan.release_finalizer("no server is left");
    }
    if observed.workers > 0 && !observed.servers.iter().any(Server::is_deleting) {
        return plan.wait(
            "WaitingForWorkers",
            format!(
                "waiting for {} worker machine(s) and pool(s) to be deleted first",
                observed.workers
            ),
        );
    }
    let mut plan = plan;
    for server in &observed.servers {
        if !server.is_deleting() {
            plan = plan.act(
                Action::DeleteServer {
                    machine: server.name.clone(),
                    why: Why::ScaleDown,
                },
                "the control plane is being deleted",
            );
        } else if server.hooks.ours || server.hooks.legacy {
            plan = plan.act(
                Action::ReleaseHook {
                    machine: server.name.clone(),
                },
                "the whole control plane goes",
            );
        }
    }
    // Core does not finish a Machine whose Cluster is gone: nothing would ever end the wait.
    if observed.cluster.gone {
        return plan.release_finalizer("the Cluster is gone");
    }
    plan.wait("WaitingForDeletion", "waiting for the servers to be deleted")
}
