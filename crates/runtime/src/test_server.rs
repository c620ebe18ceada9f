//! A small apiserver in memory for this crate's own tests, with a hand on what real ones do badly: watches that
//! break, end or fall behind, versions that are gone, objects that cannot be read.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    sync::Arc,
};

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

/// Where an object lives: the collection's path without namespace, then the object's key.
type ObjectPath = (String, Option<String>, String);

#[derive(Clone, Default)]
pub(crate) struct TestServer {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<ObjectPath, Value>,
    history: Vec<Past>,
    compacted: u64,
    watches: Vec<Watch>,
    requests: Vec<String>,
    down: bool,
    held: bool,
    silent: bool,
    ends_watches_at_once: bool,
    refuses_old_versions_by_status: bool,
    fail: VecDeque<(Method, u16)>,
}

#[derive(Clone)]
struct Past {
    version: u64,
    place: ObjectPath,
    old: Option<Value>,
    new: Option<Value>,
}

struct Watch {
    collection: String,
    namespace: Option<String>,
    labels: Option<String>,
    sender: mpsc::UnboundedSender<Result<Bytes, std::io::Error>>,
    held: Vec<Past>,
}

impl Watch {
    fn tell(&mut self, past: &Past, held: bool) -> bool {
        if held {
            self.held.push(past.clone());
            return true;
        }
        match self.line(past) {
            Some(line) => self.sender.send(Ok(line)).is_ok(),
            None => !self.sender.is_closed(),
        }
    }

    fn line(&self, past: &Past) -> Option<Bytes> {
        let (collection, namespace, _) = &past.place;
        if *collection != self.collection || (self.namespace.is_some() && *namespace != self.namespace) {
            return None;
        }
        let selected = |object: &&Value| selects(self.labels.as_deref(), object);
        let old = past.old.as_ref().filter(selected);
        let new = past.new.as_ref().filter(selected);
        let (kind, object) = match (old, new) {
            (None, None) => return None,
            (None, Some(new)) => ("ADDED", new.clone()),
            (Some(_), Some(new)) => ("MODIFIED", new.clone()),
            (Some(old), None) => {
                let mut last = past.new.clone().unwrap_or_else(|| old.clone());
                last["metadata"]["resourceVersion"] = past.version.to_string().into();
                ("DELETED", last)
            }
        };
        Some(Bytes::from(format!(
            "{}\n",
            json!({"type": kind, "object": object})
        )))
    }
}

fn selects(selector: Option<&str>, object: &Value) -> bool {
    selector.is_none_or(|selector| {
        selector.split(',').all(|pair| {
            let (name, value) = pair.split_once('=').expect("only equality is spoken here");
            object["metadata"]["labels"][name] == value
        })
    })
}

