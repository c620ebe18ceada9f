//! What surrounds the controllers of an Azure provider in the sweep: Azure with something of others in it, core, and what must
//! hold of both. A provider says only what is its own.

use std::{
    collections::BTreeMap,
    marker::PhantomData,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::{FutureExt, future::BoxFuture};
use http::Method;
use parking_lot::Mutex;
use regex::Regex;
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, Kinds, faults::Faults};
use slipway_azure_sim::{Request, Response, Settings, Simulator, State};
use slipway_runtime::{Clock, controller::Registration};
use tokio::sync::Notify;

use super::{CLIENT, Controllers, Guard, ask, faulty_transport, in_azure, quick, resumed, sender, simulator};
use crate::{core::FakeCore, journey::Surroundings};

/// What is in Azure and somebody else's.
pub const THEIRS: [&str; 2] = [
    "/resourceGroups/theirs",
    "/resourceGroups/theirs/providers/Microsoft.Network/virtualNetworks/spine",
];

/// The annotation that records what was sent to Azure, and the tag by which an object owns a resource there.
const RECORD: &str = "slipway.dev/azure-applied";
const OWNER: &str = "slipway.dev_owner";

/// What the sweep has to know of a provider.
pub trait AzureProvider: Send + Sync + 'static {
    /// The kinds of the objects that own an AKS cluster, and that own a pool.
    const CONTROL_PLANE: &'static str;
    const POOL: &'static str;

    fn kinds() -> &'static Kinds;

    /// The controllers of one process, with workload clusters that nobody reaches.
    fn controllers() -> Controllers;

    /// What is in Azure and in no record of an object that a finalizer holds. Of others there is nothing in `there`.
    fn orphan<'a>(objects: &[Value], there: &[&'a str]) -> Option<&'a str>;

    /// Whether a control plane that is initialized has its endpoint.
    fn has_endpoint(control_plane: &Value) -> bool;

    /// Who works beside the controllers, for ever, and asks Azure by [`Life::answer`].
    fn beside(life: &Arc<Life<Self>>) -> BoxFuture<'static, ()>
    where
        Self: Sized,
    {
        let _ = life;
        futures::future::pending().boxed()
    }

    /// Why a write must not be sent: by the controllers, or by who works beside them.
    fn objection(objects: &[Value], request: &Request, by: Sender) -> Option<String> {
        let _ = (objects, request, by);
        None
    }
}

/// Who asks Azure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Controllers,
    Beside,
}

/// Who owns what is in Azure, as of the last request.
#[derive(Default)]
struct Owners {
    /// The marks on what is there, by id in lower case.
    marks: BTreeMap<String, String>,
    /// Who wrote a mark first, by the client id of the request that did.
    writers: BTreeMap<String, String>,
}

impl Owners {
    /// Whose mark a request's target carries, or what it belongs to.
    fn of(&self, path: &str) -> Option<&str> {
        let path = path.to_ascii_lowercase();
        let whole = |id: &str| {
            ["/managedclusters/", "/virtualnetworks/"]
                .iter()
                .any(|kind| id.contains(kind))
        };
        self.marks
            .iter()
            .find(|(id, _)| {
                let below = path.strip_prefix(id.as_str());
                below.is_some_and(|rest| rest.is_empty() || (rest.starts_with('/') && whole(id)))
            })
            .map(|(_, mark)| mark.as_str())
    }
}

fn marks_in(azure: &Simulator) -> BTreeMap<String, String> {
    let azure = azure.azure();
    let resources = azure.state().resources.iter();
    let marked = resources.filter_map(|resource| {
        let mark = resource.document.get("tags")?.get(OWNER)?.as_str()?;
        Some((resource.id.to_ascii_lowercase(), mark.to_owned()))
    });
    marked.collect()
}

/// One run's Azure and core, and what happened there that must not.
pub struct Life<P> {
    server: Apiserver,
    clock: Clock,
    pub azure: Arc<Simulator>,
    /// While objects are moved nothing holds what is in Azure, and nothing may touch it.
    pub moving: AtomicBool,
    /// From here on everything in Azure is another Cluster's.
    pub foreign: AtomicBool,
    violation: Mutex<Option<String>>,
    owners: Mutex<Owners>,
    requests: AtomicUsize,
    /// The request at which a rival comes.
    rival_at: usize,
    rival: Notify,
    provider: PhantomData<P>,
}

impl<P: AzureProvider> Life<P> {
    fn with(server: &Apiserver, clock: Clock, azure: Arc<Simulator>) -> Self {
        let marks = marks_in(&azure);
        // Whatever is there before the first request is the user's.
        let writers = marks.values().map(|mark| (mark.clone(), CLIENT.to_owned()));
        let owners = Owners {
            writers: writers.collect(),
            marks,
        };
        Self {
            server: server.clone(),
            clock,
            azure,
            moving: AtomicBool::new(false),
            foreign: AtomicBool::new(false),
            violation: Mutex::default(),
            owners: Mutex::new(owners),
            requests: AtomicUsize::new(0),
            rival_at: usize::MAX,
            rival: Notify::new(),
            provider: PhantomData,
        }
    }

