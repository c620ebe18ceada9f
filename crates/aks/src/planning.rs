//! What the plans of control planes and pools wait for, and how a resource in Azure is compared with its manifest; the rest is
//! every Azure provider's. Pure.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
pub use slipway_azure::reconcile::planning::{
    ASK_AGAIN, Comparison, ORPHAN, OWNER_CHECK, Problem, SOON, Unknown, failed, is_going, is_orphaned,
    is_stopped, is_unanswered, later, occupied, remains, shown, was_ready,
};
use slipway_azure::{
    diff::Record,
    ownership::Foreign,
    reconcile::{ResourceKind, ResourceState, StepStatus, planning, step},
};
use slipway_capi::frame::{Entry, Plan};
use slipway_runtime::Class;

use crate::{api::V1Beta2Conditions, render::RenderError, status};

/// The desired state of one resource in Azure, and where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredResource {
    pub kind: ResourceKind,
    pub id: String,
    pub manifest: Value,
}

/// Why nothing is done for now. None of these is an error; what is waited for is watched, or the time is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Waiting {
    /// No pool to create the cluster with yet; after `until` a default pool is made.
    ForSystemPool {
        until: Timestamp,
    },
    /// A system pool object exists, its MachinePool does not.
    ForMachinePool {
        pool: String,
    },
    /// `defaultPoolTemplate.machinePoolRef` names a pool that does not exist.
    ForReferencedPool {
        pool: String,
    },
    ForControlPlane,
    /// Deleting it would leave the cluster without a system pool.
    ForAnotherSystemPool,
    /// It belongs to another: nothing is written to it and nothing goes on.
    OwnedByAnother {
        id: String,
        foreign: Foreign,
    },
    /// The AKS cluster is gone, and nothing here deleted it.
    Vanished {
        id: String,
    },
    /// The AKS cluster is stopped: AKS takes no changes.
    ForStart {
        id: String,
    },
    /// The objects ask for something that cannot be made; a change of them is waited for.
    ForTheUser(RenderError),
}

impl From<RenderError> for Waiting {
    fn from(error: RenderError) -> Self {
        Self::ForTheUser(error)
    }
}

/// The objects that are detached are not watched: their kinds may not be installed.
pub const TAKING_OVER: Duration = Duration::from_secs(1);

/// Reason and message of a wait.
pub fn words(waiting: &Waiting) -> (String, String) {
    match status::waiting(waiting) {
        StepStatus::Waiting { reason, message } => (reason.into_owned(), message),
        _ => (String::new(), String::new()),
    }
}

/// Waits for something of ours, or for the user.
pub fn wait<'a, A>(plan: &'a mut Plan<A>, waiting: &Waiting, now: Timestamp) -> &'a mut Entry<A> {
    let (reason, message) = words(waiting);
    match waiting {
        Waiting::ForTheUser(_) => plan.blocked(reason, message, Class::Terminal),
        Waiting::ForSystemPool { until } => plan.wait(reason, message).until(*until),
        Waiting::OwnedByAnother { .. } | Waiting::Vanished { .. } | Waiting::ForStart { .. } => {
            plan.wait(reason, message).until(later(now, OWNER_CHECK))
        }
        // AKS tells of another system pool only when asked.
        Waiting::ForAnotherSystemPool => plan.wait(reason, message).until(later(now, ASK_AGAIN)),
        _ => plan.wait(reason, message),
    }
}

/// Whether a condition already has this reason: what is recorded once has been.
pub fn has_reason(conditions: Option<&V1Beta2Conditions>, type_: &str, reason: &str) -> bool {
    let mut all = conditions.iter().flat_map(|v1beta2| &v1beta2.conditions);
    all.any(|one| one.type_ == type_ && one.reason == reason)
}

/// Compares a resource with its desired state. `None`: it is as it should be, and that was noted.
pub fn compare(
    desired: &DesiredResource,
    subscription: &str,
    state: &ResourceState,
    unknown: Option<&Unknown>,
    record: Option<&Record>,
) -> Option<Comparison> {
    let put = step::put(&desired.manifest, subscription).ok();
    planning::compare(put.as_ref(), state, unknown, record)
}
