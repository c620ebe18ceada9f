//! The actions for inline resources: each is one idempotent call, or none where nothing differs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use slipway_azure::{
    ResourceId,
    reconcile::{
        Error, Observations, ResourceState, StepResult, StepStatus,
        planning::{ASK_AGAIN, SOON, VANISHED},
        step,
    },
    session::Session,
    workload::{
        joining,
        kubeconfig::{self, SecretEntry},
    },
};
use slipway_capi::{names::label, owner};
use slipway_runtime::{Context, Outcome, controller::Writable};

use super::{
    Action, Desired, Fetch, Held, StoredExport,
    export::{Ca, Kubeconfig, Values},
    fetched::Times,
};
use crate::{
    engine::{self, Application},
    inline::{Credential, Secrets, Source, Store},
};

/// What a reconcile asks Azure with.
#[derive(Default)]
pub struct Engine {
    pub observations: Observations,
    /// By the Secret that signs in.
    pub sessions: BTreeMap<String, Session>,
    /// The Secret that a resource is asked for with, by id in lower case.
    pub secrets: BTreeMap<String, String>,
    /// How the steps in Azure went in this reconcile, by id in lower case.
    pub steps: BTreeMap<String, StepStatus>,
    pub max_age: Option<Duration>,
    /// When Azure was last asked for keys.
    pub asked: Arc<Mutex<Times>>,
    /// What Azure answered in this reconcile when it was asked for keys, by id in lower case and action.
    pub answers: BTreeMap<(String, &'static str), Value>,
}

impl Engine {
    /// The session that a resource is asked for with.
    pub fn session(&self, id: &ResourceId) -> Option<&Session> {
        self.sessions.get(self.secrets.get(id.key())?)
    }
}

/// Takes an action for the resources of an object, which is patched where what was applied is stored on it.
pub async fn act<K: Writable>(
    action: &Action,
    object: &mut K,
    held: &mut Held,
    engine: &mut Engine,
    context: &Context,
) -> Result<Outcome, Error> {
    match action {
        Action::Record(recordings) => {
            held.records.ensure_mark(|| context.random.uuid());
            for recording in recordings {
                let state = engine.observations.state_of(recording.id.key());
                let (id, now) = (recording.id.key(), context.clock.now());
                let state = if recording.owned {
                    &ResourceState::Absent
                } else {
                    state
                };
                held.records.intend(id, &recording.api_version, state, now);
                if recording.owned {
                    held.records.adopt(id, &recording.api_version, now);
                }
                held.records.note(id, recording.notes.clone());
            }
            store(object, held, context).await?;
        }
        Action::StoreRecords => store(object, held, context).await?,
        Action::AcceptVanished { id, .. } => {
            held.records.vanished(id.key());
            let status = StepStatus::Waiting {
                reason: VANISHED.into(),
                message: format!("{id} is gone, and nothing here deleted it: it is made again"),
            };
            let result = StepResult::waiting(status, Outcome::InProgress(SOON));
            return settle(id, result, held, engine);
        }
        Action::Ensure(desired) => {
            let result = ensure(desired, held, engine).await;
            return settle(&desired.id, result, held, engine);
        }
        Action::Delete { id, api_version, .. } => {
            let result = delete(id, api_version, held, engine).await;
            return settle(id, result, held, engine);
        }
        Action::LetGo { id, .. } => held.records.forget(id.key()),
        Action::Export(values) => export(values, object, held, context).await?,
        Action::WriteKubeconfig(kubeconfig) => {
            write_kubeconfig(kubeconfig, object, held, engine, context).await?;
        }
        Action::WriteFetched(fetch) => write_fetched(fetch, object, held, engine, context).await?,
        Action::WriteCa(ca) => write_ca(ca, object, held, context).await?,
        Action::GiveToOperator { id, application } => {
            return give(id, application, held, engine, context).await;
        }
        Action::Quiet(operated) => {
            match engine::act::quiet(operated, context).await? {
                Some(object) => held
                    .operated
                    .insert(operated.key(), engine::act::left(operated, object)),
                None => held.operated.remove(&operated.key()),
            };
            return Ok(Outcome::InProgress(SOON));
        }
        Action::RemoveObject { operated, release } => {
            engine::act::remove(operated, *release, context).await?;
            return Ok(Outcome::InProgress(ASK_AGAIN));
        }
        Action::ClaimKubeconfig { name } => claim_kubeconfig(name, object, held, context).await?,
    }
    Ok(Outcome::Done)
}

/// Gives Azure Service Operator its object. What it or the apiserver refuses is shown at the resource.
async fn give(
    id: &ResourceId,
    application: &Application,
    held: &mut Held,
    engine: &mut Engine,
    context: &Context,
) -> Result<Outcome, Error> {
    match engine::act::give(application, context).await {
        Ok(object) => {
            let is_it = |resource: &&super::Resource| resource.id.as_ref() == Some(id);
            if let Some(resource) = held.resources.iter().find(is_it) {
                let given = engine::Operated::new(resource.name.clone(), application.api.clone(), object);
                held.operated.insert(given.key(), given);
            }
            Ok(Outcome::Done)
        }
        Err(error) => {
            engine.steps.insert(id.key().to_owned(), error.status());
            Err(error)
        }
    }
}

/// Cluster API looks for a kubeconfig by its label, and it goes with the object.
async fn claim_kubeconfig<K: Writable>(
    name: &str,
    object: &K,
    held: &mut Held,
    context: &Context,
) -> Result<(), Error> {
    let key = (Store::Secret, name.to_owned());
    let (Some(found), Some(controller)) = (held.stored.get(&key), owner::controller_reference(object)) else {
        return Ok(());
    };
    let mut owners = found.metadata.owner_references.clone().unwrap_or_default();
    owners.retain(|one| one.uid != controller.uid);
    owners.push(controller);
    let patch = json!({"metadata": {
        "resourceVersion": found.metadata.resource_version,
        "labels": {(label::CLUSTER_NAME): held.cluster_name},
        "ownerReferences": owners,
    }});
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &object.namespace().unwrap_or_default());
    let stored = api
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    let stored = stored.map_err(Error::api(format!("labelling Secret {name}")))?;
    context.writes().saw(&stored);
    held.stored.insert(key, StoredExport::of_secret(&stored));
    Ok(())
}

