//! What becomes of one machine's object: it stays until Azure no longer has its VM. Pure.

use std::convert::Infallible;

use slipway_capi::frame::Plan;

use super::{Told, fleet::WAITING_FOR_POOL};

/// What the plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub is_deleting: bool,
    /// The whole Cluster goes.
    pub cluster_goes: bool,
    /// The node pool goes, or is gone.
    pub pool_goes: bool,
    pub told: Told,
}

pub fn plan(facts: &Facts) -> Plan<Infallible> {
    let mut plan = Plan::new();
    if !facts.is_deleting {
        return plan;
    }
    match &facts.told {
        _ if facts.cluster_goes => {
            plan.release_finalizer("the VM goes with its Cluster");
        }
        _ if facts.pool_goes => {
            plan.release_finalizer("the VM goes with its node pool");
        }
        Told::Nothing => {
            plan.wait(
                WAITING_FOR_POOL,
                "the node pool has not been looked at yet: its own conditions say why",
            );
        }
        Told::Off => {
            plan.release_finalizer("machines are switched off for the node pool: the VM stays");
        }
        Told::Absent => {
            plan.release_finalizer("Azure has no such VM");
        }
        Told::Present { vm, .. } if vm.machine.is_none() => {
            plan.release_finalizer("the VM joined the pool by itself and is not AKS's: it is not deleted")
                .warned("NotDeleted");
        }
        Told::Present { held, .. } => {
            let (reason, message) = held
                .clone()
                .unwrap_or((WAITING_FOR_POOL, "AKS is asked to delete the VM".to_owned()));
            plan.wait(reason, message);
        }
    }
    plan
}