impl TestServer {
    pub fn new() -> Self {
        let server = Self::default();
        server.state.lock().version = 100;
        server
    }

    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { server.answer(request).await }
        });
        Client::new(service, "default")
    }

    /// Puts an object, as somebody else would, given its collection's path (`/api/v1/configmaps`).
    pub fn put(&self, collection: &str, object: Value) -> u64 {
        let mut state = self.state.lock();
        let place = place(collection, &object);
        state.write(place, object)
    }

    pub fn remove(&self, collection: &str, namespace: Option<&str>, name: &str) {
        let place = (
            collection.to_owned(),
            namespace.map(str::to_owned),
            name.to_owned(),
        );
        self.state.lock().delete(&place);
    }

    pub fn get(&self, collection: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
        let place = (
            collection.to_owned(),
            namespace.map(str::to_owned),
            name.to_owned(),
        );
        self.state.lock().objects.get(&place).cloned()
    }

    pub fn names(&self, collection: &str) -> Vec<String> {
        let state = self.state.lock();
        let places = state.objects.keys().filter(|place| place.0 == collection);
        places.map(|place| place.2.clone()).collect()
    }

    /// Requests so far that start with this, e.g. `GET /api/v1/configmaps?`.
    pub fn count(&self, start: &str) -> usize {
        let state = self.state.lock();
        state
            .requests
            .iter()
            .filter(|request| request.starts_with(start))
            .count()
    }

    pub fn requests(&self) -> Vec<String> {
        self.state.lock().requests.clone()
    }

    pub fn watches(&self) -> usize {
        let mut state = self.state.lock();
        state.watches.retain(|watch| !watch.sender.is_closed());
        state.watches.len()
    }

    /// Breaks every watch in the middle of a line.
    pub fn cut(&self) {
        for watch in std::mem::take(&mut self.state.lock().watches) {
            let _ = watch.sender.send(Ok(Bytes::from_static(b"{\"type\":\"MODI")));
            let _ = watch.sender.send(Err(std::io::Error::new(
                std::io::ErrorKind::ConnectionReset,
                "connection reset by peer",
            )));
        }
    }

    /// Ends every watch as a server does when its time is over.
    pub fn end_watches(&self) {
        self.state.lock().watches.clear();
    }

    /// Sends every watch a line that is no JSON, then goes on.
    pub fn garble(&self) {
        for watch in &self.state.lock().watches {
            let _ = watch.sender.send(Ok(Bytes::from_static(b"{\"type\":!}\n")));
        }
    }

    /// Sends every watch a bookmark of the present.
    pub fn bookmark(&self) {
        let state = self.state.lock();
        let metadata = json!({"resourceVersion": state.version.to_string()});
        let object = json!({"kind": "Any", "apiVersion": "v1", "metadata": metadata});
        let line = format!("{}\n", json!({"type": "BOOKMARK", "object": object}));
        // A bookmark never overtakes the events before it.
        for watch in state.watches.iter().filter(|watch| watch.held.is_empty()) {
            let _ = watch.sender.send(Ok(Bytes::from(line.clone())));
        }
    }

    /// Forgets the past: a watch from before must list again.
    pub fn compact(&self) {
        let mut state = self.state.lock();
        state.compacted = state.version;
        state.history.clear();
    }

    pub fn set_down(&self, down: bool) {
        self.state.lock().down = down;
        if down {
            self.cut();
        }
    }

    /// Takes requests and does not answer them.
    pub fn set_silent(&self, silent: bool) {
        self.state.lock().silent = silent;
        if silent {
            self.cut();
        }
    }

    pub fn end_watches_at_once(&self, at_once: bool) {
        self.state.lock().ends_watches_at_once = at_once;
        if at_once {
            self.end_watches();
        }
    }

    /// Answers a watch from a forgotten version with a status instead of an event.
    pub fn refuse_old_versions_by_status(&self) {
        self.state.lock().refuses_old_versions_by_status = true;
    }

    /// Watches fall behind until released.
    pub fn hold_watches(&self) {
        self.state.lock().held = true;
    }

    pub fn release_watches(&self) {
        let mut state = self.state.lock();
        state.held = false;
        for watch in &mut state.watches {
            for past in std::mem::take(&mut watch.held) {
                watch.tell(&past, false);
            }
        }
    }

    /// The next request of this method fails with this status.
    pub fn fail_next(&self, method: Method, status: u16) {
        self.state.lock().fail.push_back((method, status));
    }

    async fn answer(&self, request: Request<Body>) -> Result<Answer, std::io::Error> {
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        match self.respond(&parts, &body) {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    /// Nothing if the server keeps silent.
    fn respond(&self, parts: &http::request::Parts, body: &Value) -> Option<Result<Answer, std::io::Error>> {
        let mut state = self.state.lock();
        let line = format!(
            "{} {}",
            parts.method,
            parts.uri.path_and_query().map_or("/", |path| path.as_str())
        );
        state.requests.push(line);
        if state.down {
            return Some(Err(std::io::Error::new(
                std::io::ErrorKind::ConnectionRefused,
                "connection refused",
            )));
        }
        if state.silent {
            return None;
        }
        if let Some(at) = state.fail.iter().position(|(method, _)| *method == parts.method)
            && let Some((_, code)) = state.fail.remove(at)
        {
            return Some(Ok(failure(code, "as asked")));
        }
        let query: BTreeMap<String, String> = parts
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), decode(value)))
            .collect();
        Some(Ok(state.route(&parts.method, parts.uri.path(), &query, body)))
    }
}

impl State {
    fn route(
        &mut self,
        method: &Method,
        path: &str,
        query: &BTreeMap<String, String>,
        body: &Value,
    ) -> Answer {
        let Some(target) = Target::parse(path) else {
            return failure(404, "no such path");
        };
        let name = target
            .name
            .clone()
            .or_else(|| body["metadata"]["name"].as_str().map(str::to_owned))
            .unwrap_or_default();
        let place = (target.collection.clone(), target.namespace.clone(), name);
        match (method, target.name.is_some()) {
            (&Method::GET, false) if query.get("watch").is_some_and(|watch| watch == "true") => {
                self.watch(target, query)
            }
            (&Method::GET, false) => self.list(&target, query),
            (&Method::GET, true) => match self.objects.get(&place) {
                Some(object) => answer(200, object),
                None => failure(404, "not found"),
            },
            (&Method::POST, _) => {
                if self.objects.contains_key(&place) {
                    return failure(409, "already exists");
                }
                self.write(place.clone(), body.clone());
                answer(201, &self.objects[&place])
            }
            (&Method::PATCH, _) => {
                let applied = query.contains_key("fieldManager");
                let Some(mut object) = self
                    .objects
                    .get(&place)
                    .cloned()
                    .or_else(|| applied.then(|| json!({})))
                else {
                    return failure(404, "not found");
                };
                json_patch::merge(&mut object, body);
                if self.objects.get(&place) != Some(&object) {
                    self.write(place.clone(), object);
                }
                answer(200, &self.objects[&place])
            }
            (&Method::DELETE, _) => match self.delete(&place) {
                Deletion::Begun(object) => answer(200, &object),
                Deletion::Done => answer(200, &json!({"kind": "Status", "status": "Success", "code": 200})),
                Deletion::NotFound => failure(404, "not found"),
            },
            _ => failure(405, "not spoken here"),
        }
    }

