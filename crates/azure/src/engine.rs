//! What providers use: an [`Arm`] handle for one cluster that observes, ensures and deletes resources. One call is one
//! step; whatever takes longer is an [`Outcome`], and nothing is remembered that cannot be found out again.

mod ensure;
mod writes;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use azure_core::http::Transport;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use serde_json::Value;
use slipway_runtime::{Clock, Outcome, controller::Slot, metrics::Metrics};

pub use ensure::{Desired, Ensured};
use tokio::time::Instant;
use writes::{Content, Reason, Writes};

use crate::{
    arm::{Answer, ArmError, Client, ClientError, Operation, Poll, ResourceId, resource_state},
    budget::{Budget, Limits, Priority},
    cloud::Cloud,
    credential::{CredentialError, Credentials, Permission, Principal},
    metrics::AzureMetrics,
    transport::{TransportError, connect},
    tuning::Tuning,
    view::{Read, View, Views},
};

#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
}

/// Everything this process shares towards one Azure cloud.
#[derive(Clone)]
pub struct Azure {
    cloud: Cloud,
    transport: Transport,
    credentials: Credentials,
    budget: Budget,
    views: Views,
    tuning: Tuning,
    clock: Clock,
    operations: Arc<Mutex<HashMap<ResourceId, Operation>>>,
    writes: Writes,
    metrics: AzureMetrics,
}

impl fmt::Debug for Azure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Azure")
            .field("cloud", &self.cloud.name())
            .finish_non_exhaustive()
    }
}

impl Azure {
    pub fn new(cloud: Cloud, tuning: Tuning, clock: Clock) -> Result<Self, SetupError> {
        let transport = connect(&cloud, tuning.call_timeout)?;
        Ok(Self::over(cloud, tuning, clock, transport))
    }

    /// With a transport of one's own: a test's, or a simulator's.
    pub fn over(cloud: Cloud, tuning: Tuning, clock: Clock, transport: Transport) -> Self {
        Self {
            credentials: Credentials::new(transport.clone(), clock),
            budget: Budget::new(Limits::default().scaled(tuning.budget)),
            views: Views::default(),
            operations: Arc::default(),
            writes: Writes::default(),
            metrics: AzureMetrics::default(),
            cloud,
            transport,
            tuning,
            clock,
        }
    }

    pub fn cloud(&self) -> &Cloud {
        &self.cloud
    }

    /// Counts its requests in these, which other engines may count in too.
    #[must_use]
    pub fn counted_in(mut self, metrics: AzureMetrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// Shows what is counted, and what is left of the budget, under `/metrics`.
    pub fn show_metrics(&self, metrics: &Metrics) {
        self.metrics.register(metrics);
        self.metrics.show(&self.budget, metrics);
    }

    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// A handle for one cluster. `permission` proves that the cluster's namespace may use the identity.
    pub fn arm(
        &self,
        permission: &Permission,
        principal: Principal,
        subscription: &str,
        cluster: &str,
    ) -> Result<Arm, SetupError> {
        let identity = format!("{}/{}", principal.tenant_id, principal.client_id);
        let credential = principal.fingerprint(self.cloud.authority_host().as_str());
        let host = self.cloud.authority_host();
        let scope = self.cloud.scope();
        let mut credentials = vec![credential];
        let mut auxiliary = Vec::new();
        for other in principal.elsewhere() {
            credentials.push(other.fingerprint(host.as_str()));
            auxiliary.push(self.credentials.tokens(permission, other, &self.cloud, &scope)?);
        }
        let tokens = self
            .credentials
            .tokens(permission, principal, &self.cloud, &scope)?;
        let client = Client::new(
            self.cloud.clone(),
            self.transport.clone(),
            tokens,
            self.budget.clone(),
            self.clock,
            cluster,
            self.tuning.user_agent_suffix.as_deref(),
        )?
        .with_auxiliary(auxiliary)
        .with_budget_timeout(self.tuning.budget_timeout)
        .counted_in(self.metrics.clone());
        Ok(Arm {
            client,
            view: self.views.of(subscription, &identity),
            azure: self.clone(),
            subscription: subscription.to_owned(),
            credential,
            credentials,
            asked: Asked::default(),
            urgency: Urgency::default(),
        })
    }

    /// How many entries are held in memory, by what they are.
    pub fn held(&self) -> [(&'static str, usize); 4] {
        [
            ("azure_views", self.views.count()),
            ("azure_operations", self.operations.lock().len()),
            ("azure_writes", self.writes.len()),
            ("azure_credentials", self.credentials.len()),
        ]
    }
}

/// How much the reads for an object matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    /// Nothing says yet how the object stands as it is now: a read whose turn is far is given up, so that a condition can
    /// say so at once.
    Untold,
    /// Somebody waits for it.
    Awaited,
    /// All is well with it: reads let others go first.
    #[default]
    Settled,
}

impl Urgency {
    /// By what the status of an object says.
    pub fn of(ready: Option<bool>, observed_generation: Option<i64>, object: &ObjectMeta) -> Self {
        if observed_generation.is_none() || observed_generation != object.generation {
            Self::Untold
        } else if ready == Some(true) {
            Self::Settled
        } else {
            Self::Awaited
        }
    }

