//! What the plans of every Azure provider say in the same words: how a resource in Azure differs, what keeps a reconcile from
//! going on, and how entries are shown in conditions. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use slipway_capi::frame::{Attempt, Entry, Failure, Plan, Progress, Wait};
use slipway_runtime::{Class, Classified, Outcome};

use super::{
    error::Error,
    observations::{Observations, OperationStatus},
    state::ResourceState,
    step::{StepStatus, THROTTLED},
};
use crate::{
    Desired,
    diff::{Difference, Edit, Record},
    engine::throttled,
    resource::Put,
};

/// Lets a vanished AKS cluster be created again.
pub const RECREATE: &str = "slipway.dev/recreate";
/// The reason of a resource of which Azure has not told.
pub const WAITING_FOR_AZURE: &str = "WaitingForAzure";
/// The reason of a resource that was there and is gone.
pub const VANISHED: &str = "Vanished";
/// The reason of a pool that cannot go.
pub const LAST_SYSTEM_POOL: &str = "LastSystemPool";
/// The reason of a resource that belongs to another.
pub const OWNED_BY_ANOTHER: &str = "OwnedByAnother";
/// After a write that the next reconcile builds on: the caches hold that reconcile back until they show it.
pub const SOON: Duration = Duration::from_millis(50);
/// Azure has not told what is there and named no time.
pub const ASK_AGAIN: Duration = Duration::from_secs(15);
/// Whose a resource is changes in Azure, where nothing can be watched.
pub const OWNER_CHECK: Duration = Duration::from_mins(1);
/// Lets an object be deleted though what it made in Azure cannot be.
pub const ORPHAN: &str = "slipway.dev/orphan";
/// Something that failed while observing, as conditions and the queue say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// A condition's reason.
    pub code: String,
    pub message: String,
    pub class: Class,
}

impl Problem {
    pub fn of(error: &Error) -> Self {
        let (code, message) = match error.status() {
            StepStatus::Failed { code, message, .. } => (code, message),
            _ => (error.code().to_owned(), error.to_string()),
        };
        Self {
            code,
            message,
            class: error.class(),
        }
    }

    /// Nothing planned after this is done.
    pub fn block<'a, A>(&self, plan: &'a mut Plan<A>) -> &'a mut Entry<A> {
        plan.blocked(self.code.clone(), self.message.clone(), self.class)
    }
}

/// Why the state of a resource is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Azure did not say why.
    Silent,
    /// An operation runs.
    Busy {
        progress: String,
        after: Duration,
    },
    /// Nothing is asked before that, because of a request limit.
    Throttled(Duration),
    Failed(Problem),
}

impl Unknown {
    pub fn of(observations: &Observations, id: &str) -> Self {
        match observations.operation(id) {
            None => Self::Silent,
            Some(OperationStatus::Busy { progress, outcome }) => match outcome {
                Outcome::Throttled(after) => Self::Throttled(*after),
                Outcome::InProgress(after) => Self::Busy {
                    progress: progress.clone().unwrap_or_default(),
                    after: *after,
                },
                Outcome::Done => Self::Silent,
            },
            Some(OperationStatus::Failed(error)) => Self::Failed(Problem::of(error)),
        }
    }

    /// Nothing is done for a resource whose state is not known.
    pub fn wait<'a, A>(&self, plan: &'a mut Plan<A>, id: &str, now: Timestamp) -> &'a mut Entry<A> {
        let (reason, silent) = (
            WAITING_FOR_AZURE,
            format!("Azure has not answered yet about {id}"),
        );
        match self {
            Self::Failed(problem) => problem.block(plan),
            Self::Silent => plan.wait(reason, silent).until(later(now, ASK_AGAIN)),
            Self::Busy { progress, after } => plan.wait(reason, progress).until(later(now, *after)),
            Self::Throttled(after) => {
                plan.blocked(THROTTLED, throttled(*after, now), Class::Throttled(*after))
            }
        }
    }
}

/// Why nothing is sent for a resource now, although its state is known.
pub fn occupied(state: &ResourceState, unknown: Option<&Unknown>) -> Option<String> {
    let is_over = |state: &str| matches!(state, "Succeeded" | "Failed" | "Canceled");
    match (unknown, state.provisioning_state()) {
        (Some(Unknown::Failed(_)), _) => Some("its last operation failed".to_owned()),
        (Some(Unknown::Busy { .. } | Unknown::Throttled(_)), _) => Some("Azure is at work on it".to_owned()),
        (_, Some(state)) if !is_over(state) => Some(format!("Azure is at work on it: {state}")),
        _ => None,
    }
}

pub fn later(now: Timestamp, after: Duration) -> Timestamp {
    now.checked_add(after).unwrap_or(Timestamp::MAX)
}

/// Why a resource is compared though nothing differs.
const SETTLING: &str = "what Azure made of it is noted";

/// Why something is sent for a resource, or learnt about it.
pub struct Comparison {
    pub why: String,
    pub differences: Vec<Difference>,
    /// The event when it was sent; `None`: nothing is sent.
    pub event: Option<&'static str>,
}

impl Comparison {
    /// Whether nothing is sent because what was sent last has come about.
    pub fn is_settling(&self) -> bool {
        self.why == SETTLING
    }

    /// Says on an entry what it changes.
    pub fn describe<A>(&self, entry: &mut Entry<A>) {
        changing(entry, &self.differences);
        if let Some(event) = self.event {
            entry.announced(event);
        }
    }
}

