//! The state behind the server, and the reads on it. Writes are in `write`, watches in `watch`.

use std::{collections::BTreeMap, sync::Arc};

use http::Method;
use serde_json::{Value, json};
use slipway_runtime::{Clock, admission::Admission};

use crate::{
    failure::{Answer, Failure},
    garbage,
    kinds::{Kind, built_in},
    route::Call,
    select::Selector,
    store::{Key, Store, key_of},
    view::View,
};

/// Sees every object after every change.
pub type Observer = Box<dyn Fn(&[Value]) + Send>;

pub struct State {
    pub kinds: Vec<Arc<Kind>>,
    pub store: Store,
    pub admission: Vec<Admission>,
    pub clock: Clock,
    pub observer: Option<Observer>,
    /// The version the observer has seen.
    pub observed: u64,
    /// What observers are shown.
    pub view: View,
    pub suffixes: u64,
    /// Resources whose next paged list ends in 410.
    expiring: BTreeMap<String, Expiring>,
}

/// How far a list that will expire has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiring {
    FirstPage,
    Continuation,
}

impl State {
    pub fn new(clock: Clock) -> Self {
        let mut state = Self {
            kinds: built_in(),
            store: Store::default(),
            admission: Vec::new(),
            clock,
            observer: None,
            observed: 0,
            view: View::default(),
            suffixes: 0,
            expiring: BTreeMap::new(),
        };
        for name in ["default", "kube-public", "kube-system"] {
            let uid = state.store.next_uid();
            state.store.put(
                "namespaces",
                json!({"apiVersion": "v1", "kind": "Namespace", "status": {"phase": "Active"},
                    "metadata": {"name": name, "uid": uid, "creationTimestamp": state.now()}}),
            );
        }
        state
    }

    pub fn now(&self) -> String {
        self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// The five characters that complete a `generateName`; the same in every run.
    pub fn next_suffix(&mut self) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        self.suffixes += 1;
        // Spread consecutive numbers, so that names do not sort in creation order.
        let mut number = self.suffixes.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16;
        (0..5)
            .map(|_| {
                let letter = ALPHABET[(number % ALPHABET.len() as u64) as usize];
                number /= ALPHABET.len() as u64;
                char::from(letter)
            })
            .collect()
    }

    /// Installs or replaces a custom kind.
    pub fn install(&mut self, mut kind: Arc<Kind>) {
        if let Some(position) = self
            .kinds
            .iter()
            .position(|known| known.resource() == kind.resource())
        {
            if kind.convert.is_none() && self.kinds[position].convert.is_some() {
                Arc::make_mut(&mut kind)
                    .convert
                    .clone_from(&self.kinds[position].convert);
            }
            self.kinds[position] = kind;
        } else {
            self.kinds.push(kind);
        }
    }

    /// The kind a call is about, which must serve the call's version.
    pub fn kind(&self, call: &Call) -> Answer<Arc<Kind>> {
        self.kinds
            .iter()
            .find(|kind| {
                kind.group == call.group
                    && kind.plural == call.plural
                    && kind.versions.contains_key(&call.version)
            })
            .cloned()
            .ok_or_else(Failure::no_such_path)
    }

    pub fn get(&self, call: &Call) -> Answer<Value> {
        let kind = self.kind(call)?;
        let name = call.name.as_deref().unwrap_or_default();
        let key = (call.namespace.clone().unwrap_or_default(), name.to_owned());
        let found = self.store.get(kind.resource(), &key);
        let object = found.ok_or_else(|| Failure::not_found(kind.resource(), name))?;
        convert(&kind, &object, &call.version)
    }

    /// One page of a list, in key order. The continue token pins the version the list started at.
    pub fn list(&mut self, call: &Call) -> Answer<Value> {
        let kind = self.kind(call)?;
        let selector = Selector::parse(
            call.query.get("labelSelector").map(String::as_str),
            call.query.get("fieldSelector").map(String::as_str),
        )?;
        let limit = call
            .query
            .get("limit")
            .and_then(|limit| limit.parse::<usize>().ok())
            .filter(|limit| *limit > 0)
            .map(|limit| match self.expiring.get(kind.resource()) {
                Some(Expiring::FirstPage) => 1,
                _ => limit,
            });
        let (mut version, mut after) = (self.store.version(), None);
        if let Some(token) = call.query.get("continue").filter(|token| !token.is_empty()) {
            let token: Value =
                serde_json::from_str(token).map_err(|_| Failure::bad_request("continue key is not valid"))?;
            version = token["version"].as_u64().unwrap_or_default();
            let expired = self.expiring.get(kind.resource()) == Some(&Expiring::Continuation);
            if expired {
                self.expiring.remove(kind.resource());
            }
            if expired || version < self.store.floor() {
                return Err(Failure::expired(version, self.store.floor()));
            }
            let text = |index: usize| token["after"][index].as_str().unwrap_or_default().to_owned();
            after = Some((text(0), text(1)));
        }
        let mut items = Vec::new();
        let mut last: Option<Key> = None;
        let mut more = 0;
        for (key, object) in self.store.list(kind.resource()) {
            let in_scope = call
                .namespace
                .as_ref()
                .is_none_or(|namespace| key.0 == *namespace);
            if !in_scope || after.as_ref().is_some_and(|after| key <= after) {
                continue;
            }
            if !matches(&kind, &selector, object, &call.version)? {
                continue;
            }
            if limit.is_some_and(|limit| items.len() == limit) {
                more += 1;
                continue;
            }
            last = Some(key.clone());
            items.push(convert(&kind, object, &call.version)?);
        }
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if kind.custom {
            metadata["continue"] = json!("");
        } else {
            // Built-in kinds say what they are once, in the list.
            for map in items.iter_mut().filter_map(Value::as_object_mut) {
                map.remove("apiVersion");
                map.remove("kind");
            }
        }
        if more > 0
            && let Some((namespace, name)) = last
        {
            if let Some(expiring) = self.expiring.get_mut(kind.resource()) {
                *expiring = Expiring::Continuation;
            }
            metadata["continue"] = json!(json!({"version": version, "after": [namespace, name]}).to_string());
            if selector.is_empty() {
                metadata["remainingItemCount"] = json!(more);
            }
        }
        Ok(json!({
            "apiVersion": kind.api_version(&call.version),
            "kind": format!("{}List", kind.kind),
            "metadata": metadata,
            "items": items,
        }))
    }