    pub(crate) fn priority(self) -> Priority {
        match self {
            Self::Untold | Self::Awaited => Priority::Change,
            Self::Settled => Priority::Refresh,
        }
    }
}

/// The resources that were asked about through a handle and its clones.
type Asked = Arc<Mutex<HashSet<ResourceId>>>;

/// What a resource looks like.
#[derive(Debug)]
pub struct Observation {
    /// As Azure shows it, or showed it before the operation that is under way; `None`: it does not exist, or cannot
    /// be told yet.
    pub body: Option<Arc<Value>>,
    /// Azure's word for what is under way.
    pub progress: Option<String>,
    /// Done: what is said here counts. Otherwise: poll again after that long.
    pub outcome: Outcome,
}

/// Azure for one cluster: its identity, its subscription, its share of the budget.
#[derive(Clone, Debug)]
pub struct Arm {
    client: Client,
    view: Arc<View>,
    azure: Azure,
    subscription: String,
    /// Tells one credential from another; a write that was refused is tried again with the next.
    credential: [u8; 32],
    /// The same with those in additional tenants.
    credentials: Vec<[u8; 32]>,
    asked: Asked,
    urgency: Urgency,
}

/// What became of an operation we know of.
enum Followed {
    Running {
        progress: String,
        after: Duration,
    },
    /// There was none, or it is over.
    Over,
}

impl Arm {
    pub fn subscription(&self) -> &str {
        &self.subscription
    }

    /// What a condition says while nothing is sent for so long because of a request limit.
    pub fn throttled(&self, after: Duration) -> String {
        throttled(after, self.azure.clock.now())
    }

    /// The client below, for requests that are neither observe nor ensure nor delete.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The same handle for an object whose reads matter this much.
    #[must_use]
    pub fn urgent(mut self, urgency: Urgency) -> Self {
        self.urgency = urgency;
        if urgency == Urgency::Untold {
            self.client.wait_briefly();
        }
        self
    }

    /// The same handle for a reconcile: while it stands in line, others have its slot.
    pub(crate) fn in_slot(mut self, slot: &Slot) -> Self {
        self.client.set_slot(slot.clone());
        self
    }

    /// Goes on for what another handle was used for: what is held for it is held for this one.
    pub(crate) fn succeeding(mut self, before: &Self) -> Self {
        self.asked = Arc::clone(&before.asked);
        self
    }

    /// Whether what is held for one is of use to the other.
    pub(crate) fn shares_view(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.view, &other.view)
    }

    pub(crate) fn shares_credential(&self, other: &Self) -> bool {
        self.credential == other.credential && self.azure.cloud == other.azure.cloud
    }

    /// Nobody asks for these resources any more: operations and waits of them, and what was read of them, are dropped.
    pub(crate) fn forget_resources(&self) {
        for id in self.asked.lock().drain() {
            self.azure.operations.lock().remove(&id);
            self.azure.writes.forget(&id);
            self.view.forget(&id);
        }
    }

    /// Nobody looks at the subscription as this identity any more.
    pub(crate) fn forget_view(&self) {
        self.azure.views.forget(&self.view);
    }

    pub(crate) fn forget_credential(&self) {
        for credential in &self.credentials {
            self.azure.credentials.forget(credential);
        }
    }

    fn note(&self, id: &ResourceId) {
        let mut asked = self.asked.lock();
        if !asked.contains(id) {
            asked.insert(id.clone());
        }
    }

    /// How old a read may be at rest.
    pub fn max_read_age(&self) -> Duration {
        self.azure.tuning.max_read_age
    }

    /// How old the read of what no list shows may be.
    pub fn child_read_age(&self) -> Duration {
        self.azure.tuning.child_read_age
    }