/// What a step came to: its words for the status, its outcome for the queue.
fn settle(
    id: &ResourceId,
    result: StepResult,
    held: &mut Held,
    engine: &mut Engine,
) -> Result<Outcome, Error> {
    engine.steps.insert(id.key().to_owned(), result.status);
    held.states = engine.observations.states.clone();
    result.error.map_or(Ok(result.outcome), Err)
}

async fn ensure(desired: &Desired, held: &mut Held, engine: &mut Engine) -> StepResult {
    let Some(arm) = engine.session(&desired.id).map(|session| session.arm.clone()) else {
        return StepResult::done(StepStatus::Done);
    };
    step::ensure_put(
        &arm,
        desired.id.as_str(),
        Ok(desired.put.clone()),
        &mut engine.observations,
        &mut held.records,
        engine.max_age,
    )
    .await
}

async fn delete(id: &ResourceId, api_version: &str, held: &mut Held, engine: &mut Engine) -> StepResult {
    let Some(arm) = engine.session(id).map(|session| session.arm.clone()) else {
        return StepResult::done(StepStatus::Deleted);
    };
    step::delete(
        &arm,
        id.as_str(),
        api_version,
        &mut engine.observations,
        &mut held.records,
    )
    .await
}

/// Stores what is recorded on the object, if it is not stored as it is.
pub async fn store<K: Writable>(object: &mut K, held: &mut Held, context: &Context) -> Result<(), Error> {
    if let Some(patch) = held.records.patch() {
        let stored = context.patch(object, &patch).await;
        *object = stored.map_err(Error::api("storing what was applied to Azure"))?;
        held.records.stored();
    }
    Ok(())
}

