//! Who owns an object: the Cluster, Machine or MachinePool it belongs to, and the keys by which informers find the
//! objects that belong to one of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Client, Resource};

use crate::{
    Error,
    names::{self, label},
    view::{Cluster, Machine, MachinePool},
};

/// The group of an `apiVersion`; the core group is empty.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// The owner of a kind, whatever the version of the reference.
pub fn owner_of_kind<'a>(metadata: &'a ObjectMeta, group: &str, kind: &str) -> Option<&'a OwnerReference> {
    metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.kind == kind && group_of(&owner.api_version) == group)
}

/// The name of the owning Cluster: by owner reference, else by label.
pub fn cluster_name(metadata: &ObjectMeta) -> Option<&str> {
    owner_cluster_name(metadata).or_else(|| labelled_cluster_name(metadata))
}

/// The Cluster that has become the owner of the object. Core sets it on what the Cluster refers to; until then
/// the object is waited for.
pub fn owner_cluster_name(metadata: &ObjectMeta) -> Option<&str> {
    owner_of_kind(metadata, names::GROUP, "Cluster").map(|owner| owner.name.as_str())
}

/// The Cluster in the object's label.
pub fn labelled_cluster_name(metadata: &ObjectMeta) -> Option<&str> {
    metadata
        .labels
        .as_ref()?
        .get(label::CLUSTER_NAME)
        .map(String::as_str)
        .filter(|name| !name.is_empty())
}

pub fn owner_machine_name(metadata: &ObjectMeta) -> Option<&str> {
    owner_of_kind(metadata, names::GROUP, "Machine").map(|owner| owner.name.as_str())
}

pub fn owner_machine_pool_name(metadata: &ObjectMeta) -> Option<&str> {
    owner_of_kind(metadata, names::GROUP, "MachinePool").map(|owner| owner.name.as_str())
}

pub fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
}

/// Whether the object is controlled by this owner, compared by uid.
pub fn is_controlled_by(metadata: &ObjectMeta, owner: &ObjectMeta) -> bool {
    match (controller_of(metadata), owner.uid.as_deref()) {
        (Some(controller), Some(uid)) => controller.uid == uid,
        _ => false,
    }
}

/// A reference that makes `owner` the controller of an object. `None` before the owner is stored.
pub fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> Option<OwnerReference> {
    owner.controller_owner_ref(&())
}

/// The owner references with `desired` among them: the one that names the same object is replaced, so that a version
/// or a flag is brought up to date. `None` if nothing changes.
pub fn with_owner(metadata: &ObjectMeta, desired: &OwnerReference) -> Option<Vec<OwnerReference>> {
    let mut owners = metadata.owner_references.clone().unwrap_or_default();
    match owners.iter().position(|owner| same_object(owner, desired)) {
        Some(index) if owners[index] == *desired => return None,
        Some(index) => owners[index] = desired.clone(),
        None => owners.push(desired.clone()),
    }
    Some(owners)
}

/// The owner references without the object that `removed` names. `None` if nothing changes.
pub fn without_owner(metadata: &ObjectMeta, removed: &OwnerReference) -> Option<Vec<OwnerReference>> {
    let owners = metadata.owner_references.as_ref()?;
    let kept: Vec<_> = owners
        .iter()
        .filter(|owner| !same_object(owner, removed))
        .cloned()
        .collect();
    (kept.len() != owners.len()).then_some(kept)
}

fn same_object(left: &OwnerReference, right: &OwnerReference) -> bool {
    left.kind == right.kind
        && left.name == right.name
        && group_of(&left.api_version) == group_of(&right.api_version)
}

/// A key that informers index objects by: `<namespace>/<name>`.
pub fn key(namespace: Option<&str>, name: &str) -> String {
    format!("{}/{name}", namespace.unwrap_or_default())
}

/// Index: objects by the Cluster they belong to.
pub fn by_cluster(metadata: &ObjectMeta) -> Vec<String> {
    cluster_name(metadata)
        .map(|name| key(metadata.namespace.as_deref(), name))
        .into_iter()
        .collect()
}

/// Index: objects by the uid of every owner.
pub fn by_owner_uid(metadata: &ObjectMeta) -> Vec<String> {
    metadata
        .owner_references
        .iter()
        .flatten()
        .map(|owner| owner.uid.clone())
        .collect()
}

/// Index: Machines by the name of their node.
pub fn by_node(machine: &Machine) -> Vec<String> {
    machine.node_name().map(str::to_owned).into_iter().collect()
}

/// Index: Machines by their provider id.
pub fn by_provider_id(machine: &Machine) -> Vec<String> {
    Some(&machine.spec.provider_id)
        .filter(|id| !id.is_empty())
        .cloned()
        .into_iter()
        .collect()
}

