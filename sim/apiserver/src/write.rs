//! Writes: create, update, patch and apply, from the request body to what is stored. A write is worked out on a
//! copy, goes through admission, and is stored only if nothing changed meanwhile.

use std::sync::Arc;

use http::Method;
use serde_json::{Map, Value, json};
use slipway_runtime::admission::{self, Operation};

use crate::{
    failure::{Answer, Failure},
    garbage,
    kinds::Kind,
    managers::{self, Manager},
    patch::patch,
    route::Call,
    schema::Schema,
    server::{State, convert},
    store::{Key, key_of},
    subresource,
};

/// A write that has been worked out but not stored. `object` is in the request's version.
pub struct Candidate {
    pub kind: Arc<Kind>,
    pub operation: Operation,
    pub before: Option<Arc<Value>>,
    pub object: Value,
    manager: Manager,
    /// Server-side apply settles ownership by itself, before admission.
    applied: bool,
}

/// Fields of the metadata that only the server writes.
const SERVER_FIELDS: [&str; 6] = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
];

impl State {
    /// Works out what a write would store.
    pub fn prepare(&mut self, call: &Call, body: &[u8]) -> Answer<Candidate> {
        let kind = self.kind(call)?;
        match call.subresource.as_deref() {
            None => {}
            Some("status") if kind.status => {}
            Some("scale") if kind.scale && call.method == Method::PATCH => {}
            Some(_) => return Err(Failure::no_such_path()),
        }
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| Failure::bad_request(format!("unable to decode the request body: {error}")))?;
        match call.method {
            Method::POST => self.prepare_create(call, kind, body),
            Method::PUT => {
                let before = self.existing(call, &kind)?;
                prepare_update(call, kind, before, body)
            }
            Method::PATCH if call.content_type.starts_with("application/apply-patch") => {
                self.prepare_apply(call, kind, &body)
            }
            Method::PATCH => {
                let before = self.existing(call, &kind)?;
                let shown = convert(&kind, &before, &call.version)?;
                let body = match call.subresource.as_deref() {
                    Some("scale") => subresource::of_scale(&body),
                    _ => body,
                };
                let patched = patch(&kind, &call.content_type, shown, body)?;
                prepare_update(call, kind, before, patched)
            }
            _ => Err(Failure::method_not_allowed()),
        }
    }

    fn existing(&self, call: &Call, kind: &Kind) -> Answer<Arc<Value>> {
        let name = call.name.clone().ok_or_else(Failure::method_not_allowed)?;
        let key = (call.namespace.clone().unwrap_or_default(), name);
        self.store
            .get(kind.resource(), &key)
            .ok_or_else(|| Failure::not_found(kind.resource(), &key.1))
    }

    fn prepare_create(&mut self, call: &Call, kind: Arc<Kind>, mut object: Value) -> Answer<Candidate> {
        check_type(call, &kind, &mut object)?;
        let resource = kind.resource().to_owned();
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        if object["metadata"]["resourceVersion"]
            .as_str()
            .is_some_and(|version| !version.is_empty())
        {
            return Err(Failure::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        if object["metadata"]["name"].as_str().unwrap_or_default().is_empty() {
            let Some(prefix) = object["metadata"]["generateName"]
                .as_str()
                .filter(|prefix| !prefix.is_empty())
            else {
                let error = "metadata.name: Required value: name or generateName is required".to_owned();
                return Err(Failure::invalid(&kind.kind, &kind.group, "", &[error]));
            };
            object["metadata"]["name"] = json!(format!("{prefix}{}", self.next_suffix()));
        }
        if kind.namespaced {
            let namespace = call.namespace.clone().unwrap_or_default();
            match object["metadata"]["namespace"].as_str() {
                None | Some("") => object["metadata"]["namespace"] = json!(namespace),
                Some(stated) if stated == namespace => {}
                Some(_) => {
                    return Err(Failure::bad_request(
                        "the namespace of the provided object does not match the namespace sent on the request",
                    ));
                }
            }
            if self
                .store
                .get("namespaces", &(String::new(), namespace.clone()))
                .is_none()
            {
                return Err(Failure::not_found("namespaces", &namespace));
            }
        }
        let key = key_of(&object);
        if self.store.get(&resource, &key).is_some() {
            return Err(Failure::already_exists(&resource, &key.1));
        }
        if let Some(map) = object.as_object_mut()
            && kind.status
        {
            map.remove("status");
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            for field in SERVER_FIELDS {
                metadata.remove(field);
            }
            metadata.remove("managedFields");
        }
        settle_secret(&kind, &mut object);
        let manager = manager_of(call, &kind, false);
        Ok(Candidate {
            kind,
            operation: Operation::Create,
            before: None,
            object,
            manager,
            applied: false,
        })
    }

    fn prepare_apply(&mut self, call: &Call, kind: Arc<Kind>, configuration: &Value) -> Answer<Candidate> {
        let name = call.name.clone().ok_or_else(Failure::method_not_allowed)?;
        if !call.query.contains_key("fieldManager") {
            let error = "fieldManager: Required value: is required for apply patch".to_owned();
            return Err(Failure::invalid("PatchOptions", "meta.k8s.io", "", &[error]));
        }
        if configuration["metadata"]
            .get("managedFields")
            .is_some_and(|fields| !fields.is_null())
        {
            return Err(Failure::bad_request("metadata.managedFields must be nil"));
        }
        let mut configuration = configuration.clone();
        check_type(call, &kind, &mut configuration)?;
        if configuration["metadata"]["name"]
            .as_str()
            .is_some_and(|stated| stated != name)
        {
            return Err(Failure::bad_request(
                "the name of the object does not match the name on the URL",
            ));
        }
        if configuration["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
        {
            return Err(Failure::bad_request("name must be provided"));
        }
        let manager = manager_of(call, &kind, true);
        let resource = kind.resource().to_owned();
        let key: Key = (call.namespace.clone().unwrap_or_default(), name.clone());
        let stored = self.store.get(&resource, &key);
        let mut owned = configuration.clone();
        if let Some(map) = owned.as_object_mut() {
            if call.subresource.is_some() {
                map.retain(|field, _| {
                    matches!(field.as_str(), "apiVersion" | "kind" | "metadata" | "status")
                });
                map.insert("metadata".to_owned(), json!({"name": name}));
            } else if kind.status {
                map.remove("status");
            }
        }
        let stated_version = configuration["metadata"]["resourceVersion"].as_str();
        if let Some(metadata) = owned["metadata"].as_object_mut() {
            for field in SERVER_FIELDS.iter().chain(&["resourceVersion"]) {
                metadata.remove(*field);
            }
        }
        let schema_json = kind.versions[&call.version].clone();
        let schema = Schema::new(&schema_json);
        let Some(before) = stored else {
            if call.subresource.is_some() {
                return Err(Failure::not_found(&resource, &name));
            }
            if stated_version.is_some_and(|version| !version.is_empty()) {
                return Err(Failure::conflict(&resource, &name, &Failure::stale().message));
            }
            owned["metadata"]["name"] = json!(name);
            let mut created = self.prepare_create(call, kind, owned.clone())?;
            created.object = managers::apply(&created.object, &owned, schema, &manager, true, &self.now())?;
            created.manager = manager;
            created.applied = true;
            return Ok(created);
        };
        if stated_version
            .is_some_and(|stated| !stated.is_empty() && before["metadata"]["resourceVersion"] != stated)
        {
            return Err(Failure::conflict(&resource, &name, &Failure::stale().message));
        }
        let shown = convert(&kind, &before, &call.version)?;
        schema.prune(&mut owned, true);
        let mut object = managers::apply(&shown, &owned, schema, &manager, call.flag("force"), &self.now())?;
        keep_server_fields(&shown, &mut object);
        let fields = object["metadata"]["managedFields"].clone();
        keep_other_half(call, &kind, &shown, &mut object);
        object["metadata"]["managedFields"] = fields;
        Ok(Candidate {
            kind,
            operation: Operation::Update,
            before: Some(before),
            object,
            manager,
            applied: true,
        })
    }

    /// The admission handlers that are called for a candidate, in order.
    pub fn handlers(
        &self,
        candidate: &Candidate,
        version: &str,
        phase: admission::Phase,
    ) -> Vec<admission::Handler> {
        self.admission
            .iter()
            .filter(|webhook| {
                webhook.phase == phase
                    && webhook.group == candidate.kind.group
                    && webhook.version == version
                    && webhook.plural == candidate.kind.plural
                    && webhook.operations.contains(&candidate.operation)
            })
            .map(|webhook| webhook.handler.clone())
            .collect()
    }

    /// Checks the candidate against its schema and fills in defaults.
    pub fn check(candidate: &mut Candidate, version: &str) -> Answer<()> {
        let schema_json = candidate.kind.versions[version].clone();
        let schema = Schema::new(&schema_json);
        if candidate.kind.custom {
            schema.prune(&mut candidate.object, true);
            schema.default(&mut candidate.object);
        }
        drop_nulls(&mut candidate.object["metadata"]);
        let mut errors = Vec::new();
        errors.extend(annotations_error(&candidate.object));
        if candidate.kind.custom {
            schema.errors(&candidate.object, "", true, &mut errors);
        }
        if errors.is_empty() {
            return Ok(());
        }
        let (_, name) = key_of(&candidate.object);
        Err(Failure::invalid(
            &candidate.kind.kind,
            &candidate.kind.group,
            &name,
            &errors,
        ))
    }

    /// Stores the candidate, if the object is still the one it was worked out from. `None` asks to start over.
    pub fn commit(&mut self, call: &Call, mut candidate: Candidate) -> Answer<Option<Value>> {
        let resource = candidate.kind.resource().to_owned();
        let key = key_of(&candidate.object);
        let now = self.now();
        let current = self.store.get(&resource, &key);
        if current
            .as_ref()
            .map(|object| &object["metadata"]["resourceVersion"])
            != candidate
                .before
                .as_ref()
                .map(|object| &object["metadata"]["resourceVersion"])
        {
            return Ok(None);
        }
        let mut object = convert(
            &candidate.kind,
            &candidate.object,
            &candidate.kind.storage_version.clone(),
        )?;
        let schema_json = candidate
            .kind
            .versions
            .get(&candidate.kind.storage_version)
            .cloned();
        let nothing = Value::Null;
        let schema = Schema::new(schema_json.as_deref().unwrap_or(&nothing));
        if candidate.kind.custom {
            schema.prune(&mut object, true);
            schema.default(&mut object);
        }
        let version = call.version.clone();
        let Some(before) = candidate.before.take() else {
            object["metadata"]["uid"] = json!(self.store.next_uid());
            object["metadata"]["creationTimestamp"] = json!(now);
            if candidate.kind.custom || matches!(candidate.kind.plural.as_str(), "deployments" | "daemonsets")
            {
                object["metadata"]["generation"] = json!(1);
            }
            if !candidate.applied {
                managers::record_update(&Value::Null, &mut object, schema, &candidate.manager, &now);
            }
            if call.is_dry_run() {
                return convert(&candidate.kind, &object, &version).map(Some);
            }
            let stored = self.finish_write(&resource, &key, object);
            self.learn(&resource, &stored);
            if garbage::is_concerned(&Value::Null, &stored) {
                garbage::collect(self);
            }
            return convert(&candidate.kind, &stored, &version).map(Some);
        };
        if !candidate.applied {
            managers::record_update(&before, &mut object, schema, &candidate.manager, &now);
        }
        bump_generation(&candidate.kind, &before, &mut object);
        check_finalizers(&candidate.kind, &before, &object)?;
        object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        if object == *before || call.is_dry_run() {
            return convert(&candidate.kind, &object, &version).map(Some);
        }
        let stored = self.finish_write(&resource, &key, object);
        self.learn(&resource, &stored);
        if garbage::is_concerned(&before, &stored) {
            garbage::collect(self);
        }
        convert(&candidate.kind, &stored, &version).map(Some)
    }

    /// A stored CRD is a kind the server knows from now on.
    fn learn(&mut self, resource: &str, object: &Arc<Value>) {
        if resource != "customresourcedefinitions.apiextensions.k8s.io" {
            return;
        }
        if let Some(kind) = Kind::from_crd(object) {
            self.install(Arc::new(kind));
        }
        if object["status"]["conditions"].is_null() {
            let mut established = Value::clone(object);
            let stored = object["spec"]["versions"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|v| v["storage"] == true);
            let conditions = ["NamesAccepted", "Established"].map(|kind| {
                json!({"type": kind, "status": "True", "reason": "InMemory", "message": "",
                    "lastTransitionTime": self.now()})
            });
            established["status"] = json!({
                "acceptedNames": object["spec"]["names"],
                "storedVersions": [stored.map(|version| version["name"].clone())],
                "conditions": conditions,
            });
            self.store.put(resource, established);
        }
    }
}

fn prepare_update(call: &Call, kind: Arc<Kind>, before: Arc<Value>, mut object: Value) -> Answer<Candidate> {
    check_type(call, &kind, &mut object)?;
    let resource = kind.resource().to_owned();
    let name = call.name.clone().unwrap_or_default();
    if object["metadata"]["name"]
        .as_str()
        .is_some_and(|stated| stated != name)
    {
        return Err(Failure::bad_request(
            "the name of the object does not match the name on the URL",
        ));
    }
    let current = before["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    match object["metadata"]["resourceVersion"].as_str() {
        Some(stated) if !stated.is_empty() && stated != current => {
            return Err(Failure::conflict(&resource, &name, &Failure::stale().message));
        }
        None | Some("") if kind.custom && call.method == Method::PUT => {
            let error =
                "metadata.resourceVersion: Invalid value: 0: must be specified for an update".to_owned();
            return Err(Failure::invalid(&kind.kind, &kind.group, &name, &[error]));
        }
        _ => {}
    }
    if let Some(uid) = object["metadata"]["uid"].as_str()
        && before["metadata"]["uid"] != uid
    {
        let have = before["metadata"]["uid"].as_str().unwrap_or_default();
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {have}");
        return Err(Failure::conflict(&resource, &name, &why));
    }
    let shown = convert(&kind, &before, &call.version)?;
    keep_server_fields(&shown, &mut object);
    keep_other_half(call, &kind, &shown, &mut object);
    settle_secret(&kind, &mut object);
    let manager = manager_of(call, &kind, false);
    Ok(Candidate {
        kind,
        operation: Operation::Update,
        before: Some(before),
        object,
        manager,
        applied: false,
    })
}

/// `stringData` is a way to write `data`; a Secret without a type is opaque.
fn settle_secret(kind: &Kind, object: &mut Value) {
    if kind.plural != "secrets" || !kind.group.is_empty() {
        return;
    }
    let Some(map) = object.as_object_mut() else { return };
    if let Some(Value::Object(plain)) = map.remove("stringData") {
        let data = map.entry("data").or_insert_with(|| json!({}));
        for (key, value) in plain {
            let text = value.as_str().unwrap_or_default().as_bytes().to_vec();
            data[key] = json!(k8s_openapi::ByteString(text));
        }
    }
    map.entry("type").or_insert_with(|| json!("Opaque"));
}

fn manager_of(call: &Call, kind: &Kind, apply: bool) -> Manager {
    let agent = call
        .user_agent
        .split('/')
        .next()
        .filter(|agent| !agent.is_empty())
        .unwrap_or("unknown");
    Manager {
        name: call
            .query
            .get("fieldManager")
            .cloned()
            .unwrap_or_else(|| agent.to_owned()),
        apply,
        api_version: kind.api_version(&call.version),
        subresource: call.subresource.clone().unwrap_or_default(),
    }
}

/// The body must say what the URL says; where it is silent it is filled in.
fn check_type(call: &Call, kind: &Kind, object: &mut Value) -> Answer<()> {
    let Some(map) = object.as_object_mut() else {
        return Err(Failure::bad_request("the request body is not an object"));
    };
    for (field, expected) in [
        ("kind", kind.kind.clone()),
        ("apiVersion", kind.api_version(&call.version)),
    ] {
        match map.get(field).and_then(Value::as_str) {
            None | Some("") => {
                map.insert(field.to_owned(), json!(expected));
            }
            Some(stated) if stated == expected => {}
            Some(stated) => {
                return Err(Failure::bad_request(format!(
                    "{field} in the data ({stated}) does not match the expected ({expected})"
                )));
            }
        }
    }
    Ok(())
}

fn keep_server_fields(shown: &Value, object: &mut Value) {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    for field in SERVER_FIELDS
        .iter()
        .chain(&["name", "namespace", "resourceVersion", "generateName"])
    {
        match shown["metadata"].get(*field) {
            Some(value) => object["metadata"][*field] = value.clone(),
            None => {
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove(*field);
                }
            }
        }
    }
    // A write that does not mention managedFields leaves them; one that sends them empty resets them.
    if object["metadata"].get("managedFields").is_none()
        && let Some(fields) = shown["metadata"].get("managedFields")
    {
        object["metadata"]["managedFields"] = fields.clone();
    }
}

/// Through the main resource the status stays; through `/status` all but the status stays.
fn keep_other_half(call: &Call, kind: &Kind, shown: &Value, object: &mut Value) {
    if call.subresource.as_deref() == Some("status") {
        let status = object.get("status").cloned();
        let fields = object["metadata"].get("managedFields").cloned();
        *object = shown.clone();
        if let Some(fields) = fields {
            object["metadata"]["managedFields"] = fields;
        }
        if let Some(map) = object.as_object_mut() {
            match status {
                Some(status) => map.insert("status".to_owned(), status),
                None => map.remove("status"),
            };
        }
    } else if kind.status
        && let Some(map) = object.as_object_mut()
    {
        match shown.get("status") {
            Some(status) => map.insert("status".to_owned(), status.clone()),
            None => map.remove("status"),
        };
    }
}

/// An object that is being deleted may lose finalizers, not gain them.
fn check_finalizers(kind: &Kind, before: &Value, object: &Value) -> Answer<()> {
    if before["metadata"].get("deletionTimestamp").is_none() {
        return Ok(());
    }
    let list = |object: &Value| {
        object["metadata"]["finalizers"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let had = list(before);
    let added: Vec<String> = list(object)
        .iter()
        .filter(|one| !had.contains(one))
        .map(ToString::to_string)
        .collect();
    if added.is_empty() {
        return Ok(());
    }
    let error = format!(
        "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new \
         finalizers {added:?}"
    );
    Err(Failure::invalid(
        &kind.kind,
        &kind.group,
        &key_of(object).1,
        &[error],
    ))
}

fn bump_generation(kind: &Kind, before: &Value, object: &mut Value) {
    let Some(generation) = before["metadata"]["generation"].as_i64() else {
        return;
    };
    let counts = |name: &str| name != "metadata" && !(kind.status && name == "status");
    let rest = |value: &Value| -> usize {
        let names = value.as_object().into_iter().flat_map(Map::keys);
        names.filter(|name| counts(name)).count()
    };
    let changed = rest(before) != rest(object)
        || before
            .as_object()
            .into_iter()
            .flatten()
            .any(|(name, value)| counts(name) && object.get(name) != Some(value));
    object["metadata"]["generation"] = json!(generation + i64::from(changed));
}

/// Typed metadata has no nulls and no empty maps or lists.
/// Keys and values of all annotations together are limited.
fn annotations_error(object: &Value) -> Option<String> {
    const LIMIT: usize = 256 * 1024;
    let annotations = object["metadata"]["annotations"].as_object()?;
    let length = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let total: usize = annotations.iter().map(length).sum();
    (total > LIMIT).then(|| format!("metadata.annotations: Too long: may not be more than {LIMIT} bytes"))
}

fn drop_nulls(metadata: &mut Value) {
    if let Some(map) = metadata.as_object_mut() {
        map.retain(|_, value| match value {
            Value::Null => false,
            Value::Object(inner) => !inner.is_empty(),
            Value::Array(inner) => !inner.is_empty(),
            _ => true,
        });
    }
}
