//! One call, one request: a thin client on `azure_core`'s pipeline with retries off. It takes a turn from the budget,
//! a token from the identity, and turns what comes back into an [`Answer`]. The queue retries, the call does not.

use std::{fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use azure_core::http::{
    ClientOptions, Context, Method, Pipeline, PipelineSendOptions, Request, RetryOptions, Transport,
    UserAgentOptions,
    headers::{HeaderValue, Headers},
};
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use slipway_runtime::{Clock, controller::Slot};
use tokio::time::{Instant, timeout};
use url::Url;

use super::{
    error::{ArmError, RetryPolicy},
    id::ResourceId,
    operation::{Operation, Poll},
    reply::{Answer, Reply},
};
use crate::{
    budget::{BucketKey, Budget, PermitRequest, Priority},
    cloud::Cloud,
    credential::CredentialError,
    metrics::AzureMetrics,
};

/// A change whose turn is further away goes back to its queue.
const WORTH_WAITING: Duration = Duration::from_secs(1);

/// A bearer token.
#[derive(Clone, Debug)]
pub struct Token {
    pub secret: SecretString,
    pub expires: Timestamp,
}

/// Where the client gets its bearer token from.
#[async_trait::async_trait]
pub trait Tokens: Send + Sync + fmt::Debug {
    async fn token(&self) -> Result<Token, CredentialError>;

    /// Azure did not accept the token: the next one must be a new one.
    fn refused(&self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    Get,
    Put,
    Patch,
    Delete,
    Post,
}

impl Verb {
    fn method(self) -> Method {
        match self {
            Self::Get => Method::Get,
            Self::Put => Method::Put,
            Self::Patch => Method::Patch,
            Self::Delete => Method::Delete,
            Self::Post => Method::Post,
        }
    }

    /// As HTTP spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Post => "POST",
        }
    }

    fn doing(self) -> &'static str {
        match self {
            Self::Get => "reading",
            Self::Put => "writing",
            Self::Patch => "patching",
            Self::Delete => "deleting",
            Self::Post => "asking",
        }
    }
}

/// One request, ready to be sent.
pub struct Call<'a> {
    pub verb: Verb,
    /// What is asked about: it decides the budget and is named in errors.
    pub target: &'a ResourceId,
    /// The whole address, if it is not `target` itself (an operation, a page, an action).
    pub address: Url,
    pub body: Option<&'a Value>,
    pub if_match: Option<&'a str>,
    pub if_none_match: Option<&'a str>,
    pub priority: Priority,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Call")
            .field("verb", &self.verb)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// One page of a list.
#[derive(Debug)]
pub struct Page {
    pub items: Vec<Value>,
    pub next: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{0:?} cannot be part of a user agent: use up to 24 letters, digits, dots, dashes or slashes")]
    BadUserAgent(String),
}

