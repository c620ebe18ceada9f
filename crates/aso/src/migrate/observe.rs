//! Every read of a migration.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use slipway_azure::credential::identity_finalizer;
use slipway_runtime::ObjectKey;

use super::facts::{Facts, HeldSecret, Object, Pair, Pool};
use crate::command::objects::{
    CLASSIC_CLUSTER, CLASSIC_PLANE, CLASSIC_POOL, CLUSTER, IDENTITY, INLINE_CLUSTER, INLINE_PLANE,
    INLINE_POOL, KindName, MACHINE_POOL, Objects,
};

/// Groups of Azure Service Operator that classic clusters had objects in.
const OPERATED: &[&str] = &[
    "containerservice.azure.com",
    "kubernetesconfiguration.azure.com",
    "network.azure.com",
    "resources.azure.com",
];

/// What is known of a Cluster.
pub async fn observe(objects: &Objects, key: &ObjectKey) -> Result<Facts, String> {
    let cluster = objects.get(CLUSTER, key).await?;
    let infrastructure = &cluster["spec"]["infrastructureRef"];
    let plane = &cluster["spec"]["controlPlaneRef"];
    let mut facts = Facts {
        infrastructure: pair(objects, key, infrastructure, CLASSIC_CLUSTER, INLINE_CLUSTER).await?,
        plane: pair(objects, key, plane, CLASSIC_PLANE, INLINE_PLANE).await?,
        ..Facts::default()
    };
    for machine_pool in objects.of_cluster(MACHINE_POOL, key).await? {
        let reference = &machine_pool["spec"]["template"]["spec"]["infrastructureRef"];
        let pair = pair(objects, key, reference, CLASSIC_POOL, INLINE_POOL).await?;
        facts.pools.push(Pool { machine_pool, pair });
    }
    let known: BTreeSet<&str> = facts.pools.iter().map(|pool| pool.pair.name.as_str()).collect();
    let labelled = objects.of_cluster(CLASSIC_POOL, key).await?;
    let stray = labelled.into_iter().filter(|pool| {
        pool["metadata"]["name"]
            .as_str()
            .is_some_and(|name| !known.contains(name))
    });
    facts.stray = stray
        .map(|value| Object {
            kind: CLASSIC_POOL,
            value,
        })
        .collect();
    facts.cluster = cluster;
    for suffix in ["kubeconfig", "ca"] {
        let name = format!("{}-{suffix}", key.name());
        if let Some(secret) = secret(objects, &key.sibling(&name)).await? {
            let owners = secret.metadata.owner_references.unwrap_or_default();
            let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
            let owner = controller.map(|owner| owner.kind).unwrap_or_default();
            facts.secrets.push(HeldSecret { name, owner });
        }
    }
    let credential = key.sibling(&facts.credential_name());
    facts.has_credential = secret(objects, &credential).await?.is_some();
    identity(objects, &mut facts).await?;
    facts.operated = operated(objects, &facts).await?;
    Ok(facts)
}

async fn pair(
    objects: &Objects,
    cluster: &ObjectKey,
    reference: &Value,
    classic: KindName,
    inline: KindName,
) -> Result<Pair, String> {
    let refers_to = KindName::of_reference(reference).filter(|kind| [classic, inline].contains(kind));
    let name = reference["name"].as_str().unwrap_or_default().to_owned();
    let mut pair = Pair {
        refers_to,
        name,
        ..Pair::default()
    };
    if refers_to.is_some() && !pair.name.is_empty() {
        let key = cluster.sibling(&pair.name);
        let object = |kind: KindName, value: Option<Value>| value.map(|value| Object { kind, value });
        pair.classic = object(classic, objects.find(classic, &key).await?);
        pair.inline = object(inline, objects.find(inline, &key).await?);
    }
    Ok(pair)
}

pub async fn secret(objects: &Objects, key: &ObjectKey) -> Result<Option<Secret>, String> {
    let api: Api<Secret> = Api::namespaced(objects.client.clone(), key.namespace().unwrap_or_default());
    api.get_opt(key.name())
        .await
        .map_err(|error| format!("cannot read Secret {key}: {error}"))
}