    /// The same, told when its requests have come to a step.
    pub fn expecting_rival_at(mut self, step: usize) -> Self {
        self.rival_at = step;
        self
    }

    pub async fn rival_is_due(&self) {
        self.rival.notified().await;
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// The marks of control planes that are not being deleted.
    fn marks(objects: &[Value]) -> Vec<String> {
        objects
            .iter()
            .filter(|object| object["kind"] == P::CONTROL_PLANE)
            .filter(|object| object["metadata"]["deletionTimestamp"].is_null())
            .filter_map(|object| object["metadata"]["annotations"][RECORD].as_str())
            .filter_map(|text| serde_json::from_str::<Value>(text).ok())
            .filter_map(|record| Some(record["mark"].as_str()?.to_owned()))
            .collect()
    }

    /// Where objects are.
    pub fn server(&self) -> &Apiserver {
        &self.server
    }

    /// Answers who works beside the controllers with the same identity, and checks what is asked.
    pub fn answer(&self, request: &Request) -> Response {
        let answer = self.azure.handle(request);
        self.check(request, Sender::Beside);
        answer
    }

    /// A mark stays on what carries it until that is gone (a GET before every PUT shows what is gone), whoever is not being
    /// deleted keeps what carries its mark, and nobody but who wrote a mark asks for anything else than to read what carries it.
    fn check_owners(&self, request: &Request, by: Sender) {
        let (method, path) = (&request.method, &request.path);
        let sender = match by {
            Sender::Controllers => sender(request).unwrap_or_default(),
            Sender::Beside => CLIENT.to_owned(),
        };
        let now = marks_in(&self.azure);
        let mut owners = self.owners.lock();
        for (id, mark) in &now {
            if let Some(before) = owners.marks.get(id).filter(|before| *before != mark) {
                self.note(format!("{method} {path}: {id} of {before} became {mark}'s"));
            }
        }
        if *method == Method::DELETE
            && let Some(mark) = owners.marks.get(&path.to_ascii_lowercase())
            && self.server.look(|objects| Self::marks(objects).contains(mark))
        {
            self.note(format!("{method} {path}, whose owner {mark} stays"));
        }
        let writer = owners.of(path).and_then(|mark| owners.writers.get(mark));
        if *method != Method::GET
            && let Some(writer) = writer.filter(|writer| **writer != sender)
        {
            self.note(format!("{method} {path} of {writer} by {sender}"));
        }
        for mark in now.values() {
            owners
                .writers
                .entry(mark.clone())
                .or_insert_with(|| sender.clone());
        }
        owners.marks = now;
    }

    /// Held after every change here and after every answer of Azure.
    fn check_azure(&self, objects: &[Value]) -> Result<(), String> {
        let there = in_azure(&self.azure);
        for id in THEIRS {
            let id = id.to_lowercase();
            if !there.iter().any(|one| one.ends_with(&id)) {
                return Err(format!("{id} is not ours and is gone"));
            }
        }
        if self.moving.load(Ordering::SeqCst) {
            return Ok(());
        }
        let ours: Vec<&str> = there
            .iter()
            .map(String::as_str)
            .filter(|id| !id.contains("/resourcegroups/theirs"))
            .collect();
        match P::orphan(objects, &ours) {
            Some(id) => Err(format!("{id} is orphaned: no finalizer holds it")),
            None => Ok(()),
        }
    }

    fn note(&self, what: String) {
        self.violation.lock().get_or_insert(what);
    }

    /// Checks what the controllers ask of Azure, and what is there after it.
    fn check(&self, request: &Request, by: Sender) {
        let (method, path) = (&request.method, &request.path);
        if self.requests.fetch_add(1, Ordering::SeqCst) + 1 == self.rival_at {
            self.rival.notify_one();
        }
        self.check_owners(request, by);
        let is_write = matches!(*method, Method::PUT | Method::PATCH | Method::DELETE);
        if is_write && let Some(why) = self.server.look(|objects| P::objection(objects, request, by)) {
            self.note(format!("{method} {path} by {by:?}: {why}"));
        }
        if *method != Method::GET && !path.contains("oauth2") {
            if path.to_lowercase().contains("/resourcegroups/theirs") {
                self.note(format!("{method} {path}, which is not ours"));
            }
            if self.foreign.load(Ordering::SeqCst) {
                self.note(format!("{method} {path}, which the first Cluster owns"));
            }
            if self.moving.load(Ordering::SeqCst) {
                self.note(format!("{method} {path} while the cluster is moved"));
            }
        }
        if let Err(what) = self.server.look(|objects| self.check_azure(objects)) {
            self.note(what);
        }
    }
}

fn settings() -> Settings {
    Settings {
        throttling: false,
        ..quick()
    }
}

impl<P: AzureProvider> Surroundings for Life<P> {
    type State = State;