/// Requests of one cluster, under one identity.
#[derive(Clone)]
pub struct Client {
    pipeline: Pipeline,
    cloud: Cloud,
    tokens: Arc<dyn Tokens>,
    /// Tokens of other tenants, shown beside its own.
    auxiliary: Vec<Arc<dyn Tokens>>,
    budget: Budget,
    clock: Clock,
    cluster: Arc<str>,
    /// How long a call may stand in line before the caller is told to come back.
    budget_timeout: Duration,
    /// Who else may work while a call stands in line.
    slot: Slot,
    metrics: AzureMetrics,
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Client")
            .field("cloud", &self.cloud.name())
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

/// More pages than any subscription has: a list that never ends is a broken answer.
const MOST_PAGES: usize = 1000;

/// How long to wait for an operation that is in our way.
const BUSY: Duration = Duration::from_secs(20);

impl Client {
    pub fn new(
        cloud: Cloud,
        transport: Transport,
        tokens: Arc<dyn Tokens>,
        budget: Budget,
        clock: Clock,
        cluster: &str,
        user_agent_suffix: Option<&str>,
    ) -> Result<Self, ClientError> {
        if let Some(suffix) = user_agent_suffix {
            let fits = !suffix.is_empty()
                && suffix.len() <= 24
                && suffix.chars().all(|character| {
                    character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '_')
                });
            if !fits {
                return Err(ClientError::BadUserAgent(suffix.to_owned()));
            }
        }
        let options = ClientOptions {
            retry: RetryOptions::none(),
            transport: Some(transport),
            user_agent: UserAgentOptions {
                application_id: user_agent_suffix.map(str::to_owned),
            },
            ..ClientOptions::default()
        };
        let pipeline = Pipeline::new(
            Some("slipway"),
            option_env!("CARGO_PKG_VERSION"),
            options,
            Vec::new(),
            Vec::new(),
            None,
        );
        Ok(Self {
            pipeline,
            cloud,
            tokens,
            auxiliary: Vec::new(),
            budget,
            clock,
            cluster: Arc::from(cluster),
            budget_timeout: Duration::from_secs(30),
            slot: Slot::default(),
            metrics: AzureMetrics::default(),
        })
    }

    /// Shows tokens of other tenants beside its own.
    #[must_use]
    pub fn with_auxiliary(mut self, tokens: Vec<Arc<dyn Tokens>>) -> Self {
        self.auxiliary = tokens;
        self
    }

    #[must_use]
    pub fn with_budget_timeout(mut self, budget_timeout: Duration) -> Self {
        self.budget_timeout = budget_timeout;
        self
    }

    /// Calls stand in line only briefly, reads too.
    pub(crate) fn wait_briefly(&mut self) {
        self.budget_timeout = self.budget_timeout.min(WORTH_WAITING);
    }

    /// Whose slot is free for others while a call stands in line.
    pub(crate) fn set_slot(&mut self, slot: Slot) {
        self.slot = slot;
    }

    /// Counts its requests in these.
    #[must_use]
    pub fn counted_in(mut self, metrics: AzureMetrics) -> Self {
        self.metrics = metrics;
        self
    }

    pub fn cloud(&self) -> &Cloud {
        &self.cloud
    }

    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The address of a path below Resource Manager, which may come with parameters after a question mark.
    pub fn address(&self, path: &str, api_version: &str) -> Url {
        let mut url = self.cloud.endpoint().clone();
        let base = url.path().trim_end_matches('/').to_owned();
        let (path, query) = path
            .split_once('?')
            .map_or((path, None), |(path, query)| (path, Some(query)));
        url.set_path(&format!("{base}{path}"));
        url.set_query(query);
        url.query_pairs_mut().append_pair("api-version", api_version);
        url
    }