async fn export<K: Writable>(
    values: &Values,
    object: &K,
    held: &mut Held,
    context: &Context,
) -> Result<(), Error> {
    let mut made = json!({
        "metadata": {"name": values.name, "namespace": object.namespace()},
    });
    made["metadata"]["ownerReferences"] = json!(owner::controller_reference(object).as_slice());
    let mut patch = json!({});
    if let Some(metadata) = &values.metadata {
        for member in ["labels", "annotations"] {
            made["metadata"][member] = metadata[member].clone();
        }
        patch["metadata"] = metadata.clone();
    }
    let plain = values.plain();
    if !plain.is_empty() {
        patch["data"] = match values.store {
            Store::Secret => {
                let encoded = |text: &String| ByteString(text.clone().into_bytes());
                json!(
                    plain
                        .iter()
                        .map(|(key, text)| (key, encoded(text)))
                        .collect::<BTreeMap<_, _>>()
                )
            }
            Store::ConfigMap => json!(plain),
        };
        made["data"] = patch["data"].clone();
    }
    let key = (values.store, values.name.clone());
    let stored = match values.store {
        Store::Secret => {
            StoredExport::of_secret(&write::<Secret>(made, &patch, values.is_new, context).await?)
        }
        Store::ConfigMap => {
            StoredExport::of_config_map(&write::<ConfigMap>(made, &patch, values.is_new, context).await?)
        }
    };
    held.stored.insert(key, stored);
    Ok(())
}

/// Creates an object, or patches the one that is there.
async fn write<K>(made: Value, patch: &Value, is_new: bool, context: &Context) -> Result<K, Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    let name = made["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let namespace = made["metadata"]["namespace"].as_str().unwrap_or_default();
    let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
    let doing = format!("writing {} {name}", K::kind(&()));
    let stored = if is_new {
        let made = serde_json::from_value(made).map_err(kube::Error::SerdeError);
        match made {
            Ok(made) => api.create(&PostParams::default(), &made).await,
            Err(error) => Err(error),
        }
    } else {
        let parameters = PatchParams::default();
        api.patch(&name, &parameters, &Patch::Merge(patch)).await
    };
    let stored = stored.map_err(Error::api(doing))?;
    context.writes().saw(&stored);
    Ok(stored)
}

async fn write_kubeconfig<K: Writable>(
    desired: &Kubeconfig,
    object: &K,
    held: &mut Held,
    engine: &Engine,
    context: &Context,
) -> Result<(), Error> {
    let Some(session) = engine.session(&desired.id) else {
        return Ok(());
    };
    let (id, version) = (desired.id.as_str(), desired.api_version.as_str());
    let fetched = if desired.credential == Credential::Fleet {
        let text = kubeconfig::list(session, id, version, desired.credential.action()).await?;
        kubeconfig::Fetched { text, token: None }
    } else {
        kubeconfig::fetch(session, id, version, desired.kind(), desired.with_token).await?
    };
    let place = SecretEntry {
        namespace: &object.namespace().unwrap_or_default(),
        cluster: &held.cluster_name,
        secret: &desired.name,
        key: &desired.key,
    };
    let now = context.clock.now();
    let made = owner::controller_reference(object).and_then(|controller| {
        let token = fetched.token.as_ref().map(|token| (token, now));
        kubeconfig::make(&place, controller, &desired.endpoint, &fetched.text, token)
    });
    let made = made.ok_or(Error::NoKubeconfig {
        action: desired.credential.action(),
    })?;
    let patch = kubeconfig::patch(&made, &held.cluster_name);
    store_secret(&made, &patch, desired.replace, held, context).await
}