    fn new(server: &Apiserver, clock: Clock) -> Self {
        server.install_kinds(P::kinds());
        let azure = simulator(settings(), clock);
        let location = json!({"location": "westus3"});
        ask(&azure, Method::PUT, THEIRS[0], Some(&location));
        let network = json!({"location": "westus3",
            "properties": {"addressSpace": {"addressPrefixes": ["10.90.0.0/16"]}}});
        ask(&azure, Method::PUT, THEIRS[1], Some(&network));
        Self::with(server, clock, azure)
    }

    fn resume(server: &Apiserver, clock: Clock, state: &State) -> Self {
        Self::with(server, clock, resumed(settings(), clock, state.clone()))
    }

    fn state(&self) -> State {
        self.azure.azure().state().clone()
    }

    fn controllers(self: &Arc<Self>, faults: &Faults) -> Vec<Registration> {
        let me = Arc::downgrade(self);
        let guard: Guard = Arc::new(move |request: &Request| {
            if let Some(life) = me.upgrade() {
                life.check(request, Sender::Controllers);
            }
        });
        P::controllers()(self.clock, faulty_transport(&self.azure, faults, guard))
    }

    fn play(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        let core = FakeCore::new(self.server.clone(), self.clock).run();
        let beside = P::beside(self);
        async move {
            futures::join!(core, beside);
        }
        .boxed()
    }

    fn invariants(&self, objects: &[Value]) -> Result<(), String> {
        if let Some(what) = self.violation.lock().clone() {
            return Err(what);
        }
        self.check_azure(objects)?;
        let unreachable = objects
            .iter()
            .filter(|object| object["kind"] == P::CONTROL_PLANE)
            .any(|plane| plane["status"]["initialized"] == true && !P::has_endpoint(plane));
        if unreachable {
            return Err("initialized without an endpoint".to_owned());
        }
        Ok(())
    }

    fn end_state(&self, objects: Vec<Value>) -> Value {
        let objects: Vec<Value> = objects
            .into_iter()
            .map(|object| however_it_came(readable(object), P::POOL))
            .collect();
        plain(
            &json!({"azure": in_azure(&self.azure), "objects": objects, "violation": *self.violation.lock()}),
        )
    }
}

/// A secret's texts in the clear, so that what is made up can be told in them too.
fn readable(mut object: Value) -> Value {
    if object["kind"] != "Secret" {
        return object;
    }
    // As early or late as the token in it came.
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove("slipway.dev/renew-after");
    }
    for value in object["data"]
        .as_object_mut()
        .into_iter()
        .flat_map(|data| data.values_mut())
    {
        let text = value
            .as_str()
            .and_then(|text| STANDARD.decode(text).ok())
            .and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some(text) = text {
            *value = text.into();
        }
    }
    object
}

/// Without what depends on when something came about: since when a resource stands as it does, and the mark. Whether a pool
/// comes with its cluster or after it depends on what was to be seen when the cluster was made: who made it, and what Azure
/// answered to a body of its own. A pool goes with its object either way.
fn however_it_came(mut object: Value, pool: &str) -> Value {
    let is_pool = object["kind"] == pool;
    for line in object["status"]["resources"].as_array_mut().into_iter().flatten() {
        if let Some(line) = line.as_object_mut() {
            line.remove("since");
        }
    }
    // What an operator was given holds the mark.
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove("slipway.dev/given");
    }
    if let Some(tags) = object["spec"]["tags"].as_object_mut() {
        tags.remove(OWNER);
    }
    let Some(applied) = object["metadata"]["annotations"].get_mut(RECORD) else {
        return object;
    };
    let text = applied.as_str().unwrap_or_default();
    let mut entries: BTreeMap<String, Value> = serde_json::from_str(text).expect("a record that can be read");
    // Made up, and as early or late as it was stored.
    entries.remove("mark");
    entries.remove("object");
    for entry in entries.values_mut().filter_map(Value::as_object_mut) {
        entry.remove("since");
        if !is_pool {
            continue;
        }
        entry.remove("made");
        if let Some(record) = entry.get_mut("record").and_then(Value::as_object_mut) {
            record.remove("accepted");
        }
    }
    *applied = json!(entries);
    object
}

/// Without the names and tokens that Azure makes up: they follow from how often it was asked.
fn plain(end: &Value) -> Value {
    static MADE_UP: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"-[0-9a-f]{8}(\.hcp|-vmss)|(token: )[0-9a-f]{32}|eyJ[\w-]+\.[\w-]+\.[\w-]+")
            .expect("an expression")
    });
    let text = end.to_string();
    serde_json::from_str(&MADE_UP.replace_all(&text, "$1$2")).expect("still JSON")
}