    fn call<'a>(
        &self,
        verb: Verb,
        target: &'a ResourceId,
        api_version: &str,
        priority: Priority,
    ) -> Call<'a> {
        Call {
            verb,
            target,
            address: self.address(target.as_str(), api_version),
            body: None,
            if_match: None,
            if_none_match: None,
            priority,
        }
    }

    pub async fn get(
        &self,
        id: &ResourceId,
        api_version: &str,
        priority: Priority,
    ) -> Result<Answer, ArmError> {
        let call = self.call(Verb::Get, id, api_version, priority);
        let reply = self.send(&call).await?;
        Self::answer(&call, reply)
    }

    /// Creates or replaces. With `if_match` only over that version.
    pub async fn put(
        &self,
        id: &ResourceId,
        api_version: &str,
        body: &Value,
        if_match: Option<&str>,
    ) -> Result<Answer, ArmError> {
        let mut call = self.call(Verb::Put, id, api_version, Priority::Change);
        call.body = Some(body);
        call.if_match = if_match;
        let reply = self.send(&call).await?;
        Self::answer(&call, reply)
    }

    pub async fn patch(&self, id: &ResourceId, api_version: &str, body: &Value) -> Result<Answer, ArmError> {
        let mut call = self.call(Verb::Patch, id, api_version, Priority::Change);
        call.body = Some(body);
        let reply = self.send(&call).await?;
        Self::answer(&call, reply)
    }

    /// Deletes; a resource that is not there is [`Answer::NotFound`].
    pub async fn delete(&self, id: &ResourceId, api_version: &str) -> Result<Answer, ArmError> {
        let call = self.call(Verb::Delete, id, api_version, Priority::Change);
        let reply = self.send(&call).await?;
        Self::answer(&call, reply)
    }

    /// Asks a resource for something (`listClusterAdminCredential`, `start`).
    pub async fn post(
        &self,
        id: &ResourceId,
        action: &str,
        api_version: &str,
        body: Option<&Value>,
    ) -> Result<Answer, ArmError> {
        let mut call = self.call(Verb::Post, id, api_version, Priority::Change);
        call.address = self.address(&format!("{id}/{action}"), api_version);
        call.body = body;
        let reply = self.send(&call).await?;
        Self::answer(&call, reply)
    }

    /// One page; `next` is the link of the page before.
    pub async fn page(
        &self,
        scope: &ResourceId,
        path: &str,
        api_version: &str,
        next: Option<&str>,
        priority: Priority,
    ) -> Result<Page, ArmError> {
        let address = match next {
            None => self.address(path, api_version),
            Some(link) => self.own_address("listing", scope, link)?,
        };
        let call = Call {
            verb: Verb::Get,
            target: scope,
            address,
            body: None,
            if_match: None,
            if_none_match: None,
            priority,
        };
        let mut reply = self.send(&call).await?;
        if !reply.succeeded() {
            return Err(refused("listing", path, &reply));
        }
        let next = reply
            .body
            .get("nextLink")
            .and_then(Value::as_str)
            .filter(|link| !link.is_empty())
            .map(str::to_owned);
        match reply.body.get_mut("value").map(Value::take) {
            Some(Value::Array(items)) => Ok(Page { items, next }),
            _ => Err(ArmError::Unreadable {
                doing: "listing",
                target: path.to_owned(),
                reason: "a page has no list of values".to_owned(),
            }),
        }
    }

    /// Every item of a list.
    pub async fn list(
        &self,
        scope: &ResourceId,
        path: &str,
        api_version: &str,
        priority: Priority,
    ) -> Result<Vec<Value>, ArmError> {
        let mut items = Vec::new();
        self.list_each(scope, path, api_version, priority, |item| items.push(item))
            .await?;
        Ok(items)
    }

    /// The same, with no more than a page in hand at a time.
    pub async fn list_each(
        &self,
        scope: &ResourceId,
        path: &str,
        api_version: &str,
        priority: Priority,
        mut each: impl FnMut(Value),
    ) -> Result<(), ArmError> {
        let mut next = None;
        for _ in 0..MOST_PAGES {
            let page = self
                .page(scope, path, api_version, next.as_deref(), priority)
                .await?;
            page.items.into_iter().for_each(&mut each);
            next = page.next;
            if next.is_none() {
                return Ok(());
            }
        }
        Err(ArmError::Unreadable {
            doing: "listing",
            target: path.to_owned(),
            reason: format!("the list has more than {MOST_PAGES} pages"),
        })
    }

    /// Asks once how an operation stands.
    pub async fn poll(&self, operation: &Operation) -> Result<Poll, ArmError> {
        let address = self.own_address("following", &operation.resource, &operation.address)?;
        let call = Call {
            verb: Verb::Get,
            target: &operation.resource,
            address,
            body: None,
            if_match: None,
            if_none_match: None,
            priority: Priority::Operation,
        };
        let reply = self.send(&call).await?;
        if reply.status == 429 || reply.status >= 500 {
            // The question failed, not the operation.
            return Ok(Poll::Running {
                progress: String::new(),
                after: reply.retry_after.unwrap_or(BUSY),
            });
        }
        if matches!(reply.status, 401 | 403) {
            return Err(refused("following", operation.resource.as_str(), &reply));
        }
        Ok(operation.read(&reply))
    }

    fn own_address(&self, doing: &'static str, target: &ResourceId, text: &str) -> Result<Url, ArmError> {
        let url = self
            .cloud
            .endpoint()
            .join(text)
            .map_err(|error| ArmError::Unreadable {
                doing,
                target: target.to_string(),
                reason: format!("the address in the answer is no URL: {error}"),
            })?;
        if self.cloud.owns(&url) {
            Ok(url)
        } else {
            Err(ArmError::ForeignAddress {
                doing,
                target: target.to_string(),
                host: url.host_str().unwrap_or_default().to_owned(),
            })
        }
    }

    fn permit(&self, verb: Verb, target: &ResourceId, priority: Priority) -> PermitRequest {
        PermitRequest {
            bucket: BucketKey::of(target, verb),
            resource: target.key().to_owned(),
            priority,
            cluster: Arc::clone(&self.cluster),
        }
    }

    /// Waits for a turn, without a slot: for a read as long as a call may, since a reconcile that is cut short reads everything
    /// again; for a change only briefly, since its object keeps its place in line and is told when its turn comes.
    async fn acquire(&self, verb: Verb, target: &ResourceId, permit: &PermitRequest) -> Result<(), ArmError> {
        let longest = match verb {
            Verb::Get | Verb::Post => self.budget_timeout,
            Verb::Put | Verb::Patch | Verb::Delete => self.budget_timeout.min(WORTH_WAITING),
        };
        let permitted = self.slot.given_up_for(self.budget.acquire(permit, longest));
        permitted.await.map_err(|after| {
            self.metrics.throttled(permit, "budget");
            ArmError::Budget {
                doing: verb.doing(),
                target: target.to_string(),
                after,
            }
        })
    }

    /// Awaits what another read of the same is about to bring, without a slot. If that one's turn is too far, tells how far.
    pub(crate) async fn await_other<T>(
        &self,
        target: &ResourceId,
        priority: Priority,
        other: impl Future<Output = T>,
    ) -> Result<T, Duration> {
        let mut other = pin!(other);
        let soon = timeout(self.budget_timeout, &mut other);
        if let Ok(value) = self.slot.given_up_for(soon).await {
            return Ok(value);
        }
        let after = self
            .budget
            .expected_wait(&self.permit(Verb::Get, target, priority));
        if after > WORTH_WAITING {
            return Err(after);
        }
        // It has been sent, and Azure takes its time.
        Ok(self.slot.given_up_for(other).await)
    }

    /// Takes the turn of a change before what it is based on is read: what cannot be sent yet is not read for either. The change
    /// that follows uses it; a turn that is not used goes to others after a while.
    pub async fn reserve(&self, verb: Verb, id: &ResourceId) -> Result<(), ArmError> {
        let permit = self.permit(verb, id, Priority::Change);
        self.acquire(verb, id, &permit).await?;
        self.budget.hold(&permit);
        Ok(())
    }

    /// Sends one request: a turn, a token, the wire, and what the answer teaches the budget.
    pub async fn send(&self, call: &Call<'_>) -> Result<Reply, ArmError> {
        let doing = call.verb.doing();
        let permit = self.permit(call.verb, call.target, call.priority);
        self.acquire(call.verb, call.target, &permit).await?;
        let token = self.tokens.token().await?;
        let mut request = Request::new(call.address.clone(), call.verb.method());
        request.insert_header("accept", "application/json");
        request.insert_header(
            "authorization",
            HeaderValue::from(format!("Bearer {}", token.secret.expose_secret())),
        );
        if !self.auxiliary.is_empty() {
            let mut all = Vec::new();
            for tokens in &self.auxiliary {
                let token = tokens.token().await?;
                all.push(format!("Bearer {}", token.secret.expose_secret()));
            }
            request.insert_header("x-ms-authorization-auxiliary", HeaderValue::from(all.join(", ")));
        }
        if let Some(etag) = call.if_match {
            request.insert_header("if-match", HeaderValue::from(etag.to_owned()));
        }
        if let Some(etag) = call.if_none_match {
            request.insert_header("if-none-match", HeaderValue::from(etag.to_owned()));
        }
        if let Some(body) = call.body {
            request.insert_header("content-type", "application/json");
            request.set_body(body.to_string());
        }
        let asked = Instant::now();
        let sent = self
            .pipeline
            .send(
                &Context::new(),
                &mut request,
                Some(PipelineSendOptions {
                    skip_checks: true,
                    ..PipelineSendOptions::default()
                }),
            )
            .await;
        let (status, headers, body) = match sent {
            Ok(answer) => answer.deconstruct(),
            Err(error) => {
                let seconds = asked.elapsed().as_secs_f64();
                self.metrics.answered(call.target, call.verb, None, seconds);
                return Err(ArmError::Unreachable {
                    doing,
                    target: call.target.to_string(),
                    reason: error.to_string(),
                });
            }
        };
        let status = u16::from(status);
        let seconds = asked.elapsed().as_secs_f64();
        self.metrics
            .answered(call.target, call.verb, Some(status), seconds);
        if status == 429 {
            self.metrics.throttled(&permit, "azure");
        }
        let reply = Reply::new(status, headers, Vec::from(body.as_ref()), self.clock.now());
        tracing::debug!(
            verb = ?call.verb,
            resource = %call.target,
            status,
            correlation = correlation(reply.headers()),
            "Asked Azure Resource Manager"
        );
        if status == 401 {
            for tokens in self.auxiliary.iter().chain([&self.tokens]) {
                tokens.refused();
            }
        }
        self.budget.learn(&permit, &reply);
        Ok(reply)
    }

    fn answer(call: &Call<'_>, reply: Reply) -> Result<Answer, ArmError> {
        let doing = call.verb.doing();
        if reply.unreadable() {
            return Err(ArmError::Unreadable {
                doing,
                target: call.target.to_string(),
                reason: "it is not JSON".to_owned(),
            });
        }
        if reply.succeeded() {
            if call.verb == Verb::Get {
                return Ok(Answer::Done(reply.body));
            }
            if reply.status == 204 && call.verb == Verb::Delete {
                return Ok(Answer::NotFound);
            }
            let operation = Operation::from_reply(call.target, call.address.as_str(), &reply);
            return Ok(match operation {
                Some(operation) => Answer::Accepted {
                    operation,
                    after: reply.retry_after.unwrap_or(Duration::from_secs(5)),
                    body: reply.body,
                },
                None => Answer::Done(reply.body),
            });
        }
        let refusal = reply.refusal();
        let gone = reply.status == 404
            && matches!(call.verb, Verb::Get | Verb::Delete)
            && !refusal.code.to_ascii_lowercase().contains("subscription");
        if gone {
            return Ok(Answer::NotFound);
        }
        match refusal.retry_policy {
            RetryPolicy::RetryAfter(after) if reply.status == 429 => Ok(Answer::Throttled(after)),
            RetryPolicy::Wait => Ok(Answer::Busy {
                message: refusal.message,
                after: reply.retry_after.unwrap_or(BUSY),
            }),
            _ => Err(ArmError::Refused {
                doing,
                target: call.target.to_string(),
                refusal,
            }),
        }
    }
}

fn refused(doing: &'static str, target: &str, reply: &Reply) -> ArmError {
    ArmError::Refused {
        doing,
        target: target.to_owned(),
        refusal: reply.refusal(),
    }
}

/// For the log only: what Azure's support asks for.
fn correlation(headers: &Headers) -> &str {
    headers
        .get_optional_str(&"x-ms-correlation-request-id".into())
        .unwrap_or_default()
}
