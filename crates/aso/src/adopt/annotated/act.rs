//! Adopts one object of Azure Service Operator: reads it and what it stands in, and makes the objects of ours. Each call may be repeated.

use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_runtime::{Context, ObjectKey};

use super::{
    super::act::{Made, create},
    manifests::{has_pools, has_stale_count, holder, of_cluster, of_pool, written_version},
};
use crate::{
    command::objects::{CLUSTER, INLINE_PLANE, KindName, Objects},
    engine::{OperatedObject, Operators, Told},
    mutators::{AGENT_POOL, CONTAINER_SERVICE, MANAGED_CLUSTER},
};

const RESOURCES: &str = "resources.azure.com";
const RESOURCE_GROUP: &str = "ResourceGroup";

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Objects were made; those of the operator become theirs when they are reconciled.
    Made,
    /// They are all there.
    Found,
    /// Something has to come first.
    Waits(String),
}

/// Where objects are read and written.
pub struct Adopter<'a> {
    pub operators: &'a Operators,
    pub context: &'a Context,
    pub objects: &'a Objects,
}

impl Adopter<'_> {
    /// The operator's object, in the version in which it was written.
    async fn read(
        &self,
        group: &str,
        kind: &str,
        key: &ObjectKey,
    ) -> Result<Option<(ApiResource, DynamicObject)>, String> {
        let definition = self
            .operators
            .definition(group, kind, self.context)
            .await
            .map_err(|error| format!("cannot read {kind} {key}: {error}"))?;
        let Some(definition) = definition else {
            return Ok(None);
        };
        let stored = definition.resource(group, kind, "");
        let Some(found) = self.get(&stored, key).await? else {
            return Ok(None);
        };
        let written = written_version(&found.metadata).filter(|version| definition.serves(version));
        let version = written.or_else(|| definition.newest()).unwrap_or_default();
        let resource = definition.resource(group, kind, &version);
        if resource.version == stored.version {
            return Ok(Some((resource, found)));
        }
        let found = self.get(&resource, key).await?;
        Ok(found.map(|found| (resource, found)))
    }

    async fn get(&self, resource: &ApiResource, key: &ObjectKey) -> Result<Option<DynamicObject>, String> {
        let namespace = key.namespace().unwrap_or_default();
        let api = Api::<DynamicObject>::namespaced_with(self.context.client.clone(), namespace, resource);
        let found = api.get_opt(key.name()).await;
        found.map_err(|error| format!("cannot read {} {key}: {error}", resource.kind))
    }

    /// A ManagedCluster becomes a Cluster.
    pub async fn cluster(&self, key: &ObjectKey) -> Result<Step, String> {
        let Some((resource, found)) = self.read(CONTAINER_SERVICE, MANAGED_CLUSTER, key).await? else {
            return Ok(Step::Found);
        };
        let operated = OperatedObject(found);
        if operated.told() != Told::Ready || operated.id().is_none() {
            let message = "Azure Service Operator has not finished it: it is adopted when it is Ready";
            return Ok(Step::Waits(message.to_owned()));
        }
        let live = as_value(&resource, &operated.0);
        let mut group = None;
        if let Some(name) = live["spec"]["owner"]["name"].as_str() {
            let found = self.read(RESOURCES, RESOURCE_GROUP, &key.sibling(name)).await?;
            let Some((resource, found)) = found else {
                let message = format!(
                    "spec.owner names ResourceGroup {name}, which is not there: make it in the same namespace, or name the group by armId"
                );
                return Ok(Step::Waits(message));
            };
            // One that belongs to another object of ours stays there: it is found by its name.
            group = holder(&found.metadata)
                .is_none()
                .then(|| as_value(&resource, &found));
        }
        if let Some(cluster) = self.objects.find(CLUSTER, key).await? {
            let reference = &cluster["spec"]["controlPlaneRef"];
            let is_its =
                KindName::of_reference(reference) == Some(INLINE_PLANE) && reference["name"] == key.name();
            if !is_its {
                let message = format!(
                    "there is a Cluster {key} with another control plane: rename one of them, or take the annotation off"
                );
                return Ok(Step::Waits(message));
            }
        }
        if has_pools(&live) {
            let pools = json!({"agentPoolProfiles": null});
            self.change(&resource, &operated.0, &pools).await?;
        }
        self.make(&of_cluster(&live, group.as_ref(), &self.core()?)).await
    }

    /// A ManagedClustersAgentPool becomes a MachinePool of the Cluster that its ManagedCluster has become.
    pub async fn pool(&self, key: &ObjectKey) -> Result<Step, String> {
        let Some((resource, found)) = self.read(CONTAINER_SERVICE, AGENT_POOL, key).await? else {
            return Ok(Step::Found);
        };
        let live = as_value(&resource, &found);
        let Some(owner) = live["spec"]["owner"]["name"].as_str() else {
            let message =
                "spec.owner names no ManagedCluster of this namespace: name the one that is adopted";
            return Ok(Step::Waits(message.to_owned()));
        };
        let waits = Step::Waits(format!(
            "it waits for ManagedCluster {owner} to be adopted: annotate that one, too"
        ));
        let plane = self
            .read(CONTAINER_SERVICE, MANAGED_CLUSTER, &key.sibling(owner))
            .await?;
        let Some((plane_resource, plane)) = plane else {
            return Ok(waits);
        };
        let Some(holder) = holder(&plane.metadata).filter(|holder| holder.kind == INLINE_PLANE.kind) else {
            return Ok(waits);
        };
        let held_by = self
            .objects
            .find(INLINE_PLANE, &key.sibling(&holder.name))
            .await?;
        let cluster = held_by.and_then(|held_by| {
            let label = held_by["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"].as_str();
            label.map(str::to_owned)
        });
        let Some(cluster) = cluster else { return Ok(waits) };
        if has_stale_count(&live) {
            // AKS counts, and the operator would set it back.
            self.change(&resource, &found, &json!({"count": null})).await?;
        }
        let plane = as_value(&plane_resource, &plane);
        self.make(&of_pool(&live, &plane, &cluster, &self.core()?)).await
    }

    /// Takes out of the operator's object what Cluster API decides from now on.
    async fn change(
        &self,
        resource: &ApiResource,
        object: &DynamicObject,
        spec: &Value,
    ) -> Result<(), String> {
        let namespace = object.namespace().unwrap_or_default();
        let api = Api::<DynamicObject>::namespaced_with(self.context.client.clone(), &namespace, resource);
        let patch = json!({"metadata": {"resourceVersion": object.metadata.resource_version}, "spec": spec});
        let name = object.name_any();
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map(|_| ())
            .map_err(|error| format!("cannot change {} {namespace}/{name}: {error}", resource.kind))
    }

    fn core(&self) -> Result<String, String> {
        let core = self.objects.resource(CLUSTER.group, CLUSTER.kind);
        core.map(|core| core.version.clone()).ok_or_else(|| {
            "the cluster serves no Cluster of cluster.x-k8s.io: install Cluster API first".to_owned()
        })
    }

    async fn make(&self, manifests: &[Value]) -> Result<Step, String> {
        let mut step = Step::Found;
        for manifest in manifests {
            if create(self.objects, manifest).await? == Made::Created {
                step = Step::Made;
            }
        }
        Ok(step)
    }
}

fn as_value(resource: &ApiResource, object: &DynamicObject) -> Value {
    let mut value = json!(object);
    value["apiVersion"] = json!(resource.api_version);
    value["kind"] = json!(resource.kind);
    value
}