    fn read_age(&self, id: &ResourceId, asked: Option<Duration>) -> Duration {
        asked.unwrap_or_else(|| {
            let direct = id.as_str().split('/').count() <= 9;
            let shown = id.resource_type().to_ascii_lowercase();
            if direct || shown.ends_with("/agentpools") || shown.ends_with("/subnets") {
                self.azure.tuning.max_read_age
            } else {
                self.azure.tuning.child_read_age
            }
        })
    }

    /// What the resource looks like, read no longer ago than the tuning (or `max_age`) allows.
    pub async fn observe(
        &self,
        id: &ResourceId,
        api_version: &str,
        max_age: Option<Duration>,
    ) -> Result<Observation, ArmError> {
        self.note(id);
        if let Followed::Running { progress, after } = self.follow(id).await? {
            return Ok(Observation {
                // What it was before still tells its address and its version.
                body: self.view.last(id, api_version),
                progress: Some(progress),
                outcome: Outcome::InProgress(after),
            });
        }
        let read = self
            .view
            .read(
                &self.client,
                id,
                api_version,
                self.read_age(id, max_age),
                self.urgency.priority(),
            )
            .await?;
        Ok(self.observation(read))
    }

    /// What the resource looks like now, asked for alone: for decisions that absence must be certain for.
    pub async fn observe_known(&self, id: &ResourceId, api_version: &str) -> Result<Observation, ArmError> {
        let read = self
            .view
            .get(&self.client, id, api_version, Priority::Change)
            .await?;
        Ok(self.observation(read))
    }

    fn observation(&self, read: Read) -> Observation {
        match read {
            Read::Throttled(after) => Observation {
                body: None,
                progress: None,
                outcome: Outcome::Throttled(after),
            },
            Read::Absent { .. } => Observation {
                body: None,
                progress: None,
                outcome: Outcome::Done,
            },
            Read::Present { body, .. } => {
                let progress = moving(&body);
                Observation {
                    outcome: progress
                        .as_ref()
                        .map_or(Outcome::Done, |_| Outcome::InProgress(self.azure.tuning.requeue)),
                    progress,
                    body: Some(body),
                }
            }
        }
    }

    /// Asks once how the operation on this resource stands, if we started one.
    async fn follow(&self, id: &ResourceId) -> Result<Followed, ArmError> {
        let Some(operation) = self.azure.operations.lock().get(id).cloned() else {
            return Ok(Followed::Over);
        };
        let poll = match self.client.poll(&operation).await {
            Err(ArmError::Budget { after, .. }) => {
                return Ok(Followed::Running {
                    progress: String::new(),
                    after,
                });
            }
            other => other?,
        };
        match poll {
            Poll::Running { progress, after } => Ok(Followed::Running { progress, after }),
            Poll::Succeeded { remark } => {
                if let Some(remark) = remark {
                    tracing::info!(resource = %id, code = remark.code, message = remark.message, "Azure finished the operation with a remark");
                }
                self.over(id);
                self.azure.writes.succeeded(id, Instant::now());
                Ok(Followed::Over)
            }
            Poll::Canceled | Poll::Forgotten => {
                self.over(id);
                Ok(Followed::Over)
            }
            Poll::Failed(refusal) => {
                self.over(id);
                let error = ArmError::Refused {
                    doing: "changing",
                    target: id.to_string(),
                    refusal,
                };
                self.azure.writes.operation_failed(id, &error, Instant::now());
                Err(error)
            }
        }
    }

    fn over(&self, id: &ResourceId) {
        self.azure.operations.lock().remove(id);
        self.view.touch(id);
    }

