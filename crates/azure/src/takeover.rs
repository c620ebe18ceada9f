//! Taking over from an installation that kept an Azure Service Operator object for each resource: those objects are
//! told to leave Azure alone, what they say of who made a resource is kept, and then they go. Nothing is asked of Azure
//! before the last of them is detached: there are never two writers for one resource.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        Preconditions,
    },
};
use parking_lot::Mutex;
use serde_json::Value;
use slipway_capi::{annotations, finalizer, names::label, owner};
use slipway_runtime::{Context, ObjectKey};
use tokio::time::Instant;

use crate::reconcile::{Error, Records, ResourceKind, ResourceState};

/// What Azure Service Operator may do to a resource.
pub const POLICY: &str = "serviceoperator.azure.com/reconcile-policy";
/// It looks and never writes.
pub const SKIP: &str = "skip";
const FINALIZER: &str = "serviceoperator.azure.com/finalizer";
/// What the policy was before the object was paused.
pub const BEFORE_PAUSE: &str = "sigs.k8s.io/cluster-api-provider-azure-pre-pause-reconcile-policy";
/// The resource that an object stands for.
pub const RESOURCE_ID: &str = "serviceoperator.azure.com/resource-id";
/// An operator that is installed later is found within this time.
const DISCOVER_AGAIN: Duration = Duration::from_mins(10);

/// The kinds that stood for an AKS cluster, the one that is always there first.
const KINDS: &[(&str, &str, &str)] = &[
    ("containerservice.azure.com", "managedclusters", "ManagedCluster"),
    (
        "containerservice.azure.com",
        "managedclustersagentpools",
        "ManagedClustersAgentPool",
    ),
    ("containerservice.azure.com", "fleetsmembers", "FleetsMember"),
    ("kubernetesconfiguration.azure.com", "extensions", "Extension"),
    ("network.azure.com", "privateendpoints", "PrivateEndpoint"),
    (
        "network.azure.com",
        "virtualnetworkssubnets",
        "VirtualNetworksSubnet",
    ),
    ("network.azure.com", "virtualnetworks", "VirtualNetwork"),
    ("resources.azure.com", "resourcegroups", "ResourceGroup"),
];

#[derive(Debug, Default)]
struct Known {
    /// The kinds that are installed, and when that was looked up.
    served: Option<(Instant, Vec<ApiResource>)>,
    /// The uids of objects that have nothing left to detach.
    free: HashMap<ObjectKey, String>,
}

/// What this process knows of the operator's objects. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Takeover(Arc<Mutex<Known>>);

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Free,
    /// So many objects are still there.
    Detaching(usize),
}

/// A resource that an object of the operator stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatedResource {
    group: String,
    kind: String,
    object: ObjectKey,
    /// In lower case, once the operator has noted it.
    id: Option<String>,
}

impl OperatedResource {
    fn of(resource: &ApiResource, object: &DynamicObject) -> Self {
        let noted = object.annotations().get(RESOURCE_ID).map(String::as_str);
        let id = noted.or_else(|| object.data.pointer("/status/id").and_then(Value::as_str));
        Self {
            group: resource.group.clone(),
            kind: resource.kind.clone(),
            object: key(&object.metadata),
            id: id.map(str::to_lowercase),
        }
    }

    /// Whether it is the resource with this id; before the operator has noted one, the one of this name.
    pub fn is(&self, group: &str, kind: &str, object: &ObjectKey, id: Option<&str>) -> bool {
        match (&self.id, id) {
            (Some(own), Some(id)) => own.eq_ignore_ascii_case(id),
            _ => self.group == group && self.kind == kind && self.object == *object,
        }
    }
}

impl std::fmt::Display for OperatedResource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}", self.kind, self.object)
    }
}

/// The version to ask with for what may be taken away alone; the rest is known by its tags.
fn api_version(kind: ResourceKind) -> Option<&'static str> {
    match kind {
        ResourceKind::PrivateEndpoint => Some("2024-03-01"),
        ResourceKind::FleetMember => Some("2023-03-15-preview"),
        ResourceKind::Extension => Some("2024-11-01"),
        _ => None,
    }
}

/// What one of the operator's objects is in for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachStep {
    Hush,
    /// In Kubernetes alone where it is hushed; else the operator deletes the resource, too.
    Delete,
    /// The operator's finalizer is taken off. Only for an object that is hushed.
    Release,
}

fn next_step(metadata: &ObjectMeta) -> DetachStep {
    let policy = metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(POLICY));
    if policy.map(String::as_str) != Some(SKIP) {
        DetachStep::Hush
    } else if metadata.deletion_timestamp.is_none() {
        DetachStep::Delete
    } else {
        DetachStep::Release
    }
}

