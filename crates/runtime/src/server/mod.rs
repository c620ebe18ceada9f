//! One HTTPS server for everything that Kubernetes and Cluster API call in a manager: admission, conversion and
//! runtime hooks. It owns the listener and the routes; what a handler may touch is the client it is given.

mod admission_review;
mod body;
mod client_certificate;
mod conversion_review;
#[cfg(test)]
mod keeping_test;
pub mod listen;
#[cfg(test)]
mod rotation_test;
mod runtime_hook;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

pub use self::{
    client_certificate::{ClientCa, Verified},
    conversion_review::CONVERSION_PATH,
    listen::{BindError, Listener, Protocol},
    runtime_hook::{DISCOVERY_PATH, hook_path},
};
use crate::{Metrics, Package, admission::Admission, duration, hook::Hook, settings::Gates};

/// What the server answers with.
pub type Answer = Response<Full<Bytes>>;

/// A webhook that takes longer than the apiserver waits for is answered for it.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookCode {
    webhook: String,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Webhook {
    webhook: String,
}

/// Counted under controller-runtime's names.
#[derive(Clone, Default)]
struct Counters {
    requests: Family<WebhookCode, Counter>,
    in_flight: Family<Webhook, Gauge>,
    panics: Counter,
    conversion_panics: Counter,
}

impl Counters {
    fn register(metrics: &Metrics) -> Self {
        let counters = Self::default();
        metrics.register(
            "controller_runtime_webhook_requests",
            "Total number of admission requests by HTTP status code",
            counters.requests.clone(),
        );
        metrics.register(
            "controller_runtime_webhook_requests_in_flight",
            "Current number of admission requests being served",
            counters.in_flight.clone(),
        );
        metrics.register(
            "controller_runtime_webhook_panics",
            "Total number of webhook panics",
            counters.panics.clone(),
        );
        metrics.register(
            "controller_runtime_conversion_webhook_panics",
            "Total number of conversion webhook panics",
            counters.conversion_panics.clone(),
        );
        counters
    }
}

/// Registers what the server counts, for those who only want to know what there is.
pub fn register_metrics(metrics: &Metrics) {
    Counters::register(metrics);
}

enum Route {
    Admission(Admission),
    Conversion,
    Discovery,
    Hook(Hook),
}

/// Every path the server answers, and what answers it.
pub struct Routes {
    client: kube::Client,
    by_path: HashMap<String, Route>,
    converters: conversion_review::Converters,
    /// The answer to Discovery.
    discovery: serde_json::Value,
    counters: Counters,
    /// Hooks are for callers with a client certificate.
    hooks_need_certificate: bool,
}

