//! One step of a migration: one idempotent write in the management cluster. Nothing is written in Azure.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use slipway_capi::names::annotation;
use slipway_runtime::{ObjectKey, command::Asker};

use super::{
    MIGRATED_FROM, MIGRATION, PAUSED_BY, credential,
    facts::{Facts, Object},
    inline,
    observe::{annotations, cluster_id, recorded, secret},
    plan::Action,
};
use crate::{
    adopt::{self, Answer, QUESTION, Question},
    command::objects::{
        CLASSIC_CLUSTER, CLASSIC_POOL, CLUSTER, IDENTITY, INLINE_CLUSTER, INLINE_PLANE, KindName,
        MACHINE_POOL, Objects,
    },
};

const PAUSED: &str = "cluster.x-k8s.io/paused";
const REPLICAS_MANAGED_BY: &str = "cluster.x-k8s.io/replicas-managed-by";

/// Whether a step was done, or is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Yes,
    NotYet,
}

pub async fn act(action: &Action, facts: &Facts, objects: &Objects, asker: &Asker) -> Result<Done, String> {
    let cluster = facts.key();
    match action {
        Action::Pause(mark) => {
            let mut patch = annotations(MIGRATION, Some(&mark.text()));
            patch["spec"] = json!({"paused": true});
            merge(objects, CLUSTER, &cluster, &patch).await?;
        }
        Action::AwaitPause(_) | Action::AwaitGone(_) => return Ok(Done::NotYet),
        Action::Disarm(object) => {
            merge(
                objects,
                object.kind,
                &object.key(),
                &annotations(PAUSED, Some(PAUSED_BY)),
            )
            .await?;
        }
        Action::Rearm(object) => {
            merge(objects, object.kind, &object.key(), &annotations(PAUSED, None)).await?;
        }
        Action::CopyCredential(name) => copy_credential(name, facts, objects).await?,
        Action::RemoveCredential(name) => remove_credential(&cluster.sibling(name), objects).await?,
        Action::Make(_) => make(facts, objects, asker).await?,
        Action::HandOver { secret, to } => hand_over(secret, *to, facts, objects).await?,
        Action::SwapPool { machine_pool, to } => swap_pool(machine_pool, *to, facts, objects).await?,
        Action::SwapCluster { to } => {
            let infrastructure = if *to == INLINE_PLANE {
                INLINE_CLUSTER
            } else {
                CLASSIC_CLUSTER
            };
            let patch = json!({"spec": {
                "infrastructureRef": {"kind": infrastructure.kind}, "controlPlaneRef": {"kind": to.kind}}});
            merge(objects, CLUSTER, &cluster, &patch).await?;
        }
        Action::Resume => merge(objects, CLUSTER, &cluster, &json!({"spec": {"paused": false}})).await?,
        Action::MarkConfirmed(mark) => {
            merge(
                objects,
                CLUSTER,
                &cluster,
                &annotations(MIGRATION, Some(&mark.text())),
            )
            .await?;
        }
        Action::ReleaseFinalizers(object) => release(object, objects).await?,
        Action::Delete(object) => delete(object, objects).await?,
        Action::ReleaseIdentity(_) => release_identity(facts, objects).await?,
        Action::Manage(object) => {
            adopt::act::confirm(objects, object.kind, &object.key()).await?;
        }
        Action::Finish { resume } => {
            let mut patch = annotations(MIGRATION, None);
            if *resume {
                patch["spec"] = json!({"paused": false});
            }
            merge(objects, CLUSTER, &cluster, &patch).await?;
        }
    }
    Ok(Done::Yes)
}

async fn merge(objects: &Objects, kind: KindName, key: &ObjectKey, patch: &Value) -> Result<(), String> {
    let api = objects.api(kind, key.namespace().unwrap_or_default())?;
    let done = api
        .patch(key.name(), &PatchParams::default(), &Patch::Merge(patch))
        .await;
    done.map(|_| ()).map_err(|error| match error {
        kube::Error::Api(status) if status.is_conflict() => {
            format!(
                "{} {key} was changed meanwhile: give the command again",
                kind.kind
            )
        }
        error => format!("cannot change {} {key}: {error}", kind.kind),
    })
}

async fn copy_credential(name: &str, facts: &Facts, objects: &Objects) -> Result<(), String> {
    let (Some(identity), Some(plane)) = (&facts.identity, &facts.plane.classic) else {
        return Err(format!(
            "the control plane of Cluster {} names no AzureClusterIdentity that is there: make Secret {name} by hand (docs/aso.md, How it signs in)",
            facts.name()
        ));
    };
    let subscription = plane.value["spec"]["subscriptionID"].as_str().unwrap_or_default();
    let from = match credential::secret_of(identity) {
        Some(key) => secret(objects, &key).await?,
        None => None,
    };
    let data = from.as_ref().and_then(|secret| secret.data.as_ref());
    let data = credential::data(identity, subscription, data)?;
    let namespace = facts.key().namespace().unwrap_or_default().to_owned();
    let made = json!({
        "metadata": {"name": name, "namespace": namespace,
            "labels": {"clusterctl.cluster.x-k8s.io/move": "true", "cluster.x-k8s.io/cluster-name": facts.name()},
            "annotations": {(MIGRATED_FROM): IDENTITY.kind}},
        "data": data,
    });
    let made: Secret = serde_json::from_value(made).map_err(|error| format!("Secret {name}: {error}"))?;
    let api: Api<Secret> = Api::namespaced(objects.client.clone(), &namespace);
    match api.create(&PostParams::default(), &made).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(format!("cannot create Secret {name}: {error}")),
    }
}