/// The events of what is sent.
const SENT: &[&str] = &["Creating", "Updating", "Upgrading"];

/// Whether an entry that compares a resource with Azure sends something.
pub fn sends<A>(entry: &Entry<A>) -> bool {
    !entry.differences.is_empty() || entry.event.is_some_and(|event| SENT.contains(&event.reason))
}

/// Where the bodies of clusters and pools name the Kubernetes version.
const VERSIONS: &[&str] = &["properties.kubernetesVersion", "properties.orchestratorVersion"];

/// Whether AKS has stopped the cluster. While it stops or starts it, it is at work.
pub fn is_stopped(cluster: &ResourceState) -> bool {
    let code = cluster
        .body()
        .and_then(|body| body.pointer("/properties/powerState/code"));
    code.is_some_and(|code| code == "Stopped") && occupied(cluster, None).is_none()
}

/// Whether a deletion in Azure has begun.
pub fn is_going(state: &ResourceState, unknown: Option<&Unknown>) -> bool {
    matches!(unknown, Some(Unknown::Busy { .. } | Unknown::Throttled(_)))
        || matches!(state.provisioning_state(), Some("Deleting" | "Leaving"))
}

/// Compares a resource with its desired state. `None`: it is as it should be, and that was noted. Without a request that could
/// be made, nothing differs; sending it tells why.
pub fn compare(
    put: Option<&Put>,
    state: &ResourceState,
    unknown: Option<&Unknown>,
    record: Option<&Record>,
) -> Option<Comparison> {
    let because = |why: &str, differences, event| {
        Some(Comparison {
            why: why.to_owned(),
            differences,
            event,
        })
    };
    if let Some(why) = occupied(state, unknown) {
        return because(&why, Vec::new(), None);
    }
    if state.is_absent() {
        return because("Azure has none", Vec::new(), Some("Creating"));
    }
    let Some((put, body)) = put.zip(state.body()) else {
        return because(SETTLING, Vec::new(), None);
    };
    let desired = Desired::new(put, record);
    let differences = desired.differences(body);
    if !differences.is_empty() {
        let upgrades = differences
            .iter()
            .any(|difference| VERSIONS.contains(&difference.path.as_str()));
        let event = if upgrades { "Upgrading" } else { "Updating" };
        return because("it differs from what is desired", differences, Some(event));
    }
    if desired.is_at_rest(body) {
        return None;
    }
    because(SETTLING, Vec::new(), None)
}

/// Whether the user lets go of what the object made in Azure.
pub fn is_orphaned(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.get(ORPHAN).is_some_and(|value| value == "true"))
}

/// What a deleted object says that cannot sign in while something of it is in Azure.
pub fn remains(problem: &Problem, remaining: &[String], kind: &str) -> Problem {
    let message = format!(
        "{}. In Azure remain {}: mend the sign-in, or annotate the {kind} with {ORPHAN}: \"true\" to let go of them",
        problem.message,
        remaining.join(", ")
    );
    Problem {
        message,
        ..problem.clone()
    }
}

/// Whether the object was ready for what is asked for now.
pub fn was_ready(ready: Option<bool>, observed_generation: Option<i64>, object: &impl Resource) -> bool {
    ready == Some(true) && observed_generation == object.meta().generation
}

/// Whether all that went wrong passes by itself: Azure did not answer, or was not asked because of a request limit.
pub fn is_unanswered<A>(progress: &Progress<A, Error>) -> bool {
    let is_passing = |class| matches!(class, Class::Transient | Class::Conflict | Class::Throttled(_));
    let throttled = progress
        .entries()
        .any(|(_, attempt)| matches!(attempt, Attempt::Came(Outcome::Throttled(_))));
    progress.classes().all(is_passing) && (throttled || progress.classes().next().is_some())
}

/// Says what of a resource in Azure an action changes. Secrets have no explanation.
pub fn changing<'a, A>(entry: &'a mut Entry<A>, differences: &[Difference]) -> &'a mut Entry<A> {
    for difference in differences {
        let explanation = difference.explanation.as_str();
        let (from, to) = match difference.change {
            Edit::Add => (
                "nothing",
                if explanation.is_empty() {
                    "set"
                } else {
                    explanation
                },
            ),
            Edit::Remove => (
                if explanation.is_empty() {
                    "set"
                } else {
                    explanation
                },
                "nothing",
            ),
            Edit::Update => explanation
                .split_once(" to ")
                .unwrap_or(("another", "the desired")),
        };
        entry.changing(difference.path.clone(), from, to);
    }
    entry
}

/// How a wait of the plan is shown in a condition.
pub fn shown(wait: &Wait, message: &str) -> StepStatus {
    match wait.class {
        None | Some(Class::Throttled(_)) => StepStatus::Waiting {
            reason: wait.reason.clone().into(),
            message: message.to_owned(),
        },
        Some(class) => StepStatus::Failed {
            code: wait.reason.clone(),
            message: message.to_owned(),
            terminal: matches!(class, Class::Terminal | Class::Denied),
        },
    }
}

/// How a failed action is shown in a condition.
pub fn failed(attempt: &Attempt<Error>) -> Option<StepStatus> {
    match attempt {
        Attempt::Failed(Failure::Kind(error)) => Some(error.status()),
        _ => None,
    }
}
