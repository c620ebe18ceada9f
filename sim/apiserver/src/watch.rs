//! Watches: streams of changes that begin where the client says, with bookmarks, time-outs and 410 Gone.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::{sync::watch, time::Instant};

use crate::{
    failure::{Answer, Failure},
    kinds::Kind,
    route::Call,
    select::Selector,
    server::{State, convert, matches},
    store::Key,
};

/// Which watches stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    All,
    /// Those of one resource (`plural.group`).
    Only(String),
    AllBut(String),
}

impl Held {
    fn holds(&self, resource: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(held) => held == resource,
            Self::AllBut(free) => free != resource,
        }
    }
}

/// What a test can do to watches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// The newest version there is something to read of.
    pub version: u64,
    /// Watches opened before this number end with a broken connection.
    pub cuts: u64,
    /// How often watches have been told to repeat their last events.
    pub repeats: u64,
    /// How often watches have been told to let the events that wait overtake each other.
    pub reorders: u64,
    /// Nothing newer than this is delivered by these watches while it is set.
    pub held: Option<(u64, Held)>,
}

impl Control {
    fn visible(&self, resource: &str) -> u64 {
        match &self.held {
            Some((at, held)) if held.holds(resource) => self.version.min(*at),
            _ => self.version,
        }
    }
}

const BOOKMARK_EVERY: Duration = Duration::from_mins(1);

/// Between events that overtook each other: long enough for a controller to act on a state that never was.
const REORDERED_APART: Duration = Duration::from_secs(1);

struct Watch {
    state: Arc<Mutex<State>>,
    control: watch::Receiver<Control>,
    opened_at: u64,
    kind: Arc<Kind>,
    version: String,
    namespace: Option<String>,
    selector: Selector,
    position: u64,
    ready: VecDeque<Value>,
    bookmarks: bool,
    deadline: Option<Instant>,
    next_bookmark: Instant,
    /// The last events delivered, oldest first.
    last: VecDeque<Value>,
    repeated: u64,
    reordered: u64,
    /// So many of the events that are ready are told with a pause before each.
    apart: usize,
    over: bool,
}

pub type Line = Result<Bytes, std::io::Error>;

pub fn open(
    state: &Arc<Mutex<State>>,
    control: watch::Receiver<Control>,
    call: &Call,
) -> Answer<impl Stream<Item = Line> + Send + 'static + use<>> {
    let guard = state.lock();
    let kind = guard.kind(call)?;
    let text = |name: &str| call.query.get(name).map(String::as_str);
    let mut selector = Selector::parse(text("labelSelector"), text("fieldSelector"))?;
    if let Some(name) = &call.name {
        selector = Selector::parse(text("labelSelector"), Some(&format!("metadata.name={name}")))?;
    }
    let asked = text("resourceVersion").unwrap_or_default();
    let from: u64 = if asked.is_empty() {
        0
    } else {
        asked
            .parse()
            .map_err(|_| Failure::bad_request(format!("invalid resource version {asked:?}")))?
    };
    let (cuts, repeats, reorders, visible) = {
        let control = control.borrow();
        let visible = control.visible(kind.resource());
        (control.cuts, control.repeats, control.reorders, visible)
    };
    let mut watch = Watch {
        state: state.clone(),
        opened_at: cuts,
        control,
        version: call.version.clone(),
        namespace: call.namespace.clone(),
        selector,
        position: from,
        ready: VecDeque::new(),
        bookmarks: call.flag("allowWatchBookmarks"),
        deadline: text("timeoutSeconds")
            .and_then(|seconds| seconds.parse().ok())
            .map(|seconds| Instant::now() + Duration::from_secs(seconds) + apart(kind.resource())),
        next_bookmark: Instant::now() + BOOKMARK_EVERY,
        last: VecDeque::new(),
        repeated: repeats,
        reordered: reorders,
        apart: 0,
        over: false,
        kind,
    };
    let initial_events = call.flag("sendInitialEvents");
    if from == 0 || initial_events {
        watch.position = visible;
        for (key, object) in guard.store.list(watch.kind.resource()) {
            if let Some(shown) = watch.show(key, object) {
                watch.ready.push_back(event("ADDED", shown));
            }
        }
        if initial_events {
            let mut bookmark = watch.bookmark();
            bookmark["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
            watch.ready.push_back(bookmark);
        }
    } else if from < guard.store.floor() {
        watch.ready.push_back(gone(from, guard.store.floor()));
        watch.over = true;
    }
    drop(guard);
    Ok(stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((line, watch))
    }))
}

/// Watches of different kinds that were opened together do not end together: which of them were first would be left to
/// chance, and no two runs would be the same.
fn apart(resource: &str) -> Duration {
    let sum = resource
        .bytes()
        .fold(7_u64, |sum, byte| (sum * 31 + u64::from(byte)) % 4999);
    Duration::from_millis(sum)
}

/// The same events, those of the last object first: each object's own stay in their order. A bookmark vouches for all
/// before it, so nothing passes one.
fn overtaken(events: VecDeque<Value>) -> VecDeque<Value> {
    let mut reordered = VecDeque::new();
    let mut groups: Vec<(Key, Vec<Value>)> = Vec::new();
    for event in events {
        let changes = matches!(event["type"].as_str(), Some("ADDED" | "MODIFIED" | "DELETED"));
        if !changes {
            reordered.extend(groups.drain(..).rev().flat_map(|(_, group)| group));
            reordered.push_back(event);
            continue;
        }
        let key = crate::store::key_of(&event["object"]);
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.push(event),
            None => groups.push((key, vec![event])),
        }
    }
    reordered.extend(groups.into_iter().rev().flat_map(|(_, group)| group));
    reordered
}