/// Asks Azure for the credentials that an expression refers to, and writes what it gives, with the print of what it was made from,
/// unless that is what is stored.
async fn write_fetched<K: Writable>(
    fetch: &Fetch,
    object: &K,
    held: &mut Held,
    engine: &mut Engine,
    context: &Context,
) -> Result<(), Error> {
    let mut answers = std::mem::take(&mut engine.answers);
    let Some(session) = engine.session(&fetch.id) else {
        return Ok(());
    };
    let now = context.clock.now();
    let found = asked(fetch, session, &mut answers).await;
    engine.answers = answers;
    let values = fetch
        .evaluate(found?)
        .map_err(|text| Error::InvalidSpec(format!("{} {text}", fetch.expression.path)))?;
    let name = &fetch.expression.name;
    let keys: Vec<String> = values.keys().cloned().collect();
    let stored = held.stored.get(&(Store::Secret, name.clone()));
    if stored.is_some_and(|stored| fetch.is_stored(stored, &values)) {
        engine.asked.lock().insert(fetch.time_key(), now);
        return Ok(());
    }
    let after = stored.cloned().unwrap_or_default().with(&values);
    let data: BTreeMap<String, ByteString> = values
        .into_iter()
        .map(|(key, text)| (key, ByteString(text.into_bytes())))
        .collect();
    let annotations = json!({(fetch.annotation()): fetch.print(&after, &keys, now)});
    let patch = json!({"metadata": {"annotations": annotations}, "data": data});
    let mut made = patch.clone();
    made["metadata"]["name"] = json!(name);
    made["metadata"]["namespace"] = json!(object.namespace());
    made["metadata"]["ownerReferences"] = json!(owner::controller_reference(object).as_slice());
    let written = write::<Secret>(made, &patch, stored.is_none(), context).await?;
    let key = (Store::Secret, name.clone());
    held.stored.insert(key, StoredExport::of_secret(&written));
    Ok(())
}

/// The credentials of an expression. An action is asked once in a reconcile, whatever is made of its answer.
async fn asked(
    fetch: &Fetch,
    session: &Session,
    answers: &mut BTreeMap<(String, &'static str), Value>,
) -> Result<Secrets, Error> {
    let (id, version) = (fetch.id.as_str(), fetch.api_version.as_str());
    let mut found = Secrets::new();
    for (name, source) in &fetch.credentials {
        match source {
            Source::Kubeconfig(credential) => {
                let text = kubeconfig::list(session, id, version, credential.action()).await?;
                found.insert(name.clone(), text);
            }
            Source::Listed(listed) => {
                let key = (fetch.id.key().to_owned(), listed.action);
                if !answers.contains_key(&key) {
                    let answer = kubeconfig::ask(session, id, version, listed.action).await?;
                    answers.insert(key.clone(), answer.unwrap_or_default());
                }
                let answer = answers.get(&key);
                found.extend(
                    answer
                        .and_then(|one| listed.of(one))
                        .map(|text| (name.clone(), text)),
                );
            }
            Source::Body(_) | Source::Subscription | Source::PrimaryAddress => {}
        }
    }
    Ok(found)
}

async fn write_ca<K: Writable>(ca: &Ca, object: &K, held: &mut Held, context: &Context) -> Result<(), Error> {
    let Some(controller) = owner::controller_reference(object) else {
        return Ok(());
    };
    let namespace = object.namespace().unwrap_or_default();
    let made = joining::make(&namespace, &held.cluster_name, controller, &ca.pem);
    let patch = joining::patch(&made, &held.cluster_name);
    store_secret(&made, &patch, ca.replace, held, context).await
}

/// Creates a Secret, patches the one that is there, or replaces it where a patch does not do.
async fn store_secret(
    made: &Secret,
    patch: &Value,
    replace: bool,
    held: &mut Held,
    context: &Context,
) -> Result<(), Error> {
    let key = (Store::Secret, made.name_any());
    let found = held.stored.get(&key);
    if let Some(found) = found.filter(|_| replace) {
        remove(found, &made.namespace().unwrap_or_default(), context).await?;
    }
    let is_new = found.is_none() || replace;
    let stored = write::<Secret>(json!(made), patch, is_new, context).await?;
    held.stored.insert(key, StoredExport::of_secret(&stored));
    Ok(())
}

/// Deletes this very Secret; already gone is fine.
async fn remove(found: &StoredExport, namespace: &str, context: &Context) -> Result<(), Error> {
    let name = found.metadata.name.as_deref().unwrap_or_default();
    let same = DeleteParams {
        preconditions: Some(Preconditions {
            uid: found.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    match api.delete(name, &same).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other
            .map(|_| ())
            .map_err(Error::api(format!("replacing Secret {name}"))),
    }
}
