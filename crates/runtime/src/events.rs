//! Kubernetes events: what a person sees in `kubectl describe`. Recording never waits and never fails a
//! reconcile; a background task sends, and repeats of an event are counted on the server's object.

use std::{fmt, sync::Arc};

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
        let recorder = Recorder::new(client, Reporter::from(component.to_owned()));
        tokio::spawn(send_all(recorder, receiver, shutdown));
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

async fn send_all(recorder: Recorder, mut receiver: mpsc::Receiver<Recorded>, shutdown: CancellationToken) {
    loop {
        let recorded = tokio::select! {
            () = shutdown.cancelled() => return,
            recorded = receiver.recv() => recorded,
        };
        let Some(recorded) = recorded else { return };
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
}
