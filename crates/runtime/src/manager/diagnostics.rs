//! What a kubelet, Prometheus and an operator ask a running manager: health, metrics, plans, verbosity. All but health
//! are for those whom the cluster allows, unless `--insecure-diagnostics` says otherwise.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, api::PostParams};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    Answers, Metrics, ObjectKey, Plans, Previews,
    answers::NoAnswer,
    health::{Checks, Health},
    logs::Verbosity,
    metrics::CONTENT_TYPE,
    preview::{Question, Refusal},
    server::{Answer, json, text},
};

/// `/healthz` and `/readyz`, and one check of them as `/readyz/<check>`.
pub fn answer_probe(health: &Health, request: &Request<Incoming>) -> Answer {
    let path = request.uri().path().trim_matches('/').to_owned();
    let verbose = request
        .uri()
        .query()
        .is_some_and(|query| query.split('&').any(|key| key.starts_with("verbose")));
    let (endpoint, only) = path
        .split_once('/')
        .map_or((path.as_str(), None), |(endpoint, check)| (endpoint, Some(check)));
    let ask = |checks: &Checks| checks.ask(endpoint, only, verbose);
    let answer = match endpoint {
        "healthz" => ask(&health.live),
        "readyz" => ask(&health.ready),
        _ => None,
    };
    match answer {
        Some(answer) => {
            let status = if answer.healthy {
                StatusCode::OK
            } else {
                StatusCode::INTERNAL_SERVER_ERROR
            };
            text(status, answer.body.trim_end())
        }
        None => text(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

/// Metrics, and for those who are allowed the last plans and the verbosity of the logs.
#[derive(Clone)]
pub struct Diagnostics {
    pub metrics: Metrics,
    pub plans: Plans,
    pub previews: Previews,
    pub answers: Answers,
    pub verbosity: Verbosity,
    /// Absent with `--insecure-diagnostics`: metrics only, for anybody.
    pub gate: Option<Arc<Gatekeeper>>,
}

impl Diagnostics {
    pub async fn answer(self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        if let Some(gate) = &self.gate {
            if let Err(refusal) = gate.check(&request).await {
                return refusal;
            }
            if path == "/debug/flags/v" {
                return self.set_verbosity(request).await;
            }
            if let Some(rest) = path.strip_prefix("/debug/diff/") {
                return self.preview(request, rest).await;
            }
            if let Some(name) = path.strip_prefix("/debug/ask/") {
                return self.ask(request, name).await;
            }
            if let Some(rest) = path.strip_prefix("/debug/plans") {
                return self.show_plans(request.method(), rest);
            }
        }
        if path != "/metrics" {
            return text(StatusCode::NOT_FOUND, "404 page not found");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "send a GET");
        }
        let mut answer = Response::new(Full::new(Bytes::from(self.metrics.encode())));
        answer.headers_mut().insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static(CONTENT_TYPE),
        );
        answer
    }

    /// A plan by the path of its object, or the list of those below a path.
    fn show_plans(&self, method: &Method, path: &str) -> Answer {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "send a GET");
        }
        let path = path.trim_matches('/');
        if let Some(plan) = self.plans.show(path) {
            return text(StatusCode::OK, plan.trim_end());
        }
        let list = self.plans.list(path);
        if list.is_empty() && !path.is_empty() {
            let message = format!(
                "no plan of {path} is kept: the path is <group>/<kind>/<namespace>/<name>, and only the manager that \
                 leads plans"
            );
            return text(StatusCode::NOT_FOUND, &message);
        }
        text(StatusCode::OK, list.trim_end())
    }

    /// What the leading manager would do with an object that is there (GET), or with one that is sent along (POST).
    async fn preview(self, request: Request<Incoming>, path: &str) -> Answer {
        let parts: Vec<&str> = path.split('/').collect();
        let (group, kind, key) = match parts.as_slice() {
            [group, kind, namespace, name] => (*group, *kind, ObjectKey::namespaced(namespace, name)),
            [group, kind, name] => (*group, *kind, ObjectKey::new(None, name)),
            _ => {
                return text(
                    StatusCode::NOT_FOUND,
                    "the path is /debug/diff/<group>/<kind>/<namespace>/<name>",
                );
            }
        };
        let unheld = request
            .uri()
            .query()
            .is_some_and(|query| query.split('&').any(|key| key == "unheld=true"));
        let object = match *request.method() {
            Method::GET => None,
            Method::POST => match sent(request).await {
                Ok(object) => Some(object),
                Err(message) => return text(StatusCode::BAD_REQUEST, &message),
            },
            _ => {
                return text(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "send a GET, or a POST of the object",
                );
            }
        };
        let question = Question { object, unheld };
        match self.previews.ask(group, kind, key, question).await {
            Ok(preview) => json(&serde_json::json!(preview)),
            Err(refusal) => {
                let status = match refusal {
                    Refusal::NoController(_) => StatusCode::SERVICE_UNAVAILABLE,
                    Refusal::NoObject(_) => StatusCode::NOT_FOUND,
                    Refusal::Unreadable(..) | Refusal::NotPlanned(_) => StatusCode::BAD_REQUEST,
                    Refusal::Failed(..) | Refusal::TimedOut(_) => StatusCode::INTERNAL_SERVER_ERROR,
                };
                text(status, &refusal.to_string())
            }
        }
    }

    /// What a provider answers to a question.
    async fn ask(self, request: Request<Incoming>, name: &str) -> Answer {
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "send a POST of the question");
        }
        let question = match sent(request).await {
            Ok(question) => question,
            Err(message) => return text(StatusCode::BAD_REQUEST, &message),
        };
        match self.answers.ask(name, question).await {
            Ok(answer) => json(&answer),
            Err(error) => {
                let status = match error {
                    NoAnswer::Nobody(_) => StatusCode::SERVICE_UNAVAILABLE,
                    NoAnswer::Refused(_) => StatusCode::BAD_REQUEST,
                    NoAnswer::Panicked | NoAnswer::TimedOut => StatusCode::INTERNAL_SERVER_ERROR,
                };
                text(status, &error.to_string())
            }
        }
    }

    async fn set_verbosity(self, request: Request<Incoming>) -> Answer {
        if request.method() != Method::PUT {
            return text(
                StatusCode::METHOD_NOT_ALLOWED,
                "send a PUT with the level, e.g. 5",
            );
        }
        let body = match http_body_util::Limited::new(request.into_body(), 64)
            .collect()
            .await
        {
            Ok(body) => body.to_bytes(),
            Err(_) => return text(StatusCode::BAD_REQUEST, "the level is a number, e.g. 5"),
        };
        let level = std::str::from_utf8(&body)
            .ok()
            .and_then(|level| level.trim().parse::<u32>().ok());
        match level.map(|level| (level, self.verbosity.set(level))) {
            Some((level, Ok(()))) => {
                tracing::info!(v = level, "Changed verbosity");
                text(
                    StatusCode::OK,
                    &format!("successfully set klog.logging.verbosity to {level}"),
                )
            }
            Some((_, Err(error))) => text(StatusCode::INTERNAL_SERVER_ERROR, &error),
            None => text(StatusCode::BAD_REQUEST, "the level is a number, e.g. 5"),
        }
    }
}

