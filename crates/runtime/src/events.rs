//! Kubernetes events: what a person sees in `kubectl describe`. Recording never waits and never fails a
//! reconcile; a background task sends. Every text is an event of its own; repeats of one are counted on the server's
//! object.

use std::{collections::HashMap, fmt, sync::Arc};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Resource,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::Metrics;

/// Events that may wait to be sent; more are dropped and counted, because an event is help, not state.
const WAITING: usize = 1024;

/// The longest note the API accepts.
const LONGEST_NOTE: usize = 1024;

/// One recorded event, as a test reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    pub warning: bool,
    /// Kind, namespace and name of what it is about.
    pub regarding: ObjectReference,
    pub reason: String,
    pub action: String,
    pub note: String,
}

/// Records events. Clones record to the same place.
#[derive(Clone)]
pub struct Events {
    sink: Sink,
    metrics: Metrics,
}

#[derive(Clone)]
enum Sink {
    Cluster(mpsc::Sender<Recorded>),
    Memory(Arc<Mutex<Vec<Recorded>>>),
}

impl Events {
    /// Sends to the cluster, in the name of a component, until shutdown.
    pub fn to_cluster(
        client: kube::Client,
        component: &str,
        metrics: Metrics,
        shutdown: CancellationToken,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let recorders = Recorders {
            client,
            reporter: Reporter::from(component.to_owned()),
            by_text: HashMap::new(),
        };
        tokio::spawn(send_all(recorders, receiver, shutdown));
        Self {
            sink: Sink::Cluster(sender),
            metrics,
        }
    }

    /// Keeps events in memory, for tests.
    pub fn in_memory() -> Self {
        Self {
            sink: Sink::Memory(Arc::default()),
            metrics: Metrics::new(),
        }
    }

    /// What an [`Events::in_memory`] recorder was given.
    pub fn recorded(&self) -> Vec<Recorded> {
        match &self.sink {
            Sink::Cluster(_) => Vec::new(),
            Sink::Memory(events) => events.lock().clone(),
        }
    }

    /// Something took place, as it should.
    pub fn normal<K>(&self, object: &K, reason: &str, action: &str, note: impl Into<String>)
    where
        K: Resource<DynamicType = ()>,
    {
        self.record(object.object_ref(&()), false, reason, action, note.into());
    }

    /// Something that a person may have to look at.
    pub fn warning<K>(&self, object: &K, reason: &str, action: &str, note: impl Into<String>)
    where
        K: Resource<DynamicType = ()>,
    {
        self.record(object.object_ref(&()), true, reason, action, note.into());
    }

    /// For an object of which only a reference is known.
    pub fn record(
        &self,
        regarding: ObjectReference,
        warning: bool,
        reason: &str,
        action: &str,
        mut note: String,
    ) {
        if note.len() > LONGEST_NOTE {
            let mut end = LONGEST_NOTE - "…".len();
            while !note.is_char_boundary(end) {
                end -= 1;
            }
            note.truncate(end);
            note.push('…');
        }
        let event = Recorded {
            warning,
            regarding,
            reason: reason.to_owned(),
            action: action.to_owned(),
            note,
        };
        match &self.sink {
            Sink::Memory(events) => events.lock().push(event),
            Sink::Cluster(sender) => {
                if sender.try_send(event).is_err() {
                    self.metrics.events_dropped.inc();
                }
            }
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Events").finish_non_exhaustive()
    }
}

/// One recorder for each text: a recorder counts what has the same object, reason and action as one event, and keeps
/// the text of the first.
struct Recorders {
    client: kube::Client,
    reporter: Reporter,
    by_text: HashMap<(String, String, String), Recorder>,
}

impl Recorders {
    /// Texts that are remembered; after that a repeat may be an event of its own.
    const MOST: usize = 512;

    fn of(&mut self, event: &Recorded) -> Recorder {
        if self.by_text.len() >= Self::MOST {
            self.by_text.clear();
        }
        let key = (
            event.regarding.uid.clone().unwrap_or_default(),
            event.reason.clone(),
            event.note.clone(),
        );
        self.by_text
            .entry(key)
            .or_insert_with(|| Recorder::new(self.client.clone(), self.reporter.clone()))
            .clone()
    }
}

async fn send_all(
    mut recorders: Recorders,
    mut receiver: mpsc::Receiver<Recorded>,
    shutdown: CancellationToken,
) {
    loop {
        let recorded = tokio::select! {
            () = shutdown.cancelled() => return,
            recorded = receiver.recv() => recorded,
        };
        let Some(recorded) = recorded else { return };
        let recorder = recorders.of(&recorded);
        let event = Event {
            type_: if recorded.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: recorded.reason,
            note: Some(recorded.note),
            action: recorded.action,
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, &recorded.regarding).await {
            tracing::debug!(%error, reason = event.reason, "Could not record an event");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    #[test]
    fn a_long_note_is_cut_between_characters() {
        let events = Events::in_memory();
        let object = ConfigMap {
            metadata: kube::api::ObjectMeta {
                name: Some("north".to_owned()),
                namespace: Some("default".to_owned()),
                ..Default::default()
            },
            ..Default::default()
        };
        events.warning(&object, "TooMuch", "Reconciling", "ß".repeat(2000));
        let recorded = events.recorded();
        assert_eq!(recorded.len(), 1);
        assert!(recorded[0].warning);
        assert_eq!(recorded[0].regarding.name.as_deref(), Some("north"));
        assert!(recorded[0].note.len() <= LONGEST_NOTE);
        assert!(recorded[0].note.ends_with("ß…"));
    }

    /// Four creations are four events, and one of them again is counted.
    #[tokio::test]
    async fn every_text_is_an_event_of_its_own_and_repeats_are_counted() {
        use http_body_util::BodyExt as _;
        use kube::client::Body;

        let (sender, mut requests) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let sender = sender.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let sent: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
                let _ = sender.send((parts.method, sent["note"].clone()));
                Ok::<_, tower::BoxError>(http::Response::new(Body::from(body.to_vec())))
            }
        });
        let shutdown = CancellationToken::new();
        let client = kube::Client::new(service, "default");
        let events = Events::to_cluster(client, "test", Metrics::new(), shutdown.clone());
        let regarding = ObjectReference {
            kind: Some("Fleet".to_owned()),
            namespace: Some("default".to_owned()),
            name: Some("north".to_owned()),
            uid: Some("1".to_owned()),
            ..ObjectReference::default()
        };
        let mut seen = Vec::new();
        for note in ["Creating a", "Creating b", "Creating a"] {
            events.record(regarding.clone(), false, "Creating", "Ensure", note.to_owned());
            let (method, sent) = requests.recv().await.expect("a request");
            seen.push((method, sent));
        }
        shutdown.cancel();
        assert_eq!(seen[0], (http::Method::POST, "Creating a".into()));
        assert_eq!(seen[1], (http::Method::POST, "Creating b".into()));
        assert_eq!(seen[2].0, http::Method::PATCH, "the third is the first again");
    }
}
