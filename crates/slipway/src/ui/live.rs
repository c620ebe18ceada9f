//! What the page knows: the objects of the fleet, kept by watches. Of each kind that the caller may not list it knows only that.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use kube::{
    ResourceExt,
    api::DynamicObject,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use serde_json::{Value, json};
use slipway_insight::{Catalogue, Id, Link, Objects, Part};
use slipway_runtime::Preview;
use tokio::{
    sync::{Notify, watch},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

use crate::see::{
    collect,
    connect::{Connection, Served, served},
    plan::Managers,
};

/// Of one answer to a list.
const PAGE: u32 = 500;
/// Rights may be given later.
const ASK_AGAIN: Duration = Duration::from_mins(1);
/// Kinds may be installed, and others referred to, later.
const DISCOVER: Duration = Duration::from_secs(30);
const PROBE: Duration = Duration::from_secs(10);
/// While it does not answer.
const PROBE_AGAIN: Duration = Duration::from_secs(2);
/// The newest are kept.
const EVENTS: usize = 5_000;

/// What everybody who has the page open hears whenever anything has changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Word {
    pub revision: u64,
    /// Kinds whose first list is not here yet.
    pub loading: usize,
    /// Why nothing new comes, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    pub context: String,
}

/// What is shown, and who is asked for plans.
#[derive(Clone, Default)]
pub struct Shows {
    pub catalogue: Catalogue,
    pub managers: Managers,
    /// Empty for every namespace.
    pub namespace: String,
    /// What people call the cluster.
    pub context: String,
}

pub struct Live {
    pub catalogue: Catalogue,
    managers: Managers,
    connection: Connection,
    namespace: String,
    state: RwLock<State>,
    word: watch::Sender<Word>,
    /// A watch broke: is the API server still there?
    doubt: Notify,
    /// The API server does not take the caller's credentials any more.
    refused: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

#[derive(Default)]
struct State {
    objects: Objects,
    /// Kinds that are watched.
    watched: BTreeSet<Key>,
    loading: BTreeSet<Key>,
    /// Events in the order in which they came, and where each is.
    order: BTreeMap<u64, Id>,
    places: BTreeMap<Id, u64>,
    next: u64,
}

/// Group and kind.
type Key = (String, String);

fn key(served: &Served) -> Key {
    (served.resource.group.clone(), served.resource.kind.clone())
}

impl Live {
    /// Begins to watch. It goes on until the program ends.
    pub fn begin(connection: Connection, shows: Shows) -> Arc<Self> {
        let word = Word {
            context: shows.context,
            ..Word::default()
        };
        let live = Arc::new(Self {
            catalogue: shows.catalogue,
            managers: shows.managers,
            connection,
            namespace: shows.namespace,
            state: RwLock::default(),
            word: watch::Sender::new(word),
            doubt: Notify::new(),
            refused: AtomicBool::new(false),
            tasks: Mutex::default(),
        });
        let tasks = [
            tokio::spawn(Arc::clone(&live).follow_kinds()).abort_handle(),
            tokio::spawn(Arc::clone(&live).probe()).abort_handle(),
        ];
        live.tasks.lock().extend(tasks);
        live
    }

    /// Nothing is watched any more.
    pub fn end(&self) {
        self.tasks.lock().drain(..).for_each(|task| task.abort());
    }

    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    pub fn hear(&self) -> watch::Receiver<Word> {
        self.word.subscribe()
    }

    pub fn revision(&self) -> u64 {
        self.word.borrow().revision
    }

    pub fn read<T>(&self, look: impl FnOnce(&Objects) -> T) -> T {
        look(&self.state.read().objects)
    }

    /// Whether somebody can be asked what would be done with an object.
    pub fn has_plan(&self, id: &Id) -> bool {
        self.managers.know(id) && self.catalogue.kind(id).part != Part::Template
    }

    /// What its manager would do with an object now, asked with the caller's rights.
    pub async fn plan(&self, id: &Id) -> Result<Preview, String> {
        self.managers.preview(&self.connection, id, None).await
    }

    /// What the nodes of NodePools cost, by the autoscaler's manager.
    pub async fn cost(&self) -> Result<Value, String> {
        let kind = ("karpenter.sh", "NodePool");
        self.managers
            .question(&self.connection, kind, slipway_autoscaler::cost::QUESTION)
            .await
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let loading = {
            let mut state = self.state.write();
            change(&mut state);
            state.loading.len()
        };
        self.word.send_modify(|word| {
            word.revision += 1;
            word.loading = loading;
        });
    }