    /// Makes the resource go away, unless another than `owner` has its mark on it. Done: it is gone.
    pub async fn delete(
        &self,
        id: &ResourceId,
        api_version: &str,
        owner: Option<&str>,
    ) -> Result<Ensured, ArmError> {
        self.note(id);
        match self.follow(id).await {
            Ok(Followed::Running { progress, after }) => {
                return Ok(Ensured::waiting(Outcome::InProgress(after), Some(progress)));
            }
            // A change that failed is no reason not to delete.
            Ok(Followed::Over) | Err(ArmError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
        let body = match self
            .view
            .get(&self.client, id, api_version, Priority::Change)
            .await?
        {
            Read::Throttled(after) => return Ok(Ensured::waiting(Outcome::Throttled(after), None)),
            Read::Absent { .. } => return Ok(Ensured::done(None)),
            Read::Present { body, .. } => body,
        };
        if let Some(progress) = moving(&body)
            && (progress.eq_ignore_ascii_case("deleting") || progress.eq_ignore_ascii_case("leaving"))
        {
            return Ok(Ensured::waiting(
                Outcome::InProgress(self.azure.tuning.requeue),
                Some(progress),
            ));
        }
        ensure::refuse_foreign(id, Some(&body), owner)?;
        let content = Content::of(b"DELETE", &self.credential);
        if let Some(held) = self.azure.writes.held(id, content, Instant::now()) {
            return held.ended("deleting", id);
        }
        let answer = self.client.delete(id, api_version).await;
        self.view.touch(id);
        Ok(match answer {
            // Gone before we came, or deleted at once.
            Ok(Answer::NotFound | Answer::Done(_)) => {
                self.azure.writes.succeeded(id, Instant::now());
                Ensured::done(None)
            }
            Ok(Answer::Accepted { operation, after, .. }) => {
                self.azure.writes.accepted(id, content, Instant::now());
                self.azure.operations.lock().insert(id.clone(), operation);
                Ensured::waiting(Outcome::InProgress(after), Some("Deleting".to_owned()))
            }
            other => return self.not_accepted("deleting", id, content, other),
        })
    }
}

impl Arm {
    /// Asks for an action on the resource, whose operation is followed as that of a change. The same is not sent again while it
    /// runs, nor before the wait after a refusal is over.
    pub async fn ask(
        &self,
        id: &ResourceId,
        action: &str,
        api_version: &str,
        body: &Value,
    ) -> Result<Ensured, ArmError> {
        self.note(id);
        if let Followed::Running { progress, after } = self.follow(id).await? {
            return Ok(Ensured::waiting(Outcome::InProgress(after), Some(progress)));
        }
        let content = Content::of(format!("{action} {body}").as_bytes(), &self.credential);
        if let Some(held) = self.azure.writes.held(id, content, Instant::now()) {
            return held.ended("changing", id);
        }
        tracing::info!(resource = %id, action, %body, "Asking for an action on the resource in Azure");
        let answer = self.client.post(id, action, api_version, Some(body)).await;
        self.view.touch(id);
        match answer {
            Ok(Answer::Done(_)) => {
                self.azure.writes.succeeded(id, Instant::now());
                Ok(Ensured::done(None))
            }
            Ok(Answer::Accepted { operation, after, .. }) => {
                self.azure.writes.accepted(id, content, Instant::now());
                self.azure.operations.lock().insert(id.clone(), operation);
                Ok(Ensured::waiting(Outcome::InProgress(after), None))
            }
            other => self.not_accepted("changing", id, content, other),
        }
    }

    /// A write was not accepted: the wait before the same is sent again begins.
    fn not_accepted(
        &self,
        doing: &'static str,
        id: &ResourceId,
        content: Content,
        answer: Result<Answer, ArmError>,
    ) -> Result<Ensured, ArmError> {
        let reason = match answer {
            Ok(Answer::Busy { message, after }) => Reason::Busy { message, after },
            Ok(Answer::Throttled(after)) => Reason::Throttled { after },
            Err(ArmError::Refused { refusal, .. }) => Reason::Refused(refusal),
            Err(ArmError::Unreachable { reason, .. }) => Reason::Unreachable(reason),
            Err(ArmError::Unreadable { reason, .. }) => Reason::Unreadable(reason),
            // Nothing was sent: our own budget says when it may be.
            Err(ArmError::Budget { after, .. }) => {
                return Ok(Ensured::waiting(Outcome::Throttled(after), None));
            }
            Err(error) => return Err(error),
            Ok(_) => {
                return Ok(Ensured::waiting(
                    Outcome::InProgress(self.azure.tuning.requeue),
                    None,
                ));
            }
        };
        let held = self.azure.writes.failed(id, content, reason, Instant::now());
        held.ended(doing, id)
    }
}

/// What a condition says about a request limit. It names the moment and not the time that is left, and that by the next ten
/// seconds: others join and leave the line, and every other text is a write that wakes whoever watches the object.
pub fn throttled(after: Duration, now: jiff::Timestamp) -> String {
    let until = now.checked_add(after).unwrap_or(jiff::Timestamp::MAX);
    let next = (until.as_millisecond() + 9_999).div_euclid(10_000) * 10;
    let until = jiff::Timestamp::from_second(next).unwrap_or(until);
    format!("the requests to Azure that are allowed are spent: the next one for this is sent by {until}")
}

/// What is under way, if the body says so.
fn moving(body: &Value) -> Option<String> {
    match resource_state(body) {
        crate::arm::State::Moving(state) => Some(state.to_owned()),
        _ => None,
    }
}