/// Index: Clusters by what they refer to as `<group>/<kind>/<namespace>/<name>`, to wake it when the Cluster changes.
pub fn cluster_by_reference(cluster: &Cluster) -> Vec<String> {
    [&cluster.spec.infrastructure_ref, &cluster.spec.control_plane_ref]
        .into_iter()
        .flatten()
        .map(|reference| reference_key(cluster.metadata.namespace.as_deref(), reference))
        .collect()
}

/// Index: Machines by their infrastructure and bootstrap objects, as [`cluster_by_reference`].
pub fn machine_by_reference(machine: &Machine) -> Vec<String> {
    Some(&machine.spec.infrastructure_ref)
        .into_iter()
        .chain(&machine.spec.bootstrap.config_ref)
        .filter(|reference| reference.is_defined())
        .map(|reference| reference_key(machine.metadata.namespace.as_deref(), reference))
        .collect()
}

pub fn reference_key(namespace: Option<&str>, reference: &crate::view::ObjectReference) -> String {
    format!(
        "{}/{}/{}",
        reference.api_group,
        reference.kind,
        key(namespace, &reference.name)
    )
}

/// The Cluster an object belongs to, if it says so and the Cluster exists.
pub async fn get_cluster(client: &Client, metadata: &ObjectMeta) -> Result<Option<Cluster>, Error> {
    get_named(client, metadata, cluster_name(metadata), "Cluster").await
}

/// The Machine that owns an object.
pub async fn get_machine(client: &Client, metadata: &ObjectMeta) -> Result<Option<Machine>, Error> {
    get_named(client, metadata, owner_machine_name(metadata), "Machine").await
}

/// The MachinePool that owns an object.
pub async fn get_machine_pool(client: &Client, metadata: &ObjectMeta) -> Result<Option<MachinePool>, Error> {
    get_named(client, metadata, owner_machine_pool_name(metadata), "MachinePool").await
}

async fn get_named<K>(
    client: &Client,
    metadata: &ObjectMeta,
    name: Option<&str>,
    kind: &str,
) -> Result<Option<K>, Error>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let (Some(name), Some(namespace)) = (name, metadata.namespace.as_deref()) else {
        return Ok(None);
    };
    Api::<K>::namespaced(client.clone(), namespace)
        .get_opt(name)
        .await
        .map_err(Error::api(format!("reading {kind} {namespace}/{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn metadata(value: serde_json::Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_owner_reference_wins_over_the_label_in_any_version() {
        let object = metadata(json!({
            "namespace": "fleet",
            "labels": {"cluster.x-k8s.io/cluster-name": "labelled"},
            "ownerReferences": [
                {"apiVersion": "other.dev/v1", "kind": "Cluster", "name": "stranger", "uid": "1"},
                {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "name": "owner", "uid": "2"},
            ],
        }));
        assert_eq!(cluster_name(&object), Some("owner"));
        assert_eq!(by_cluster(&object), ["fleet/owner"]);
        assert_eq!(by_owner_uid(&object), ["1", "2"]);
        let unowned = metadata(json!({"labels": {"cluster.x-k8s.io/cluster-name": "labelled"}}));
        assert_eq!(cluster_name(&unowned), Some("labelled"));
        assert_eq!(owner_cluster_name(&unowned), None);
        let unlabelled = metadata(json!({"labels": {"cluster.x-k8s.io/cluster-name": ""}}));
        assert_eq!(cluster_name(&unlabelled), None);
    }

    #[test]
    fn an_owner_is_added_once_and_brought_up_to_date() {
        let owner = |version: &str, controller| OwnerReference {
            api_version: format!("cluster.x-k8s.io/{version}"),
            kind: "Cluster".into(),
            name: "edge".into(),
            uid: "1".into(),
            controller,
            ..Default::default()
        };
        let mut object = ObjectMeta::default();
        object.owner_references = with_owner(&object, &owner("v1beta1", None));
        assert_eq!(with_owner(&object, &owner("v1beta1", None)), None);
        let newer = with_owner(&object, &owner("v1beta2", Some(true))).unwrap();
        assert_eq!(newer, [owner("v1beta2", Some(true))]);
        assert_eq!(without_owner(&object, &owner("v1beta2", None)), Some(vec![]));
        assert_eq!(
            without_owner(&ObjectMeta::default(), &owner("v1beta2", None)),
            None
        );
    }

    #[test]
    fn references_are_indexed_by_group_kind_and_name() {
        let machine: Machine = serde_json::from_value(json!({
            "metadata": {"namespace": "fleet"},
            "spec": {
                "infrastructureRef": {"apiGroup": "i.dev", "kind": "EdgeMachine", "name": "m"},
                "bootstrap": {"configRef": {"apiGroup": "b.dev", "kind": "Config", "name": "c"}},
            },
        }))
        .unwrap();
        assert_eq!(
            machine_by_reference(&machine),
            ["i.dev/EdgeMachine/fleet/m", "b.dev/Config/fleet/c"]
        );
        assert!(machine_by_reference(&Machine::default()).is_empty());
    }
}