    /// Has a watch for every kind that belongs to the fleet, also for those that come later.
    async fn follow_kinds(self: Arc<Self>) {
        let mut watches: BTreeMap<Key, (String, AbortHandle)> = BTreeMap::new();
        // They end with this.
        let mut running = JoinSet::new();
        let mut all = self.connection.served.clone();
        loop {
            let desired = self.desired(&all);
            watches.retain(|key, (version, watch)| {
                let stays = desired
                    .iter()
                    .any(|served| self::key(served) == *key && served.resource.version == *version);
                if !stays {
                    watch.abort();
                    self.change(|state| state.forget(key));
                }
                stays
            });
            for served in desired {
                let key = key(&served);
                if watches.contains_key(&key) {
                    continue;
                }
                self.change(|state| {
                    state.watched.insert(key.clone());
                    state.loading.insert(key.clone());
                });
                let version = served.resource.version.clone();
                let task = running.spawn(Arc::clone(&self).follow(served));
                watches.insert(key, (version, task));
            }
            while running.try_join_next().is_some() {}
            sleep(DISCOVER).await;
            if let Ok(found) = served(&self.connection.client).await {
                all = found;
            }
        }
    }

    /// The kinds of the fleet, what their objects refer to, and events. Never Secrets, and of Kubernetes' own kinds only events.
    fn desired(&self, all: &[Served]) -> Vec<Served> {
        let mut desired: Vec<Served> = collect::of_fleet(all, &self.catalogue).cloned().collect();
        let referred = self.read(|objects| {
            let mut found: BTreeSet<Key> = BTreeSet::new();
            for (id, _) in objects.iter() {
                let kind = self.catalogue.kind(id);
                for link in kind.children.iter().chain(kind.needs) {
                    if let Link::Reference(_) | Link::Name { .. } = link {
                        let references = objects.follow(id, *link).into_iter();
                        found.extend(references.map(|reference| (reference.id.group, reference.id.kind)));
                    }
                }
            }
            found
        });
        for served in all {
            let key = key(served);
            let is_event = key.0.is_empty() && key.1 == "Event";
            let is_referred_to = !key.0.is_empty() && served.can_be_listed && referred.contains(&key);
            let is_there = desired.iter().any(|other| self::key(other) == key);
            if !is_there && (is_event || is_referred_to) {
                desired.push(served.clone());
            }
        }
        desired.retain(|served| served.resource.kind != "Secret");
        desired
    }

    /// Keeps the objects of one kind as they are.
    async fn follow(self: Arc<Self>, served: Served) {
        let key = key(&served);
        let mut known: BTreeSet<Id> = BTreeSet::new();
        loop {
            let api = collect::api(&self.connection, &served, &self.namespace);
            let config = watcher::Config::default().page_size(PAGE);
            let mut changes = pin!(watcher(api, config).default_backoff());
            let mut listed: BTreeSet<Id> = BTreeSet::new();
            while let Some(change) = changes.next().await {
                match change {
                    Ok(Event::Init) => listed.clear(),
                    Ok(Event::InitApply(object)) => {
                        let object = lean(&served, object);
                        listed.insert(Id::of(&object));
                        self.change(|state| state.put(object));
                    }
                    Ok(Event::InitDone) => {
                        self.change(|state| {
                            for id in known.difference(&listed) {
                                state.remove(id);
                            }
                            state.loading.remove(&key);
                            state.objects.can_read(&key.0, &key.1);
                        });
                        known = std::mem::take(&mut listed);
                    }
                    Ok(Event::Apply(object)) => {
                        let object = lean(&served, object);
                        known.insert(Id::of(&object));
                        self.change(|state| state.put(object));
                    }
                    Ok(Event::Delete(object)) => {
                        let id = Id::of(&lean(&served, object));
                        known.remove(&id);
                        self.change(|state| state.remove(&id));
                    }
                    Err(error) => match refused(&error) {
                        Some(why) => {
                            self.change(|state| {
                                for id in &known {
                                    state.remove(id);
                                }
                                state.loading.remove(&key);
                                state.objects.cannot_read(&key.0, &key.1, why);
                            });
                            known.clear();
                            break;
                        }
                        // It is tried again; whether the API server is there is for the probe to say.
                        None => self.doubt.notify_one(),
                    },
                }
            }
            sleep(ASK_AGAIN).await;
        }
    }