/// How the classic control plane signs in.
async fn identity(objects: &Objects, facts: &mut Facts) -> Result<(), String> {
    let Some(plane) = &facts.plane.classic else {
        return Ok(());
    };
    let reference = &plane.value["spec"]["identityRef"];
    let Some(name) = reference["name"].as_str() else {
        return Ok(());
    };
    let own = plane.value["metadata"]["namespace"].as_str();
    let namespace = reference["namespace"]
        .as_str()
        .filter(|namespace| !namespace.is_empty());
    let key = ObjectKey::new(namespace.or(own), name);
    let Some(found) = objects.find(IDENTITY, &key).await? else {
        return Ok(());
    };
    let finalizer = identity_finalizer(own.unwrap_or_default(), plane.name());
    let finalizers = found["metadata"]["finalizers"].as_array();
    facts.identity_is_held = finalizers.is_some_and(|all| all.iter().any(|one| *one == finalizer));
    facts.identity = Some(found);
    Ok(())
}

/// Objects of Azure Service Operator that the classic ones control.
async fn operated(objects: &Objects, facts: &Facts) -> Result<Vec<String>, String> {
    let uids: BTreeSet<&str> = facts.classic().map(Object::uid).collect();
    let namespace = facts.key().namespace().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    let failed = |error: kube::Error| {
        format!(
            "cannot tell whether objects of Azure Service Operator stand for the Cluster: {error}. Let Slipway take it over first \
             (docs/guides/takeover-aks.md)"
        )
    };
    let groups = objects.client.list_api_groups().await.map_err(failed)?;
    for group in groups
        .groups
        .iter()
        .filter(|group| OPERATED.contains(&group.name.as_str()))
    {
        let Some(version) = group.preferred_version.as_ref().or(group.versions.first()) else {
            continue;
        };
        let list = objects.client.list_api_group_resources(&version.group_version);
        for resource in list.await.map_err(failed)?.resources {
            if resource.name.contains('/') || !resource.namespaced {
                continue;
            }
            let kind = GroupVersionKind::gvk(&group.name, &version.version, &resource.kind);
            let api_resource = ApiResource::from_gvk_with_plural(&kind, &resource.name);
            let api: Api<DynamicObject> =
                Api::namespaced_with(objects.client.clone(), &namespace, &api_resource);
            for object in api.list(&ListParams::default()).await.map_err(failed)? {
                let mut owners = object.metadata.owner_references.iter().flatten();
                if owners.any(|owner| uids.contains(owner.uid.as_str())) {
                    let name = object.metadata.name.unwrap_or_default();
                    found.push(format!("{} {name}", resource.kind));
                }
            }
        }
    }
    Ok(found)
}

/// The ids of what the classic objects asked Azure for, and the mark of the control plane.
pub fn recorded(facts: &Facts) -> Result<Recorded, String> {
    let mut recorded = Recorded::default();
    for object in facts.classic() {
        let metadata = serde_json::from_value(object.value["metadata"].clone())
            .map_err(|error| format!("{}: {error}", object.display()))?;
        let records = slipway_azure::reconcile::Records::of(&metadata);
        recorded.ids.extend(records.ids().map(str::to_owned));
        recorded.made.extend(records.made().map(|(id, _)| id.to_owned()));
        if object.kind == CLASSIC_PLANE {
            recorded.mark = records.mark().map(str::to_owned);
        }
    }
    Ok(recorded)
}

/// What the classic objects have recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// By id in lower case.
    pub ids: BTreeSet<String>,
    pub made: BTreeSet<String>,
    pub mark: Option<String>,
}

/// The id of the AKS cluster that a classic control plane stands for.
pub fn cluster_id(plane: &Object) -> Result<String, String> {
    let spec = &plane.value["spec"];
    let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
    let (subscription, group) = (text("subscriptionID"), text("resourceGroupName"));
    if subscription.is_empty() || group.is_empty() {
        return Err(format!(
            "{} does not say where its AKS cluster is: spec.subscriptionID and spec.resourceGroupName are needed",
            plane.display()
        ));
    }
    Ok(format!(
        "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.ContainerService/managedClusters/{}",
        plane.name()
    ))
}

/// A patch of annotations.
pub fn annotations(name: &str, value: Option<&str>) -> Value {
    json!({"metadata": {"annotations": {(name): value}}})
}
