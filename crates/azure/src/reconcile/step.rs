//! One step towards a resource's desired state or towards its deletion, and the words for how a step went.

use std::{borrow::Cow, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use slipway_capi::frame::Plan;
use slipway_runtime::Outcome;

use super::{
    error::Error,
    observations::{Observations, OperationStatus, state},
    records::Records,
    state::ResourceState,
};
use crate::{
    Arm, ArmError, Desired, Ensured, ResourceId, Tuning,
    resource::{AsoObject, Put, Reference, Resolver, to_arm},
    tuning::READ_AGE_ANNOTATION,
};

/// How a step went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepStatus {
    Done,
    /// Under way, with Azure's word for it.
    Creating(String),
    Updating(String),
    Deleting(String),
    Deleted,
    /// Refused, with Azure's error code and message; terminal if only a change of the objects helps.
    Failed {
        code: String,
        message: String,
        terminal: bool,
    },
    /// Something else must come first.
    Waiting {
        reason: Cow<'static, str>,
        message: String,
    },
}

impl StepStatus {
    /// One word for it, as in a condition's reason.
    pub fn reason(&self) -> &str {
        match self {
            Self::Done => "Succeeded",
            Self::Creating(_) => "Creating",
            Self::Updating(_) => "Updating",
            Self::Deleting(_) => "Deleting",
            Self::Deleted => "Deleted",
            Self::Failed { code, .. } if code.is_empty() => "Failed",
            Self::Failed { code, .. } => code,
            Self::Waiting { reason, .. } => reason,
        }
    }

    pub fn message(&self) -> &str {
        match self {
            Self::Done | Self::Deleted => "",
            Self::Creating(text) | Self::Updating(text) | Self::Deleting(text) => text,
            Self::Failed { message, .. } | Self::Waiting { message, .. } => message,
        }
    }

    /// How bad it is; the least is the worst.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Failed { terminal: true, .. } => 0,
            Self::Failed { .. } => 1,
            Self::Deleted => 3,
            Self::Done => 4,
            _ => 2,
        }
    }
}

/// What a step came to, for the status and for the queue.
#[derive(Debug)]
pub struct StepResult {
    pub status: StepStatus,
    pub outcome: Outcome,
    pub error: Option<Error>,
    /// What was sent, and why; `None` if nothing was.
    pub sent: Option<String>,
}

impl StepResult {
    pub fn failed(error: Error) -> Self {
        Self {
            status: error.status(),
            outcome: Outcome::Done,
            error: Some(error),
            sent: None,
        }
    }

    pub fn done(status: StepStatus) -> Self {
        Self {
            status,
            outcome: Outcome::Done,
            error: None,
            sent: None,
        }
    }

    pub fn waiting(status: StepStatus, outcome: Outcome) -> Self {
        Self {
            status,
            outcome,
            error: None,
            sent: None,
        }
    }

    /// The same failure, with a message of one's own.
    #[must_use]
    pub fn saying(mut self, text: String) -> Self {
        if let StepStatus::Failed { message, .. } = &mut self.status {
            *message = text;
        }
        self
    }

    pub fn is_done(&self) -> bool {
        self.error.is_none() && self.outcome.is_done()
    }
}

/// The reason of a condition while nothing is sent because of a request limit.
pub const THROTTLED: &str = "Throttled";

/// The words for something under way: what it is, and Azure's own word where that says more.
fn in_progress(
    arm: &Arm,
    id: &str,
    state: &ResourceState,
    progress: Option<String>,
    outcome: Outcome,
) -> StepStatus {
    let progress = progress.filter(|text| !text.is_empty());
    if let (Outcome::Throttled(after), None) = (outcome, &progress) {
        return StepStatus::Waiting {
            reason: THROTTLED.into(),
            message: arm.throttled(after),
        };
    }
    let word = progress.unwrap_or_else(|| state.provisioning_state().unwrap_or_default().to_owned());
    match state.provisioning_state() {
        Some("Deleting" | "Leaving") => StepStatus::Deleting(under_way("deleting", id, &word)),
        None | Some("Creating" | "Joining") => StepStatus::Creating(under_way("creating", id, &word)),
        Some(_) => StepStatus::Updating(under_way("updating", id, &word)),
    }
}

/// Words of Azure for something under way that say nothing but that.
const EMPTY_WORDS: &[&str] = &[
    "",
    "accepted",
    "creating",
    "deleting",
    "inprogress",
    "joining",
    "leaving",
    "running",
    "updating",
];

/// `Azure is creating managedClusters/fleet: ProvisioningControlPlane`.
pub fn under_way(verb: &str, id: &str, word: &str) -> String {
    let mut parts = id.rsplit('/');
    let name = parts.next().unwrap_or_default();
    let kind = parts.next().unwrap_or_default();
    let says_nothing = EMPTY_WORDS.iter().any(|empty| word.eq_ignore_ascii_case(empty));
    if says_nothing {
        format!("Azure is {verb} {kind}/{name}")
    } else {
        format!("Azure is {verb} {kind}/{name}: {word}")
    }
}

struct Ids<'a>(&'a str);

impl Resolver for Ids<'_> {
    fn subscription(&self) -> &str {
        self.0
    }

    /// Our manifests name resources by ARM id alone; a patch that names an object gets an error that says so.
    fn resource(&self, _reference: &Reference) -> Option<String> {
        None
    }
}