impl Routes {
    /// The routes of these packages.
    pub fn new<'package>(
        packages: impl IntoIterator<Item = &'package Package>,
        client: kube::Client,
        gates: &Gates,
        metrics: &Metrics,
    ) -> Self {
        let mut routes = HashMap::new();
        let mut hooks = Vec::new();
        let mut converters = conversion_review::Converters::default();
        for package in packages {
            for admission in &package.admission {
                routes.insert(admission.path(), Route::Admission(admission.clone()));
            }
            let served = |hook: &&Hook| hook.gate.is_none_or(|gate| gates.enabled(gate));
            for hook in package.hooks.iter().filter(served) {
                routes.insert(hook_path(hook), Route::Hook(hook.clone()));
                hooks.push(hook.clone());
            }
            converters.add(package);
        }
        if !converters.is_empty() {
            routes.insert(CONVERSION_PATH.to_owned(), Route::Conversion);
        }
        if !hooks.is_empty() {
            routes.insert(DISCOVERY_PATH.to_owned(), Route::Discovery);
        }
        Self {
            client,
            by_path: routes,
            converters,
            discovery: runtime_hook::discovery(&hooks),
            counters: Counters::register(metrics),
            hooks_need_certificate: false,
        }
    }

    /// Refuses hook requests of clients that have shown no certificate.
    pub fn require_certificates_for_hooks(mut self, required: bool) -> Self {
        self.hooks_need_certificate = required;
        self
    }

    /// Whether there is anything to serve.
    pub fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }

    /// Answers one request. Never panics, whatever the bytes.
    pub async fn answer<B>(self: Arc<Self>, request: Request<B>) -> Answer
    where
        B: hyper::body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        let Some(route) = self.by_path.get(path) else {
            return text(StatusCode::NOT_FOUND, &format!("there is no webhook at {path}"));
        };
        if parts.method != Method::POST {
            let mut answer = text(
                StatusCode::METHOD_NOT_ALLOWED,
                &format!("{} is not allowed here: send a POST", parts.method),
            );
            answer
                .headers_mut()
                .insert(header::ALLOW, header::HeaderValue::from_static("POST"));
            return answer;
        }
        let label = Webhook {
            webhook: path.to_owned(),
        };
        if self.hooks_need_certificate
            && matches!(route, Route::Discovery | Route::Hook(_))
            && parts.extensions.get::<Verified>().is_none()
        {
            self.counters
                .requests
                .get_or_create(&WebhookCode {
                    webhook: label.webhook,
                    code: StatusCode::FORBIDDEN.as_u16(),
                })
                .inc();
            return text(
                StatusCode::FORBIDDEN,
                "runtime hooks are for callers with a certificate of --hook-client-ca-file: give Cluster API's core one with \
                 --runtime-extension-client-cert-file and --runtime-extension-client-key-file",
            );
        }
        let timeout = requested_timeout(parts.uri.query());
        let in_flight = self.counters.in_flight.get_or_create_owned(&label);
        in_flight.inc();
        let answer = self.dispatch(route, body, timeout).await;
        in_flight.dec();
        self.counters
            .requests
            .get_or_create(&WebhookCode {
                webhook: label.webhook,
                code: answer.status().as_u16(),
            })
            .inc();
        answer
    }

    async fn dispatch<B>(&self, route: &Route, body: B, timeout: Duration) -> Answer
    where
        B: hyper::body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let limit = match route {
            Route::Admission(_) => admission_review::LIMIT,
            Route::Conversion => conversion_review::LIMIT,
            Route::Discovery | Route::Hook(_) => runtime_hook::LIMIT,
        };
        let bytes = match body::read(body, limit).await {
            Ok(bytes) => bytes,
            Err(refusal) => return refusal,
        };
        match route {
            Route::Admission(admission) => self.admit(admission, &bytes, timeout).await,
            Route::Conversion => self.convert(&bytes),
            Route::Discovery => match body::object(&bytes) {
                Ok(_) => json(&self.discovery),
                Err(reason) => text(
                    StatusCode::BAD_REQUEST,
                    &format!("cannot read the DiscoveryRequest: {reason}"),
                ),
            },
            Route::Hook(hook) => self.call_hook(hook, &bytes, timeout).await,
        }
    }

    async fn admit(&self, admission: &Admission, bytes: &[u8], timeout: Duration) -> Answer {
        let (uid, request) = match admission_review::read(bytes) {
            Ok(read) => read,
            Err(reason) => {
                return text(
                    StatusCode::BAD_REQUEST,
                    &format!("cannot read the AdmissionReview: {reason}"),
                );
            }
        };
        let original = request.object.clone();
        let subject = admission_review::Subject::of(&request);
        let handler = admission.handler.clone();
        let client = self.client.clone();
        // The call itself is inside too: a handler may panic before it returns its future.
        let work = AssertUnwindSafe(async move { handler(request, client).await }).catch_unwind();
        let response = match tokio::time::timeout(timeout, work).await {
            Ok(Ok(verdict)) => admission_review::respond(&uid, &subject, original.as_ref(), verdict),
            Ok(Err(panic)) => {
                self.counters.panics.inc();
                tracing::error!(
                    webhook = admission.path(),
                    kind = subject.kind,
                    namespace = subject.namespace,
                    name = subject.name,
                    err = panic_message(&panic),
                    "Observed a panic in webhook"
                );
                admission_review::internal_error(&uid, &admission.name())
            }
            Err(_) => admission_review::timed_out(&uid, &admission.name(), timeout),
        };
        json(&response)
    }

    fn convert(&self, bytes: &[u8]) -> Answer {
        match self.converters.answer(bytes) {
            Ok((response, panics)) => {
                self.counters.conversion_panics.inc_by(panics);
                json(&response)
            }
            Err(reason) => text(
                StatusCode::BAD_REQUEST,
                &format!("cannot read the ConversionReview: {reason}"),
            ),
        }
    }

    async fn call_hook(&self, hook: &Hook, bytes: &[u8], timeout: Duration) -> Answer {
        let request = match body::object(bytes) {
            Ok(request) => request,
            Err(reason) => {
                return text(
                    StatusCode::BAD_REQUEST,
                    &format!("cannot read the {}Request: {reason}", hook.hook),
                );
            }
        };
        let handler = hook.handler.clone();
        let client = self.client.clone();
        let work = AssertUnwindSafe(async move { handler(request, client).await }).catch_unwind();
        match tokio::time::timeout(timeout, work).await {
            Ok(Ok(response)) => json(&response),
            Ok(Err(panic)) => {
                self.counters.panics.inc();
                tracing::error!(
                    hook = hook.hook,
                    handler = hook.name,
                    err = panic_message(&panic),
                    "Observed a panic in runtime hook"
                );
                json(&runtime_hook::failure(
                    "internal error in the extension: see its logs",
                ))
            }
            Err(_) => json(&runtime_hook::failure("the extension did not answer in time")),
        }
    }
}

/// The caller's own deadline (`?timeout=10s`), less a margin to get the answer back in time.
fn requested_timeout(query: Option<&str>) -> Duration {
    let desired = query
        .unwrap_or_default()
        .split('&')
        .find_map(|pair| duration::parse(pair.strip_prefix("timeout=")?).ok())
        .filter(|timeout| !timeout.is_zero())
        .unwrap_or(DEFAULT_TIMEOUT)
        .min(LONGEST_TIMEOUT);
    desired.mul_f64(0.95)
}

fn panic_message(panic: &Box<dyn std::any::Any + Send>) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("panic without a message")
}

/// A plain answer for people and logs.
pub(crate) fn text(status: StatusCode, message: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(format!("{message}\n"))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    answer
}

pub(crate) fn json(value: &serde_json::Value) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(value.to_string())));
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    answer
}