    /// Knows whether the API server answers.
    async fn probe(self: Arc<Self>) {
        loop {
            let asked = timeout(PROBE, self.connection.client.apiserver_version()).await;
            if let Ok(Err(kube::Error::Api(status))) = &asked {
                self.refused.store(status.code == 401, Ordering::Relaxed);
            }
            let problem = match asked {
                // Whoever is refused an answer has got one.
                Ok(Ok(_) | Err(kube::Error::Api(_))) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("it does not answer in time".to_owned()),
            };
            let pause = if problem.is_some() { PROBE_AGAIN } else { PROBE };
            self.word.send_if_modified(|word| {
                let is_new = word.problem != problem;
                word.problem = problem;
                is_new
            });
            tokio::select! {
                () = sleep(pause) => {}
                () = self.doubt.notified() => sleep(Duration::from_millis(200)).await,
            }
        }
    }
}

impl State {
    fn put(&mut self, object: Value) {
        let id = Id::of(&object);
        if id.kind != "Event" {
            self.objects.insert(object);
            return;
        }
        let about = &object["involvedObject"];
        let group = about["apiVersion"]
            .as_str()
            .and_then(|text| text.split_once('/'))
            .map_or("", |(group, _)| group);
        let kind = about["kind"].as_str().unwrap_or_default();
        // Those of pods and the like are many, and nothing of the fleet.
        if !self.watched.contains(&(group.to_owned(), kind.to_owned())) {
            return;
        }
        self.next += 1;
        if let Some(place) = self.places.insert(id.clone(), self.next) {
            self.order.remove(&place);
        }
        self.order.insert(self.next, id);
        self.objects.insert(object);
        while self.order.len() > EVENTS {
            let Some((_, oldest)) = self.order.pop_first() else {
                return;
            };
            self.places.remove(&oldest);
            self.objects.remove(&oldest);
        }
    }

    fn remove(&mut self, id: &Id) {
        if let Some(place) = self.places.remove(id) {
            self.order.remove(&place);
        }
        self.objects.remove(id);
    }

    /// A kind is not served any more.
    fn forget(&mut self, key: &Key) {
        let gone: Vec<Id> = self.objects.of_kind(&key.0, &key.1).cloned().collect();
        for id in gone {
            self.remove(&id);
        }
        self.watched.remove(key);
        self.loading.remove(key);
        self.objects.can_read(&key.0, &key.1);
    }
}

/// As plain JSON. Of who wrote what only the names and times are kept.
fn lean(served: &Served, mut object: DynamicObject) -> Value {
    let writers: Vec<Value> = std::mem::take(object.managed_fields_mut())
        .into_iter()
        .map(|writer| json!({"manager": writer.manager, "subresource": writer.subresource, "time": writer.time}))
        .collect();
    object
        .annotations_mut()
        .remove("kubectl.kubernetes.io/last-applied-configuration");
    let mut object = collect::plain(served, object);
    object["metadata"]["managedFields"] = json!(writers);
    object
}

/// The API server's words, where it does not let the caller read a kind.
fn refused(error: &watcher::Error) -> Option<String> {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchFailed(kube::Error::Api(status))
    | watcher::Error::WatchError(status)) = error
    else {
        return None;
    };
    (status.code == 403).then(|| status.message.clone())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kube::Client;

    use super::*;

    impl Live {
        /// Knows nothing, and asks nobody.
        pub fn of_nothing() -> Arc<Self> {
            let silent = |_: http::Request<kube::client::Body>| {
                std::future::pending::<Result<http::Response<kube::client::Body>, Infallible>>()
            };
            let connection = Connection {
                client: Client::new(tower::service_fn(silent), "default"),
                namespace: String::new(),
                served: Vec::new(),
            };
            Arc::new(Self {
                catalogue: Catalogue::default(),
                managers: Managers::default(),
                connection,
                namespace: String::new(),
                state: RwLock::default(),
                word: watch::Sender::new(Word::default()),
                doubt: Notify::new(),
                refused: AtomicBool::new(false),
                tasks: Mutex::default(),
            })
        }
    }

    fn event(name: &str, kind: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "shop"},
            "involvedObject": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "name": "one", "namespace": "shop"},
        })
    }

    #[test]
    fn events_are_kept_for_what_is_watched_and_only_the_newest() {
        let mut state = State::default();
        state
            .watched
            .insert(("cluster.x-k8s.io".to_owned(), "Cluster".to_owned()));
        state.put(event("of-a-pod", "Pod"));
        assert_eq!(state.objects.events().count(), 0);
        for number in 0..EVENTS + 10 {
            state.put(event(&format!("e{number}"), "Cluster"));
        }
        // One that comes again is new.
        state.put(event("e10", "Cluster"));
        state.put(event("last", "Cluster"));
        let names: BTreeSet<&str> = state.objects.events().map(|(id, _)| id.name.as_str()).collect();
        assert_eq!((names.len(), state.places.len()), (EVENTS, EVENTS));
        assert!(
            names.contains("e10")
                && names.contains("last")
                && !names.contains("e11")
                && !names.contains("e0")
        );
        state.remove(&Id::new("", "Event", "shop", "last"));
        assert_eq!(state.order.len(), EVENTS - 1);
    }

    #[test]
    fn what_is_not_served_any_more_is_gone() {
        let mut state = State::default();
        let key = ("toy.dev".to_owned(), "Boat".to_owned());
        state.watched.insert(key.clone());
        state.put(json!({"apiVersion": "toy.dev/v1", "kind": "Boat", "metadata": {"name": "one", "namespace": "shop"}}));
        state.put(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one", "namespace": "shop"}}),
        );
        assert_eq!(state.objects.len(), 1);
        state.forget(&key);
        assert!(state.objects.is_empty() && state.watched.is_empty());
    }
}