/// A larger object is not read: the apiserver takes none either.
const LARGEST_OBJECT: usize = 3 * 1024 * 1024;

/// The object that was sent.
async fn sent(request: Request<Incoming>) -> Result<serde_json::Value, String> {
    let body = http_body_util::Limited::new(request.into_body(), LARGEST_OBJECT);
    let body = body
        .collect()
        .await
        .map_err(|_| "the object is too large".to_owned())?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| format!("the object is no JSON: {error}"))
}

/// Where a token is that comes through the apiserver, which keeps `Authorization` to itself. It is for this audience, and so of no
/// use to who else sees it.
pub const ASKER_HEADER: &str = "slipway-token";
pub const ASKER_AUDIENCE: &str = "slipway";

/// How long an answer of the apiserver about a caller is trusted.
const ALLOWED_FOR: Duration = Duration::from_mins(1);
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// More callers than this are not remembered.
const REMEMBERED: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Allowed,
    Unknown,
    Forbidden,
}

/// Asks the apiserver who a caller is and whether it may.
pub struct Gatekeeper {
    client: kube::Client,
    hasher: RandomState,
    remembered: Mutex<HashMap<u64, (Standing, Instant)>>,
}

impl Gatekeeper {
    pub fn new(client: kube::Client) -> Self {
        Self {
            client,
            hasher: RandomState::new(),
            remembered: Mutex::default(),
        }
    }