/// The resource an object stands for, if the operator made it and not only looked at it.
fn made(object: &DynamicObject) -> Option<String> {
    let annotations = object.annotations();
    let policy = annotations.get(BEFORE_PAUSE).or(annotations.get(POLICY));
    if policy.map(String::as_str) == Some(SKIP) {
        return None;
    }
    annotations
        .get(RESOURCE_ID)
        .map(String::as_str)
        .or_else(|| object.data.pointer("/status/id").and_then(Value::as_str))
        .map(str::to_owned)
}

fn key(object: &ObjectMeta) -> ObjectKey {
    let name = object.name.as_deref().unwrap_or_default();
    ObjectKey::new(object.namespace.as_deref(), name)
}

impl Takeover {
    /// Whether nothing is left to detach for this object, as far as this process knows.
    pub fn is_free(&self, object: &ObjectMeta) -> bool {
        let known = self.0.lock();
        known.free.get(&key(object)) == Some(&object.uid.clone().unwrap_or_default())
    }

    /// How many objects are known to have nothing left to detach.
    pub fn len(&self) -> usize {
        self.0.lock().free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The object is gone.
    pub fn forget(&self, object: &ObjectKey) {
        self.0.lock().free.remove(object);
    }

    /// Detaches what belongs to an object. Called before anything is asked of Azure for it. Where `records` are changed,
    /// they are stored by the caller, and nothing else is done.
    pub async fn detach(
        &self,
        object: &ObjectMeta,
        cluster: &str,
        records: &mut Records,
        context: &Context,
    ) -> Result<Progress, Error> {
        if self.is_free(object) {
            return Ok(Progress::Free);
        }
        let mut left = Vec::new();
        for resource in self.served(context).await? {
            let api: Api<DynamicObject> = Api::namespaced_with(
                context.client.clone(),
                object.namespace.as_deref().unwrap_or_default(),
                &resource,
            );
            let selector = ListParams::default().labels(&format!("{}={cluster}", label::CLUSTER_NAME));
            let found = api
                .list(&selector)
                .await
                .map_err(Error::api(format!("listing {} to take over", resource.kind)))?;
            left.extend(
                found
                    .items
                    .into_iter()
                    .filter(|one| owner::is_controlled_by(&one.metadata, object))
                    .map(|one| (api.clone(), resource.kind.clone(), one)),
            );
        }
        if left.is_empty() {
            let uid = object.uid.clone().unwrap_or_default();
            self.0.lock().free.insert(key(object), uid);
            return Ok(Progress::Free);
        }
        // Who made what is stored before the first object is told anything: a hushed one no longer tells.
        for id in left.iter().filter_map(|(_, _, one)| made(one)) {
            if let Some(version) = ResourceKind::of(&id).and_then(api_version) {
                records.intend(&id, version, &ResourceState::Absent, context.clock.now());
            }
        }
        if records.patch().is_some() {
            return Ok(Progress::Detaching(left.len()));
        }
        let hushing = left
            .iter()
            .any(|(_, _, one)| next_step(&one.metadata) == DetachStep::Hush);
        for (api, kind, one) in &left {
            let step = next_step(&one.metadata);
            // All are told to keep quiet before the first one goes.
            if !hushing || step == DetachStep::Hush {
                take(api, kind, one, step).await?;
            }
        }
        Ok(Progress::Detaching(left.len()))
    }

    /// The operator's objects of these kinds that it writes resources for, wherever this manager looks.
    pub async fn living(
        &self,
        kinds: &BTreeSet<&str>,
        context: &Context,
    ) -> Result<Vec<OperatedResource>, Error> {
        let mut found = Vec::new();
        for resource in self.served(context).await? {
            if !kinds.contains(resource.kind.as_str()) {
                continue;
            }
            let api: Api<DynamicObject> = match &context.settings.namespace {
                Some(namespace) => Api::namespaced_with(context.client.clone(), namespace, &resource),
                None => Api::all_with(context.client.clone(), &resource),
            };
            let doing = format!("listing {} of Azure Service Operator", resource.kind);
            let listed = api
                .list(&ListParams::default())
                .await
                .map_err(Error::api(doing))?;
            let living = listed.items.iter().filter(|object| {
                let policy = object.annotations().get(POLICY);
                policy.map(String::as_str) != Some(SKIP)
            });
            found.extend(living.map(|object| OperatedResource::of(&resource, object)));
        }
        Ok(found)
    }

    /// The kinds of the operator that are installed, at the version they are stored in.
    async fn served(&self, context: &Context) -> Result<Vec<ApiResource>, Error> {
        if let Some((at, served)) = &self.0.lock().served
            && (at.elapsed() < DISCOVER_AGAIN || !served.is_empty())
        {
            return Ok(served.clone());
        }
        let definitions: Api<CustomResourceDefinition> = Api::all(context.client.clone());
        let mut served = Vec::new();
        for (group, plural, kind) in KINDS {
            let name = format!("{plural}.{group}");
            let definition = definitions
                .get_opt(&name)
                .await
                .map_err(Error::api(format!("reading CustomResourceDefinition {name}")))?;
            let Some(definition) = definition else {
                if served.is_empty() {
                    break;
                }
                continue;
            };
            if let Some(version) = definition.spec.versions.iter().find(|version| version.storage) {
                let kind = GroupVersionKind::gvk(group, &version.name, kind);
                served.push(ApiResource::from_gvk_with_plural(&kind, plural));
            }
        }
        self.0.lock().served = Some((Instant::now(), served.clone()));
        Ok(served)
    }
}

/// Takes one step with one of the operator's objects.
pub async fn take(
    api: &Api<DynamicObject>,
    kind: &str,
    object: &DynamicObject,
    step: DetachStep,
) -> Result<(), Error> {
    let name = object.name_any();
    let result = match step {
        DetachStep::Hush => {
            let patch = annotations::set_annotation(POLICY, Some(SKIP));
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .map(|_| ())
        }
        DetachStep::Delete => {
            let same = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: object.meta().uid.clone(),
                    resource_version: None,
                }),
                ..DeleteParams::background()
            };
            api.delete(&name, &same).await.map(|_| ())
        }
        // The operator may no longer run; told to keep quiet, it would do just this.
        DetachStep::Release => match finalizer::drop_entry(&object.metadata, FINALIZER) {
            None => Ok(()),
            Some(patch) => api
                .patch(&name, &PatchParams::default(), &Patch::<()>::Json(patch))
                .await
                .map(|_| ()),
        },
    };
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        // The operator took its finalizer off first.
        Err(kube::Error::Api(status)) if step == DetachStep::Release && status.code == 422 => Ok(()),
        other => other.map_err(Error::api(format!("detaching {kind} {name}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(metadata: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "containerservice.azure.com/v1api20231001", "kind": "ManagedCluster",
            "metadata": metadata, "status": {"id": "/subscriptions/s/resourceGroups/g"},
        }))
        .unwrap()
    }

    #[test]
    fn a_resource_is_known_by_its_id_and_before_that_by_its_name() {
        let kind = GroupVersionKind::gvk("containerservice.azure.com", "v1", "ManagedCluster");
        let resource = ApiResource::from_gvk(&kind);
        let named = ObjectKey::namespaced("team", "a");
        let is = |one: &OperatedResource, name: &str, id: Option<&str>| {
            let object = ObjectKey::namespaced("team", name);
            one.is("containerservice.azure.com", "ManagedCluster", &object, id)
        };
        let mut known = OperatedResource::of(&resource, &object(&json!({"name": "a", "namespace": "team"})));
        assert_eq!(known.to_string(), format!("ManagedCluster {named}"));
        assert!(is(&known, "other", Some("/subscriptions/S/resourceGroups/g")));
        assert!(!is(&known, "a", Some("/subscriptions/s/resourceGroups/h")));
        known.id = None;
        assert!(is(&known, "a", Some("/subscriptions/s/resourceGroups/h")) && !is(&known, "b", None));
    }

    #[test]
    fn an_object_is_hushed_then_deleted_then_released() {
        let plain = object(&json!({"name": "a"}));
        assert_eq!(next_step(&plain.metadata), DetachStep::Hush);
        assert_eq!(made(&plain).as_deref(), Some("/subscriptions/s/resourceGroups/g"));
        let quiet = object(&json!({"name": "a", "annotations": {(POLICY): "skip"}}));
        assert_eq!(next_step(&quiet.metadata), DetachStep::Delete);
        assert_eq!(made(&quiet), None, "what the operator only looked at was brought");
        for (before, known) in [("manage", true), ("", true), ("skip", false)] {
            let paused =
                object(&json!({"name": "a", "annotations": {(POLICY): "skip", (BEFORE_PAUSE): before}}));
            assert_eq!(next_step(&paused.metadata), DetachStep::Delete);
            assert_eq!(made(&paused).is_some(), known, "paused, and {before:?} before");
        }
        let going = object(&json!({"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {(POLICY): "skip"}}));
        assert_eq!(next_step(&going.metadata), DetachStep::Release);
    }
}
