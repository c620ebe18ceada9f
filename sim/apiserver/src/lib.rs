//! An apiserver in memory, for tests that run a scenario thousands of times in virtual time.
//!
//! [`Apiserver::client`] gives a kube client whose requests are answered here, without sockets or threads. It is
//! good enough for this project's own traffic, and a conformance script holds it to that: the same requests are
//! sent to it and to the real apiserver, and the answers compared.

mod failure;
mod fields;
mod garbage;
mod kinds;
mod managers;
mod patch;
mod route;
mod schema;
mod select;
mod server;
mod snapshot;
mod store;
mod subresource;
mod view;
mod watch;
mod write;

pub mod faults;

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use slipway_runtime::{
    Clock,
    admission::{self, Admission, Phase, Verdict},
    conversion::Conversion,
};
use tokio::sync::watch as signal;

use failure::Answer;
pub use failure::Failure;
use faults::{Fate, Faults};
pub use kinds::Kinds;
pub use route::Call;
use route::Route;
use server::{State, is_write};
pub use snapshot::Snapshot;
use watch::Control;
pub use watch::Held;
use write::Candidate;

/// What kube's own connections allow before they give up on a silent server.
const READ_TIMEOUT: Duration = Duration::from_secs(295);

/// The body of an answer; of a watch, it goes on.
pub type ResponseBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// One apiserver. Clones share it.
#[derive(Clone)]
pub struct Apiserver {
    state: Arc<Mutex<State>>,
    control: Arc<signal::Sender<Control>>,
}

impl Apiserver {
    pub fn new(clock: Clock) -> Self {
        let state = State::new(clock);
        let control = Control {
            version: state.store.version(),
            ..Control::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            control: Arc::new(signal::Sender::new(control)),
        }
    }

    /// Whether the other is a clone of this one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Installs custom kinds, their conversions and the webhooks in front of them.
    pub fn install(
        &self,
        crds: &[CustomResourceDefinition],
        conversion: &[Conversion],
        webhooks: &[Admission],
    ) {
        self.install_kinds(&Kinds::read(crds, conversion, webhooks));
    }

    /// Installs what was read before: a test that starts thousands of servers reads its definitions once.
    pub fn install_kinds(&self, kinds: &Kinds) {
        let mut state = self.state.lock();
        for kind in &kinds.kinds {
            state.install(Arc::clone(kind));
        }
        state.admission.extend(kinds.webhooks.iter().cloned());
    }

    /// A client without faults, for the test itself.
    pub fn client(&self) -> kube::Client {
        self.client_with(Faults::none())
    }