/// Moves the object: `json!` would copy it.
fn event(type_: &str, object: Value) -> Value {
    Value::Object(Map::from_iter([
        ("type".to_owned(), Value::String(type_.to_owned())),
        ("object".to_owned(), object),
    ]))
}

fn gone(version: u64, floor: u64) -> Value {
    json!({"type": "ERROR", "object": Failure::expired(version, floor).status()})
}

impl Watch {
    async fn next(&mut self) -> Option<Line> {
        loop {
            if self.control.borrow().cuts != self.opened_at {
                self.opened_at = u64::MAX;
                if std::mem::replace(&mut self.over, true) && self.ready.is_empty() {
                    return None;
                }
                self.ready.clear();
                return Some(Err(std::io::Error::new(
                    std::io::ErrorKind::ConnectionReset,
                    "the connection was cut",
                )));
            }
            let (repeats, reorders) = {
                let control = self.control.borrow();
                (control.repeats, control.reorders)
            };
            if reorders != self.reordered && !self.over {
                self.reordered = reorders;
                self.read();
                self.ready = overtaken(std::mem::take(&mut self.ready));
                self.apart = self.ready.len();
            }
            if repeats != self.repeated {
                self.repeated = repeats;
                self.ready.extend(self.last.iter().cloned());
            }
            if let Some(event) = self.ready.pop_front() {
                if self.apart > 0 {
                    self.apart -= 1;
                    tokio::time::sleep(REORDERED_APART).await;
                }
                self.remember(&event);
                let mut line = serde_json::to_vec(&event).unwrap_or_default();
                line.push(b'\n');
                return Some(Ok(Bytes::from(line)));
            }
            if self.over {
                return None;
            }
            self.control.mark_unchanged();
            self.read();
            if !self.ready.is_empty() || self.over {
                continue;
            }
            let far = Instant::now() + Duration::from_hours(24 * 365);
            let bookmark_at = if self.bookmarks { self.next_bookmark } else { far };
            tokio::select! {
                // Two at the same instant are taken in this order, every time.
                biased;
                changed = self.control.changed() => if changed.is_err() { return None },
                () = tokio::time::sleep_until(self.deadline.unwrap_or(far)) => return None,
                () = tokio::time::sleep_until(bookmark_at) => {
                    self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                    self.ready.push_back(self.bookmark());
                }
            }
        }
    }

    /// Keeps the last two changes, for a repetition.
    fn remember(&mut self, event: &Value) {
        if event["type"] == "MODIFIED" {
            self.last.push_back(event.clone());
            if self.last.len() > 2 {
                self.last.pop_front();
            }
        } else {
            // Repeating from before a deletion would bring an object back for good.
            self.last.clear();
        }
    }

    /// Takes over what happened since the last read.
    fn read(&mut self) {
        let visible = self.control.borrow().visible(self.kind.resource());
        let state = self.state.clone();
        let state = state.lock();
        if visible <= self.position {
            return;
        }
        if self.position < state.store.floor() {
            self.ready.push_back(gone(self.position, state.store.floor()));
            self.over = true;
            return;
        }
        for change in state.store.changes_after(self.kind.resource(), self.position) {
            if change.version > visible {
                break;
            }
            let object = change.after.as_ref().or(change.before.as_ref());
            let Some(key) = object.map(|object| crate::store::key_of(object)) else {
                continue;
            };
            let now = change.after.as_ref().and_then(|object| self.show(&key, object));
            // An object that leaves the selection is deleted as far as this watch is concerned.
            let was = change.before.as_ref().filter(|object| self.selects(&key, object));
            let (type_, object) = match (was, now) {
                (None, Some(object)) => ("ADDED", object),
                (Some(_), Some(object)) => ("MODIFIED", object),
                (Some(before), None) => {
                    let Some(mut object) = self.show(&key, before) else {
                        continue;
                    };
                    object["metadata"]["resourceVersion"] = Value::String(change.version.to_string());
                    ("DELETED", object)
                }
                (None, None) => continue,
            };
            self.ready.push_back(event(type_, object));
        }
        self.position = visible;
    }

    fn selects(&self, key: &Key, object: &Value) -> bool {
        self.namespace
            .as_ref()
            .is_none_or(|namespace| key.0 == *namespace)
            && matches(&self.kind, &self.selector, object, &self.version).unwrap_or_default()
    }

    fn show(&self, key: &Key, object: &Value) -> Option<Value> {
        if !self.selects(key, object) {
            return None;
        }
        convert(&self.kind, object, &self.version).ok()
    }

    fn bookmark(&self) -> Value {
        json!({"type": "BOOKMARK", "object": {
            "kind": self.kind.kind,
            "apiVersion": self.kind.api_version(&self.version),
            "metadata": {"resourceVersion": self.position.to_string(), "creationTimestamp": null},
        }})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_overtake_each_other_and_never_themselves() {
        let event = |kind: &str, name: &str, version: u64| {
            json!({"type": kind, "object":
            {"metadata": {"name": name, "resourceVersion": version.to_string()}}})
        };
        let events = VecDeque::from([
            event("ADDED", "a", 1),
            event("ADDED", "b", 2),
            event("MODIFIED", "a", 3),
            event("BOOKMARK", "", 3),
            event("DELETED", "a", 4),
            event("MODIFIED", "b", 5),
        ]);
        let versions: Vec<String> = overtaken(events)
            .iter()
            .map(|event| event["object"]["metadata"]["resourceVersion"].to_string())
            .collect();
        assert_eq!(
            versions,
            ["2", "1", "3", "3", "5", "4"].map(|version| format!("{version:?}"))
        );
    }
}