/// Only what a migration made is taken away.
async fn remove_credential(key: &ObjectKey, objects: &Objects) -> Result<(), String> {
    let Some(found) = secret(objects, key).await? else {
        return Ok(());
    };
    let is_ours = found
        .metadata
        .annotations
        .is_some_and(|all| all.contains_key(MIGRATED_FROM));
    if !is_ours {
        return Ok(());
    }
    let api: Api<Secret> = Api::namespaced(objects.client.clone(), key.namespace().unwrap_or_default());
    match api.delete(key.name(), &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other
            .map(|_| ())
            .map_err(|error| format!("cannot delete Secret {key}: {error}")),
    }
}

/// Has the manager read Azure, and makes what is missing.
async fn make(facts: &Facts, objects: &Objects, asker: &Asker) -> Result<(), String> {
    let Some(plane) = &facts.plane.classic else {
        return Err(format!(
            "AzureManagedControlPlane {} is not there",
            facts.plane.name
        ));
    };
    let recorded = recorded(facts)?;
    let credential = facts.credential_name();
    let question = Question {
        ids: vec![cluster_id(plane)?],
        namespace: facts.key().namespace().unwrap_or_default().to_owned(),
        credential: Some(credential.clone()),
        also: recorded.ids.iter().cloned().collect(),
    };
    let answer = asker.question(QUESTION, &json!(question)).await?;
    let answer: Answer = serde_json::from_value(answer)
        .map_err(|error| format!("the manager's answer cannot be read: {error}"))?;
    let found = answer.clusters.first().ok_or("the manager read no cluster")?;
    let core = objects
        .resource(CLUSTER.group, CLUSTER.kind)
        .map_or("v1beta2", |one| one.version.as_str());
    for manifest in inline::objects(facts, found, &recorded, &credential, core)? {
        adopt::act::create(objects, &manifest).await?;
    }
    Ok(())
}

async fn hand_over(name: &str, to: KindName, facts: &Facts, objects: &Objects) -> Result<(), String> {
    let target = if to == INLINE_PLANE {
        &facts.plane.inline
    } else {
        &facts.plane.classic
    };
    let Some(target) = target else {
        return Err(format!("{} {} is not there", to.kind, facts.plane.name));
    };
    let owner = json!([{
        "apiVersion": target.value["apiVersion"], "kind": target.kind.kind, "name": target.name(), "uid": target.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let patch = json!({"metadata": {"ownerReferences": owner}});
    let namespace = facts.key().namespace().unwrap_or_default().to_owned();
    let api: Api<Secret> = Api::namespaced(objects.client.clone(), &namespace);
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map(|_| ())
        .map_err(|error| format!("cannot hand Secret {name} over: {error}"))
}

async fn swap_pool(name: &str, to: KindName, facts: &Facts, objects: &Objects) -> Result<(), String> {
    let mut patch = json!({"spec": {"template": {"spec": {"infrastructureRef": {"kind": to.kind}}}}});
    let pool = facts.pools.iter().find(|pool| pool.machine_pool_name() == name);
    let managed =
        pool.is_some_and(|pool| !pool.machine_pool["metadata"]["annotations"][REPLICAS_MANAGED_BY].is_null());
    if managed {
        // Both say who scales the pool in their own words.
        let by = if to == CLASSIC_POOL { "true" } else { "aks" };
        patch["metadata"] = json!({"annotations": {(REPLICAS_MANAGED_BY): by}});
    }
    merge(objects, MACHINE_POOL, &facts.key().sibling(name), &patch).await
}

/// Only of an object that was paused when it was read: one that somebody resumed meanwhile keeps what holds it.
async fn release(object: &Object, objects: &Objects) -> Result<(), String> {
    if !object.is_disarmed() {
        return Err(format!(
            "{} was resumed: give the command again",
            object.display()
        ));
    }
    let version = &object.value["metadata"]["resourceVersion"];
    // As in a move: what it stands for lives on, and the last system pool may go.
    let annotations = json!({(annotation::DELETE_FOR_MOVE): ""});
    let patch =
        json!({"metadata": {"resourceVersion": version, "finalizers": null, "annotations": annotations}});
    merge(objects, object.kind, &object.key(), &patch).await
}

/// Only an object that is paused and held by nobody is deleted, as it was read: its controller has nothing to do when it goes.
async fn delete(object: &Object, objects: &Objects) -> Result<(), String> {
    if !object.is_disarmed() || object.has_finalizers() {
        return Err(format!(
            "{} is worked on again: give the command again",
            object.display()
        ));
    }
    let text = |field: &str| object.value["metadata"][field].as_str().map(str::to_owned);
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        }),
        ..DeleteParams::background()
    };
    let key = object.key();
    let api = objects.api(object.kind, key.namespace().unwrap_or_default())?;
    match api.delete(key.name(), &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(kube::Error::Api(status)) if status.is_conflict() => Err(format!(
            "{} was changed meanwhile: give the command again",
            object.display()
        )),
        Err(error) => Err(format!("cannot delete {}: {error}", object.display())),
    }
}

async fn release_identity(facts: &Facts, objects: &Objects) -> Result<(), String> {
    let (Some(identity), Some(plane)) = (&facts.identity, &facts.plane.classic) else {
        return Ok(());
    };
    let namespace = plane.value["metadata"]["namespace"].as_str().unwrap_or_default();
    let ours = slipway_azure::credential::identity_finalizer(namespace, plane.name());
    let finalizers = identity["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten();
    let left: Vec<&Value> = finalizers.filter(|one| **one != ours).collect();
    let patch =
        json!({"metadata": {"resourceVersion": identity["metadata"]["resourceVersion"], "finalizers": left}});
    let key = ObjectKey::new(
        identity["metadata"]["namespace"].as_str(),
        identity["metadata"]["name"].as_str().unwrap_or_default(),
    );
    merge(objects, IDENTITY, &key, &patch).await
}