    pub fn expire_next_lists(&mut self) {
        for kind in &self.kinds {
            self.expiring
                .insert(kind.resource().to_owned(), Expiring::FirstPage);
        }
    }

    /// Stores an object that changed; one that is being deleted and has no finalizer left is removed.
    pub fn finish_write(&mut self, resource: &str, key: &Key, object: Value) -> Arc<Value> {
        let deleting = object["metadata"].get("deletionTimestamp").is_some();
        let held = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
        if deleting && !held {
            // The write that releases an object is its removal; the answer still carries the version before it.
            self.store.remove(resource, key);
            return Arc::new(object);
        }
        self.store.put(resource, object)
    }

    /// Marks an object as being deleted, or removes it where nothing holds it.
    pub fn begin_delete(&mut self, resource: &str, key: &Key) -> Option<Arc<Value>> {
        let object = self.store.get(resource, key)?;
        let held = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
        if !held {
            let removed = self.store.remove(resource, key);
            if resource == "namespaces" {
                self.empty_namespace(&key.1);
            }
            return removed;
        }
        if object["metadata"].get("deletionTimestamp").is_some() {
            return Some(object);
        }
        let mut object = Value::clone(&object);
        object["metadata"]["deletionTimestamp"] = json!(self.now());
        object["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        if let Some(generation) = object["metadata"]["generation"].as_i64() {
            object["metadata"]["generation"] = json!(generation + 1);
        }
        Some(self.store.put(resource, object))
    }

    fn empty_namespace(&mut self, namespace: &str) {
        let inside: Vec<(String, Key)> = self
            .store
            .all()
            .map(|(resource, object)| (resource.clone(), key_of(object)))
            .filter(|(_, key)| key.0 == namespace)
            .collect();
        for (resource, key) in inside {
            self.begin_delete(&resource, &key);
        }
    }

