//! Who owns an object: the Cluster, Machine or MachinePool it belongs to, and the keys by which informers find the
//! objects that belong to one of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Client, Resource};

use crate::{
    Error,
    names::{self, label},
    view::{Machine, MachinePool},
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

/// Index: Machines by the name of their node.
pub fn by_node(machine: &Machine) -> Vec<String> {
    machine.node_name().map(str::to_owned).into_iter().collect()
}

pub fn reference_key(namespace: Option<&str>, reference: &crate::view::ObjectReference) -> String {
    format!(
        "{}/{}/{}",
        reference.api_group,
        reference.kind,
        key(namespace, &reference.name)
    )
}

/// The MachinePool that owns an object.
pub async fn get_machine_pool(client: &Client, metadata: &ObjectMeta) -> Result<Option<MachinePool>, Error> {
    let (Some(name), Some(namespace)) = (owner_machine_pool_name(metadata), metadata.namespace.as_deref())
    else {
        return Ok(None);
    };
    Api::<MachinePool>::namespaced(client.clone(), namespace)
        .get_opt(name)
        .await
        .map_err(Error::api(format!("reading MachinePool {namespace}/{name}")))
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
        let unowned = metadata(json!({"labels": {"cluster.x-k8s.io/cluster-name": "labelled"}}));
        assert_eq!(cluster_name(&unowned), Some("labelled"));
        assert_eq!(owner_cluster_name(&unowned), None);
        let unlabelled = metadata(json!({"labels": {"cluster.x-k8s.io/cluster-name": ""}}));
        assert_eq!(cluster_name(&unlabelled), None);
    }
}