    /// A client whose every request goes through `faults` first, for what is being tested.
    pub fn client_with(&self, faults: Faults) -> kube::Client {
        let server = self.clone();
        let faults = faults.on(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, faults) = (server.clone(), faults.clone());
            async move { server.serve(request, &faults).await }
        });
        kube::Client::new(service, "default")
    }

    /// Answers one request, for whoever serves this over a socket.
    pub async fn respond(&self, request: Request<Body>) -> Result<Response<ResponseBody>, std::io::Error> {
        self.serve(request, &Faults::none()).await
    }

    /// Shows every object, in resource and key order, to `look`. Objects that did not change since the last read are
    /// not copied again.
    pub fn look<T>(&self, look: impl FnOnce(&[Value]) -> T) -> T {
        let view = {
            let mut state = self.state.lock();
            let mut view = std::mem::take(&mut state.view);
            view.refresh(&state.store);
            view
        };
        // Unlocked: who looks may ask the server something.
        let seen = look(view.objects());
        self.state.lock().view = view;
        seen
    }

    /// Calls `observer` with every object after every change.
    pub fn observe_changes(&self, observer: impl Fn(&[Value]) + Send + 'static) {
        self.state.lock().observer = Some(Box::new(observer));
    }

    /// Every object, in resource and key order, for comparing end states.
    pub fn objects(&self) -> Vec<Value> {
        self.state
            .lock()
            .store
            .all()
            .map(|(_, object)| Value::clone(object))
            .collect()
    }

    /// Breaks the connection of every open watch.
    pub fn cut_watches(&self) {
        self.control.send_modify(|control| control.cuts += 1);
    }

    /// Forgets history: a watch or a list that continues from before gets 410 Gone.
    pub fn compact(&self) {
        self.state.lock().store.compact();
    }

    /// The next paged list of each resource gets one object and a token that turns out to have expired.
    pub fn expire_next_lists(&self) {
        self.state.lock().expire_next_lists();
    }

    /// Holds watch events back until [`Apiserver::release_watches`]: caches stay as they are.
    pub fn hold_watches(&self, held: Held) {
        self.control
            .send_modify(|control| control.held = Some((control.version, held)));
    }

    /// Every watch delivers its last events once more.
    pub fn repeat_events(&self) {
        self.control.send_modify(|control| control.repeats += 1);
    }

    /// The version of the newest change.
    pub fn version(&self) -> u64 {
        self.state.lock().store.version()
    }

    pub fn release_watches(&self) {
        self.control.send_modify(|control| control.held = None);
    }

    /// Releases watches so that of the events that wait those of the last object come first.
    pub fn release_reordered(&self) {
        self.control.send_modify(|control| {
            control.held = None;
            control.reorders += 1;
        });
    }

    async fn serve(
        &self,
        request: Request<Body>,
        faults: &Faults,
    ) -> Result<Response<ResponseBody>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.map_err(std::io::Error::other)?;
        let route = match route::route(&parts) {
            Ok(route) => route,
            Err(failure) => return Ok(refusal(&failure)),
        };
        let call = match route {
            Route::Discovery(path) => {
                return Ok(self.state.lock().discovery(&path).map_or_else(
                    |failure| refusal(&failure),
                    |answer| json_response(StatusCode::OK, &answer),
                ));
            }
            Route::Resource(call) => call,
        };
        match faults.before(&call).await {
            Fate::Pass => self.answer(&call, &body).await,
            Fate::Refuse(failure) => Ok(refusal(&failure)),
            Fate::Lose => Err(broken()),
            Fate::LoseAnswer => {
                let _ = self.answer(&call, &body).await;
                Err(broken())
            }
            Fate::Hang => std::future::pending().await,
            Fate::HangAnswer => {
                let _ = self.answer(&call, &body).await;
                tokio::time::sleep(READ_TIMEOUT).await;
                Err(std::io::Error::new(
                    std::io::ErrorKind::TimedOut,
                    "no answer before the read timeout",
                ))
            }
        }
    }

    async fn answer(&self, call: &Call, body: &[u8]) -> Result<Response<ResponseBody>, std::io::Error> {
        if call.is_watch() {
            return Ok(match watch::open(&self.state, self.control.subscribe(), call) {
                Ok(lines) => {
                    let frames = lines.map(|line| line.map(http_body::Frame::data));
                    let body = BodyExt::boxed_unsync(StreamBody::new(frames));
                    let mut response = Response::new(body);
                    response
                        .headers_mut()
                        .insert("content-type", http::HeaderValue::from_static("application/json"));
                    response
                }
                Err(failure) => refusal(&failure),
            });
        }
        let answer = match call.method {
            Method::GET if call.name.is_some() => self.state.lock().get(call).map(found),
            Method::GET => self.state.lock().list(call).map(found),
            Method::DELETE => self.delete(call, body).await.map(found),
            _ => self.write(call, body).await,
        };
        if is_write(&call.method) {
            let version = self.tell_observer();
            self.control.send_if_modified(|control| {
                let newer = version > control.version;
                control.version = control.version.max(version);
                newer
            });
        }
        Ok(match answer {
            Ok((code, object)) => json_response(code, &object),
            Err(failure) => refusal(&failure),
        })
    }

    fn tell_observer(&self) -> u64 {
        let mut state = self.state.lock();
        let version = state.store.version();
        if version != state.observed {
            state.observed = version;
            if let Some(observer) = state.observer.take() {
                let mut view = std::mem::take(&mut state.view);
                view.refresh(&state.store);
                observer(view.objects());
                state.view = view;
                state.observer = Some(observer);
            }
        }
        version
    }

    async fn delete(&self, call: &Call, body: &[u8]) -> Answer<Value> {
        let options: Value = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(body).map_err(|error| Failure::bad_request(error.to_string()))?
        };
        let old = self.state.lock().get(call).ok();
        if let Some(old) = old {
            let handlers: Vec<admission::Handler> = {
                let state = self.state.lock();
                let kind = state.kind(call)?;
                state
                    .admission
                    .iter()
                    .filter(|webhook| {
                        webhook.group == kind.group
                            && webhook.version == call.version
                            && webhook.plural == kind.plural
                            && webhook.operations.contains(&admission::Operation::Delete)
                    })
                    .map(|webhook| webhook.handler.clone())
                    .collect()
            };
            for handler in handlers {
                let request =
                    self.admission_request(call, admission::Operation::Delete, None, Some(old.clone()))?;
                self.judge(call, handler(request, self.client()).await)?;
            }
        }
        self.state.lock().delete(call, &options)
    }

    async fn write(&self, call: &Call, body: &[u8]) -> Answer<(StatusCode, Value)> {
        if call.plural == "pods" && call.subresource.as_deref() == Some("eviction") {
            let done = subresource::evict(&mut self.state.lock(), call, body)?;
            return Ok((StatusCode::CREATED, done));
        }
        loop {
            let mut candidate = self.state.lock().prepare(call, body)?;
            let code = if candidate.before.is_none() {
                StatusCode::CREATED
            } else {
                StatusCode::OK
            };
            State::check(&mut candidate, &call.version)?;
            // Status writes pass by the webhooks, which are registered for the main resource.
            if call.subresource.is_none() {
                self.admit(call, &mut candidate).await?;
            }
            if let Some(object) = self.state.lock().commit(call, candidate)? {
                let answer = match call.subresource.as_deref() {
                    Some("scale") => subresource::scale(&object),
                    _ => object,
                };
                return Ok((code, answer));
            }
        }
    }

    async fn admit(&self, call: &Call, candidate: &mut Candidate) -> Answer<()> {
        let old = match &candidate.before {
            Some(before) => Some(server::convert(&candidate.kind, before, &call.version)?),
            None => None,
        };
        for phase in [Phase::Mutating, Phase::Validating] {
            let handlers = self.state.lock().handlers(candidate, &call.version, phase);
            let mut changes = false;
            for handler in handlers {
                let request = self.admission_request(
                    call,
                    candidate.operation,
                    Some(candidate.object.clone()),
                    old.clone(),
                )?;
                if let Some(changed) = self.judge(call, handler(request, self.client()).await)? {
                    candidate.object = changed;
                    changes = true;
                }
            }
            if changes {
                State::check(candidate, &call.version)?;
            }
        }
        Ok(())
    }

    fn admission_request(
        &self,
        call: &Call,
        operation: admission::Operation,
        object: Option<Value>,
        old_object: Option<Value>,
    ) -> Answer<admission::Request> {
        let kind = self.state.lock().kind(call)?;
        let subject = object.as_ref().or(old_object.as_ref());
        let name = subject
            .and_then(|subject| subject["metadata"]["name"].as_str())
            .unwrap_or_default();
        Ok(admission::Request {
            operation,
            group: kind.group.clone(),
            version: call.version.clone(),
            kind: kind.kind.clone(),
            namespace: call.namespace.clone().unwrap_or_default(),
            name: name.to_owned(),
            dry_run: call.is_dry_run(),
            user: "system:admin".to_owned(),
            object,
            old_object,
        })
    }

    fn judge(&self, call: &Call, verdict: Verdict) -> Answer<Option<Value>> {
        match verdict {
            Verdict::Allowed { .. } => Ok(None),
            Verdict::Changed { object, .. } => Ok(Some(object)),
            Verdict::Invalid { errors, .. } => {
                let kind = self.state.lock().kind(call)?;
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                Err(Failure::invalid(
                    &kind.kind,
                    &kind.group,
                    call.name.as_deref().unwrap_or_default(),
                    &errors,
                ))
            }
            Verdict::Forbidden { message } => Err(Failure::forbidden(message)),
            Verdict::Unreadable { message } => Err(Failure::bad_request(message)),
        }
    }
}

fn found(object: Value) -> (StatusCode, Value) {
    (StatusCode::OK, object)
}

fn broken() -> std::io::Error {
    std::io::Error::new(
        std::io::ErrorKind::ConnectionReset,
        "connection reset by the fault plan",
    )
}

fn refusal(failure: &Failure) -> Response<ResponseBody> {
    if failure.reason.is_empty() {
        return text_response(failure.code, "text/plain; charset=utf-8", failure.message.clone());
    }
    json_response(failure.code, &failure.status())
}

fn json_response(code: StatusCode, value: &Value) -> Response<ResponseBody> {
    let text = serde_json::to_vec(value).unwrap_or_default();
    text_response(code, "application/json", text)
}

fn text_response(
    code: StatusCode,
    content_type: &'static str,
    text: impl Into<Bytes>,
) -> Response<ResponseBody> {
    let body = Full::new(text.into()).map_err(|never: Infallible| match never {});
    let mut response = Response::new(BodyExt::boxed_unsync(body));
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert("content-type", http::HeaderValue::from_static(content_type));
    response
}
