//! What a controller would do with an object, for whoever asks a running manager before anything happens: the reads and the plan
//! of a reconcile, and none of its writes. A controller that can say registers here for as long as it runs.

use std::{
    collections::HashMap,
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::Method;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{sync::Semaphore, time::timeout};
use tower::BoxError;

use crate::ObjectKey;

/// Previews at a time: they read what reconciles read.
const AT_A_TIME: usize = 4;
/// A preview that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(55);

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question {
    /// The object as it would be; as the caches show it where absent.
    pub object: Option<Value>,
    /// As if nothing held the controller back that a user may take away by a word: what an object that is only read would do if it were managed.
    pub unheld: bool,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// Changes something outside of Kubernetes.
    Outside,
    /// Writes in Kubernetes alone, or nothing.
    Inside,
    /// Something has to come first, so more may follow.
    Wait,
    /// Something is wrong, and nothing after it is known.
    Blocked,
}

/// One field that a step changes. Never a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewChange {
    pub path: String,
    pub from: String,
    pub to: String,
}

/// One entry of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewStep {
    pub what: String,
    pub why: String,
    pub effect: Effect,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<PreviewChange>,
}

/// What a controller would do with an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// Why nothing of it is done before that ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<String>,
    /// Why nothing is planned for the object at all: it is nobody's, or somebody else's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_alone: Option<String>,
    pub steps: Vec<PreviewStep>,
}

impl Preview {
    /// Nothing is planned for the object, and this is why.
    pub fn left_alone(why: impl Into<String>) -> Self {
        Self {
            left_alone: Some(why.into()),
            ..Self::default()
        }
    }
}

/// Why there is no preview.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no controller of {0} runs here: either its provider is switched off, or another replica leads")]
    NoController(String),
    #[error("there is no {0}")]
    NoObject(String),
    #[error("{0} cannot be read: {1}")]
    Unreadable(String, String),
    #[error("{0} is not planned ahead: only its own controller knows, while it works on it")]
    NotPlanned(String),
    #[error("observing {0} failed: {1}")]
    Failed(String, String),
    #[error("observing {0} took too long: ask again")]
    TimedOut(String),
}

/// Answers for one kind.
pub(crate) type Previewer =
    Arc<dyn Fn(ObjectKey, Question) -> BoxFuture<'static, Result<Preview, Refusal>> + Send + Sync>;

type Kinds = Mutex<HashMap<(String, String), Previewer>>;

/// The controllers that can say what they would do. Clones share them.
#[derive(Clone)]
pub struct Previews {
    kinds: Arc<Kinds>,
    turns: Arc<Semaphore>,
}

impl Default for Previews {
    fn default() -> Self {
        Self {
            kinds: Arc::default(),
            turns: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }
}

impl fmt::Debug for Previews {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<String> = self.kinds.lock().keys().map(|(_, kind)| kind.clone()).collect();
        formatter
            .debug_struct("Previews")
            .field("kinds", &kinds)
            .finish_non_exhaustive()
    }
}

/// A registration, which ends when it is dropped.
pub(crate) struct Registered {
    kinds: Weak<Kinds>,
    key: (String, String),
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(kinds) = self.kinds.upgrade() {
            kinds.lock().remove(&self.key);
        }
    }
}

impl Previews {
    pub(crate) fn register(&self, group: &str, kind: &str, previewer: Previewer) -> Registered {
        let key = (group.to_owned(), kind.to_owned());
        self.kinds.lock().insert(key.clone(), previewer);
        Registered {
            kinds: Arc::downgrade(&self.kinds),
            key,
        }
    }

    /// What the controller of a kind would do with an object. A panic in it ends here.
    pub async fn ask(
        &self,
        group: &str,
        kind: &str,
        key: ObjectKey,
        question: Question,
    ) -> Result<Preview, Refusal> {
        let previewer = self
            .kinds
            .lock()
            .get(&(group.to_owned(), kind.to_owned()))
            .cloned();
        let previewer = previewer.ok_or_else(|| Refusal::NoController(format!("{kind}.{group}")))?;
        let name = format!("{kind} {key}");
        let answer = async {
            let _turn = self.turns.acquire().await;
            AssertUnwindSafe(previewer(key, question)).catch_unwind().await
        };
        match timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Refusal::Failed(name, "it panicked; the log has it".to_owned())),
            Err(_) => Err(Refusal::TimedOut(name)),
        }
    }
}

/// A write was tried where only reads are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing is written while it is only asked what would be done")]
pub struct ReadsOnly;

/// Whether a request leaves everything as it is. A token of a ServiceAccount is asked for with a POST.
fn reads(method: &Method, path: &str) -> bool {
    let is_token = path.contains("/serviceaccounts/") && path.ends_with("/token");
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) || (*method == Method::POST && is_token)
}

/// The same client, which refuses every write.
pub(crate) fn reading(client: &Client) -> Client {
    let inner = client.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let inner = inner.clone();
        async move {
            if !reads(request.method(), request.uri().path()) {
                return Err(BoxError::from(ReadsOnly));
            }
            inner.send(request).await.map_err(BoxError::from)
        }
    });
    Client::new(service, client.default_namespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[tokio::test(start_paused = true)]
    async fn a_kind_answers_while_its_controller_runs_and_no_failure_gets_out() {
        let previews = Previews::default();
        let key = || ObjectKey::namespaced("default", "north");
        let ask = async || previews.ask("toy.dev", "Fleet", key(), Question::default()).await;
        assert_eq!(
            ask().await,
            Err(Refusal::NoController("Fleet.toy.dev".to_owned()))
        );
        let registered = previews.register(
            "toy.dev",
            "Fleet",
            Arc::new(|key, _| async move { Ok(Preview::left_alone(key.name())) }.boxed()),
        );
        assert_eq!(ask().await, Ok(Preview::left_alone("north")));
        drop(registered);
        assert!(ask().await.is_err());
        let _panics = previews.register(
            "toy.dev",
            "Fleet",
            Arc::new(|_, _| async { panic!("no plan") }.boxed()),
        );
        assert!(matches!(ask().await, Err(Refusal::Failed(..))));
        let _hangs = previews.register(
            "toy.dev",
            "Fleet",
            Arc::new(|_, _| std::future::pending().boxed()),
        );
        assert!(matches!(ask().await, Err(Refusal::TimedOut(_))));
    }

    #[tokio::test]
    async fn nothing_is_written_through_a_client_that_reads() {
        let answers = tower::service_fn(|_: http::Request<Body>| async {
            Ok::<_, Infallible>(http::Response::new(Body::from(b"{}".to_vec())))
        });
        let client = reading(&Client::new(answers, "default"));
        let send = async |method: Method, path: &str| {
            let request = http::Request::builder().method(method).uri(path);
            client.send(request.body(Body::empty()).unwrap()).await
        };
        let objects = "/apis/toy.dev/v1/namespaces/default/fleets";
        assert!(send(Method::GET, objects).await.is_ok());
        let token = "/api/v1/namespaces/default/serviceaccounts/aso-workload/token";
        assert!(send(Method::POST, token).await.is_ok());
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(send(method.clone(), objects).await.is_err(), "{method}");
        }
        assert!(send(Method::PATCH, token).await.is_err());
    }
}