    fn write(&mut self, place: ObjectPath, mut object: Value) -> u64 {
        self.version += 1;
        let old = self.objects.get(&place).cloned();
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = self.version.to_string().into();
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("uid-{}", self.version).into();
        }
        let spec_changed = old
            .as_ref()
            .is_none_or(|old| old.get("spec") != object.get("spec"));
        if object.get("spec").is_some() {
            let generation = old
                .as_ref()
                .and_then(|old| old["metadata"]["generation"].as_i64())
                .unwrap_or(0);
            object["metadata"]["generation"] = (generation + i64::from(spec_changed)).into();
        }
        self.objects.insert(place.clone(), object.clone());
        self.record(place, old, Some(object));
        self.version
    }

    fn delete(&mut self, place: &ObjectPath) -> Deletion {
        let Some(object) = self.objects.get(place).cloned() else {
            return Deletion::NotFound;
        };
        if object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
        {
            let mut deleting = object;
            deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            self.write(place.clone(), deleting);
            return Deletion::Begun(self.objects[place].clone());
        }
        self.objects.remove(place);
        self.version += 1;
        self.record(place.clone(), Some(object), None);
        Deletion::Done
    }

    fn record(&mut self, place: ObjectPath, old: Option<Value>, new: Option<Value>) {
        let past = Past {
            version: self.version,
            place,
            old,
            new,
        };
        let held = self.held;
        self.watches.retain_mut(|watch| watch.tell(&past, held));
        self.history.push(past);
    }

    fn list(&self, target: &Target, query: &BTreeMap<String, String>) -> Answer {
        let all: Vec<&Value> = self
            .objects
            .iter()
            .filter(|((collection, namespace, _), object)| {
                *collection == target.collection
                    && (target.namespace.is_none() || *namespace == target.namespace)
                    && selects(query.get("labelSelector").map(String::as_str), object)
            })
            .map(|(_, object)| object)
            .collect();
        let start: usize = query.get("continue").map_or(0, |at| at.parse().unwrap());
        let limit: usize = query.get("limit").map_or(all.len(), |at| at.parse().unwrap());
        let end = all.len().min(start + limit);
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if end < all.len() {
            metadata["continue"] = end.to_string().into();
        }
        answer(
            200,
            &json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": all[start..end]}),
        )
    }

    fn watch(&mut self, target: Target, query: &BTreeMap<String, String>) -> Answer {
        let from: u64 = query
            .get("resourceVersion")
            .and_then(|version| version.parse().ok())
            .unwrap_or(0);
        let (sender, receiver) = mpsc::unbounded_channel();
        if from < self.compacted {
            if self.refuses_old_versions_by_status {
                return failure(410, "too old resource version");
            }
            let line = format!(
                "{}\n",
                json!({"type": "ERROR", "object": status(410, "too old resource version")})
            );
            let _ = sender.send(Ok(Bytes::from(line)));
        } else if !self.ends_watches_at_once {
            let mut watch = Watch {
                collection: target.collection,
                namespace: target.namespace,
                labels: query.get("labelSelector").cloned(),
                sender,
                held: Vec::new(),
            };
            for past in self.history.iter().filter(|past| past.version > from) {
                watch.tell(past, self.held);
            }
            self.watches.push(watch);
        }
        let lines = futures::stream::unfold(receiver, |mut receiver| async move {
            Some((receiver.recv().await?, receiver))
        });
        Response::new(StreamBody::new(lines.map(|line| line.map(Frame::data))).boxed_unsync())
    }
}

enum Deletion {
    NotFound,
    /// It has finalizers and so stays.
    Begun(Value),
    Done,
}

struct Target {
    collection: String,
    namespace: Option<String>,
    name: Option<String>,
}

impl Target {
    fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (root, rest) = match parts[0] {
            "api" => parts.split_at_checked(2)?,
            "apis" => parts.split_at_checked(3)?,
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        Some(Self {
            collection: format!("/{}/{}", root.join("/"), rest.first()?),
            namespace,
            name: rest.get(1).map(|name| (*name).to_owned()),
        })
    }
}

fn place(collection: &str, object: &Value) -> ObjectPath {
    let text = |name: &str| object["metadata"][name].as_str().map(str::to_owned);
    (
        collection.to_owned(),
        text("namespace"),
        text("name").unwrap_or_default(),
    )
}

fn status(code: u16, message: &str) -> Value {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        404 => "NotFound",
        _ => "Failure",
    };
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}

fn failure(code: u16, message: &str) -> Answer {
    answer(code, &status(code, message))
}

fn answer(code: u16, body: &Value) -> Answer {
    let body = http_body_util::Full::new(Bytes::from(body.to_string()));
    let mut response = Response::new(body.map_err(|never: Infallible| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).expect("a status");
    response
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().unwrap_or(b'0'), rest.next().unwrap_or(b'0')];
                let digits = std::str::from_utf8(&digits).unwrap_or("00").to_owned();
                bytes.push(u8::from_str_radix(&digits, 16).unwrap_or(b'?'));
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