    pub fn delete(&mut self, call: &Call, options: &Value) -> Answer<Value> {
        let kind = self.kind(call)?;
        let resource = kind.resource().to_owned();
        let Some(name) = &call.name else {
            return self.delete_collection(call, &kind);
        };
        let key = (call.namespace.clone().unwrap_or_default(), name.clone());
        let object = self
            .store
            .get(&resource, &key)
            .ok_or_else(|| Failure::not_found(&resource, name))?;
        let expected = &options["preconditions"];
        for (field, label) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            if let Some(expected) = expected[field].as_str()
                && object["metadata"][field] != expected
            {
                let have = object["metadata"][field].as_str().unwrap_or_default();
                let why = format!(
                    "Precondition failed: {label} in precondition: {expected}, {label} in object meta: {have}"
                );
                return Err(Failure::conflict(&resource, name, &why));
            }
        }
        if call.is_dry_run() {
            return convert(&kind, &object, &call.version);
        }
        let policy = options["propagationPolicy"]
            .as_str()
            .or(call.query.get("propagationPolicy").map(String::as_str));
        match policy {
            Some("Foreground") if object["metadata"].get("deletionTimestamp").is_none() => {
                self.add_finalizer(&resource, &object, "foregroundDeletion");
            }
            Some("Orphan") => self.orphan_dependents(object["metadata"]["uid"].as_str().unwrap_or_default()),
            _ => {}
        }
        let left = self.begin_delete(&resource, &key);
        garbage::collect(self);
        match left {
            Some(object) if self.store.get(&resource, &key).is_some() => {
                convert(&kind, &object, &call.version)
            }
            _ => {
                let mut details =
                    json!({"name": name, "kind": kind.plural, "uid": object["metadata"]["uid"]});
                if !kind.group.is_empty() {
                    details["group"] = json!(kind.group);
                }
                Ok(
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                    "details": details}),
                )
            }
        }
    }

    fn delete_collection(&mut self, call: &Call, kind: &Kind) -> Answer<Value> {
        let list = self.list(call)?;
        for object in list["items"].as_array().into_iter().flatten() {
            self.begin_delete(kind.resource(), &key_of(object));
        }
        garbage::collect(self);
        Ok(list)
    }

    fn add_finalizer(&mut self, resource: &str, object: &Value, finalizer: &str) {
        let mut object = object.clone();
        let mut finalizers = object["metadata"]["finalizers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        finalizers.push(json!(finalizer));
        object["metadata"]["finalizers"] = Value::Array(finalizers);
        self.store.put(resource, object);
    }

    fn orphan_dependents(&mut self, uid: &str) {
        let dependents: Vec<(String, Value)> = self
            .store
            .all()
            .filter(|(_, object)| {
                object["metadata"]["ownerReferences"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .any(|owner| owner["uid"] == uid)
            })
            .map(|(resource, object)| (resource.clone(), Value::clone(object)))
            .collect();
        for (resource, mut object) in dependents {
            if let Some(owners) = object["metadata"]["ownerReferences"].as_array_mut() {
                owners.retain(|owner| owner["uid"] != uid);
            }
            self.store.put(&resource, object);
        }
    }

    /// Discovery documents, as kube's discovery reads them.
    pub fn discovery(&self, path: &str) -> Answer<Value> {
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let groups = || -> Vec<Value> {
            let mut names: Vec<&str> = self
                .kinds
                .iter()
                .map(|kind| kind.group.as_str())
                .filter(|group| !group.is_empty())
                .collect();
            names.sort_unstable();
            names.dedup();
            names
                .into_iter()
                .map(|group| self.discovery_group(group))
                .collect()
        };
        match segments.as_slice() {
            ["version"] => Ok(
                json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "",
                "gitTreeState": "clean", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            ),
            ["healthz" | "readyz" | "livez", ..] => Ok(json!("ok")),
            ["api"] => {
                Ok(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}))
            }
            ["apis"] => Ok(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups()})),
            ["apis", group] => Ok(self.discovery_group(group)),
            ["api", version] => Ok(self.discovery_version("", version)),
            ["apis", group, version] => Ok(self.discovery_version(group, version)),
            _ => Err(Failure::no_such_path()),
        }
    }

    fn discovery_group(&self, group: &str) -> Value {
        let mut versions: Vec<&str> = self
            .kinds
            .iter()
            .filter(|kind| kind.group == group)
            .flat_map(|kind| kind.versions.keys().map(String::as_str))
            .collect();
        versions.sort_unstable();
        versions.dedup();
        versions.reverse();
        let list: Vec<Value> = versions
            .iter()
            .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
            .collect();
        json!({"name": group, "versions": list, "preferredVersion": list.first()})
    }

    fn discovery_version(&self, group: &str, version: &str) -> Value {
        let mut resources = Vec::new();
        for kind in self
            .kinds
            .iter()
            .filter(|kind| kind.group == group && kind.versions.contains_key(version))
        {
            let verbs = [
                "create",
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "update",
                "watch",
            ];
            resources.push(
                json!({"name": kind.plural, "singularName": kind.kind.to_lowercase(),
                "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs}),
            );
            if kind.status {
                resources.push(
                    json!({"name": format!("{}/status", kind.plural), "singularName": "",
                    "namespaced": kind.namespaced, "kind": kind.kind, "verbs": ["get", "patch", "update"]}),
                );
            }
        }
        let group_version = if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        };
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
    }
}

/// Whether a selector picks the object, as it is in a served version.
pub fn matches(kind: &Kind, selector: &Selector, object: &Value, version: &str) -> Answer<bool> {
    if selector.is_empty() {
        return Ok(true);
    }
    if object["apiVersion"] == kind.api_version(version).as_str() {
        return Ok(selector.matches(object));
    }
    Ok(selector.matches(&convert(kind, object, version)?))
}

/// The object in a served version.
pub fn convert(kind: &Kind, object: &Value, version: &str) -> Answer<Value> {
    let expected = kind.api_version(version);
    let mut object = object.clone();
    if object["apiVersion"] == expected.as_str() {
        return Ok(object);
    }
    match &kind.convert {
        Some(convert) => {
            let metadata = object["metadata"].clone();
            let mut converted = convert(object, &expected).map_err(|error| {
                Failure::internal(format!("conversion webhook for {}: {error}", kind.kind))
            })?;
            // A conversion may change labels and annotations only; the rest of the metadata is the server's.
            let mut kept = metadata;
            for field in ["labels", "annotations"] {
                match converted["metadata"].get(field) {
                    Some(value) => kept[field] = value.clone(),
                    None => {
                        if let Some(map) = kept.as_object_mut() {
                            map.remove(field);
                        }
                    }
                }
            }
            converted["metadata"] = kept;
            converted["apiVersion"] = json!(expected);
            Ok(converted)
        }
        None => {
            object["apiVersion"] = json!(expected);
            Ok(object)
        }
    }
}

/// Which verbs change something.
pub fn is_write(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}