/// The request that a manifest stands for.
pub fn put(manifest: &Value, subscription: &str) -> Result<Put, Error> {
    Ok(to_arm(&AsoObject::parse(manifest)?, &Ids(subscription))?)
}

/// The version of Azure's API a manifest speaks.
pub fn api_version(manifest: &Value) -> Result<String, Error> {
    Ok(AsoObject::parse(manifest)?.mapping.api_version)
}

/// The read age an object asks for by annotation; one that cannot be read is none.
pub fn read_age(metadata: &ObjectMeta) -> Option<Duration> {
    let text = metadata.annotations.as_ref()?.get(READ_AGE_ANNOTATION)?;
    Tuning::read_age_of(text).ok()
}

/// An object that asks for fresher reads is reconciled as often, since nothing is read for an object that nobody reconciles.
pub fn revisit<A>(mut plan: Plan<A>, metadata: &ObjectMeta) -> Plan<A> {
    const MOST_OFTEN: Duration = Duration::from_secs(1);
    if let Some(age) = read_age(metadata) {
        plan.revisit(age.max(MOST_OFTEN), "the object asks for reads as fresh as this");
    }
    plan
}

/// One step towards the state that a manifest describes.
pub async fn ensure(
    arm: &Arm,
    id: &str,
    manifest: &Value,
    observations: &mut Observations,
    records: &mut Records,
    max_age: Option<Duration>,
) -> StepResult {
    let put = put(manifest, arm.subscription());
    ensure_put(arm, id, put, observations, records, max_age).await
}

/// One step towards the state that a request describes. Why there is none is told once nothing else is under way.
pub async fn ensure_put(
    arm: &Arm,
    id: &str,
    put: Result<Put, Error>,
    observations: &mut Observations,
    records: &mut Records,
    max_age: Option<Duration>,
) -> StepResult {
    let found = observations.state_of(id).clone();
    match observations.take_operation(id) {
        Some(OperationStatus::Busy { progress, outcome }) => {
            return StepResult::waiting(in_progress(arm, id, &found, progress, outcome), outcome);
        }
        Some(OperationStatus::Failed(error)) => return StepResult::failed(error),
        None => {}
    }
    let put = match put {
        Ok(put) => put,
        Err(error) => return StepResult::failed(error),
    };
    let mut desired = Desired::new(&put, records.record(id));
    desired.max_read_age = max_age;
    desired.owner = records.mark();
    let Ensured {
        outcome,
        body,
        progress,
        differences,
        record,
    } = match arm.ensure(&desired).await {
        Ok(ensured) => ensured,
        Err(error) => return StepResult::failed(error.into()),
    };
    let sent = (!differences.is_empty() || (found.is_absent() && record.is_some())).then(|| {
        differences
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    });
    if let Some(record) = record {
        records.keep(id, record);
    }
    let now = body.as_ref().map_or(found, |body| state(Some(body)));
    let status = if outcome.is_done() {
        StepStatus::Done
    } else {
        in_progress(arm, id, &now, progress, outcome)
    };
    observations.states.insert(id.to_lowercase(), now);
    StepResult {
        status,
        outcome,
        error: None,
        sent,
    }
}

/// One step towards a resource being gone.
pub async fn delete(
    arm: &Arm,
    id: &str,
    api_version: &str,
    observations: &mut Observations,
    records: &mut Records,
) -> StepResult {
    if let Some(OperationStatus::Busy { progress, outcome }) = observations.take_operation(id) {
        let deleting = ResourceState::Present(json!({"properties": {"provisioningState": "Deleting"}}));
        return StepResult::waiting(in_progress(arm, id, &deleting, progress, outcome), outcome);
    }
    let parsed = match ResourceId::parse(id) {
        Ok(parsed) => parsed,
        Err(error) => return StepResult::failed(ArmError::from(error).into()),
    };
    match arm.delete(&parsed, api_version, records.mark()).await {
        Ok(ensured) if ensured.outcome.is_done() => {
            records.forget(id);
            observations
                .states
                .insert(id.to_lowercase(), ResourceState::Absent);
            StepResult::done(StepStatus::Deleted)
        }
        Ok(ensured) => {
            let deleting = ResourceState::Present(json!({"properties": {"provisioningState": "Deleting"}}));
            let status = in_progress(arm, id, &deleting, ensured.progress, ensured.outcome);
            StepResult::waiting(status, ensured.outcome)
        }
        Err(error) => StepResult::failed(error.into()),
    }
}

/// An action on a resource that is there, e.g. the deletion of some of its machines.
pub async fn ask(arm: &Arm, id: &str, action: &str, api_version: &str, body: &Value) -> StepResult {
    let parsed = match ResourceId::parse(id) {
        Ok(parsed) => parsed,
        Err(error) => return StepResult::failed(ArmError::from(error).into()),
    };
    match arm.ask(&parsed, action, api_version, body).await {
        Ok(ensured) if ensured.outcome.is_done() => StepResult::done(StepStatus::Done),
        Ok(ensured) => {
            let updating = ResourceState::Present(json!({"properties": {"provisioningState": "Updating"}}));
            let status = in_progress(arm, id, &updating, ensured.progress, ensured.outcome);
            StepResult::waiting(status, ensured.outcome)
        }
        Err(error) => StepResult::failed(error.into()),
    }
}