    async fn check<B>(&self, request: &Request<B>) -> Result<(), Answer> {
        let unauthorized = || text(StatusCode::UNAUTHORIZED, "Unauthorized");
        let value = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let asked = value(ASKER_HEADER);
        let token = asked
            .or_else(|| value(header::AUTHORIZATION.as_str())?.strip_prefix("Bearer "))
            .map(str::trim)
            .filter(|token| !token.is_empty())
            .ok_or_else(unauthorized)?
            .to_owned();
        let audience = asked.is_some().then_some(ASKER_AUDIENCE);
        let path = request.uri().path().to_owned();
        let verb = request.method().as_str().to_lowercase();
        // Only a keyed hash of the token is kept.
        let key = self.hasher.hash_one((&token, &path, &verb, audience));
        let remembered = self
            .remembered
            .lock()
            .get(&key)
            .copied()
            .filter(|(_, until)| Instant::now() < *until);
        let standing = match remembered {
            Some((standing, _)) => standing,
            None => {
                let standing = self.ask(token, audience, path, verb).await.map_err(|error| {
                    tracing::error!(err = %error, "Failed to authorize a diagnostics request");
                    text(StatusCode::INTERNAL_SERVER_ERROR, "Authentication failed")
                })?;
                let trusted = if standing == Standing::Allowed {
                    ALLOWED_FOR
                } else {
                    REFUSED_FOR
                };
                let mut remembered = self.remembered.lock();
                if remembered.len() >= REMEMBERED {
                    remembered.clear();
                }
                remembered.insert(key, (standing, Instant::now() + trusted));
                standing
            }
        };
        match standing {
            Standing::Allowed => Ok(()),
            Standing::Unknown => Err(unauthorized()),
            Standing::Forbidden => Err(text(StatusCode::FORBIDDEN, "Authorization denied")),
        }
    }

    /// A token for an audience of our own has to be for that one.
    async fn ask(
        &self,
        token: String,
        audience: Option<&str>,
        path: String,
        verb: String,
    ) -> Result<Standing, kube::Error> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token),
                audiences: audience.map(|audience| vec![audience.to_owned()]),
            },
            ..TokenReview::default()
        };
        let reviewed = Api::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await?;
        let Some(user) = reviewed
            .status
            .filter(|status| status.authenticated == Some(true))
            .filter(|status| {
                let holds = |audience: &str| status.audiences.iter().flatten().any(|one| one == audience);
                audience.is_none_or(holds)
            })
            .and_then(|status| status.user)
        else {
            return Ok(Standing::Unknown);
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                groups: user.groups,
                uid: user.uid,
                extra: user.extra,
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path),
                    verb: Some(verb),
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviewed = Api::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await?;
        let allowed = reviewed.status.is_some_and(|status| status.allowed);
        Ok(if allowed {
            Standing::Allowed
        } else {
            Standing::Forbidden
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An apiserver that knows one token, whose owner may read metrics and nothing else.
    fn gatekeeper(asked: Arc<AtomicUsize>) -> Gatekeeper {
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let asked = asked.clone();
            async move {
                asked.fetch_add(1, Ordering::Relaxed);
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let mut review: Value = serde_json::from_slice(&body).unwrap();
                review["status"] = if path.ends_with("/tokenreviews") {
                    let known = review["spec"]["token"] == "good";
                    json!({"authenticated": known, "user": {"username": "prometheus"}})
                } else {
                    assert_eq!(review["spec"]["user"], "prometheus");
                    let desired = &review["spec"]["nonResourceAttributes"];
                    json!({"allowed": *desired == json!({"path": "/metrics", "verb": "get"})})
                };
                let body = kube::client::Body::from(review.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(Response::builder().status(201).body(body).unwrap())
            }
        });
        Gatekeeper::new(kube::Client::new(service, "default"))
    }

    #[tokio::test(start_paused = true)]
    async fn only_those_whom_the_cluster_allows_get_in_and_it_is_not_asked_every_time() {
        let asked = Arc::new(AtomicUsize::new(0));
        let gate = gatekeeper(asked.clone());
        let check = async |method: Method, path: &str, token: Option<&str>| {
            let mut request = Request::builder().method(method).uri(path);
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            gate.check(&request.body(()).unwrap())
                .await
                .map_err(|answer| answer.status())
        };
        assert_eq!(
            check(Method::GET, "/metrics", None).await,
            Err(StatusCode::UNAUTHORIZED)
        );
        assert_eq!(
            check(Method::GET, "/metrics", Some("bad")).await,
            Err(StatusCode::UNAUTHORIZED)
        );
        assert_eq!(
            check(Method::PUT, "/debug/flags/v", Some("good")).await,
            Err(StatusCode::FORBIDDEN)
        );
        assert_eq!(check(Method::GET, "/metrics", Some("good")).await, Ok(()));
        let before = asked.load(Ordering::Relaxed);
        assert_eq!(check(Method::GET, "/metrics", Some("good")).await, Ok(()));
        assert_eq!(asked.load(Ordering::Relaxed), before);
        tokio::time::advance(ALLOWED_FOR).await;
        assert_eq!(check(Method::GET, "/metrics", Some("good")).await, Ok(()));
        assert_eq!(asked.load(Ordering::Relaxed), before + 2);
    }
}
