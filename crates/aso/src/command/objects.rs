//! Objects without a model of them: read by kind, in the version that the management cluster serves.

use std::collections::BTreeMap;

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use serde_json::Value;
use slipway_runtime::ObjectKey;

pub const CLUSTER_API: &str = "cluster.x-k8s.io";
pub const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// A kind by its group and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindName {
    pub group: &'static str,
    pub kind: &'static str,
}

const fn kind(group: &'static str, kind: &'static str) -> KindName {
    KindName { group, kind }
}

pub const CLUSTER: KindName = kind(CLUSTER_API, "Cluster");
pub const MACHINE_POOL: KindName = kind(CLUSTER_API, "MachinePool");
pub const CLASSIC_CLUSTER: KindName = kind(INFRASTRUCTURE, "AzureManagedCluster");
pub const CLASSIC_PLANE: KindName = kind(INFRASTRUCTURE, "AzureManagedControlPlane");
pub const IDENTITY: KindName = kind(INFRASTRUCTURE, "AzureClusterIdentity");
pub const CLASSIC_POOL: KindName = kind(INFRASTRUCTURE, "AzureManagedMachinePool");
pub const INLINE_CLUSTER: KindName = kind(INFRASTRUCTURE, "AzureASOManagedCluster");
pub const INLINE_PLANE: KindName = kind(INFRASTRUCTURE, "AzureASOManagedControlPlane");
pub const INLINE_POOL: KindName = kind(INFRASTRUCTURE, "AzureASOManagedMachinePool");

/// Every kind that a command may be given, with the names that people write for it.
pub const NAMES: &[(KindName, &[&str])] = &[
    (CLUSTER, &["cluster", "clusters", "cl"]),
    (
        CLASSIC_PLANE,
        &["azuremanagedcontrolplane", "azuremanagedcontrolplanes", "amcp"],
    ),
    (
        CLASSIC_POOL,
        &["azuremanagedmachinepool", "azuremanagedmachinepools", "ammp"],
    ),
    (
        INLINE_CLUSTER,
        &["azureasomanagedcluster", "azureasomanagedclusters", "aasomc"],
    ),
    (
        INLINE_PLANE,
        &[
            "azureasomanagedcontrolplane",
            "azureasomanagedcontrolplanes",
            "aasomcp",
        ],
    ),
    (
        INLINE_POOL,
        &[
            "azureasomanagedmachinepool",
            "azureasomanagedmachinepools",
            "aasommp",
        ],
    ),
];

impl KindName {
    /// What people call it, in any case, with or without the group.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.to_lowercase();
        let name = text.split('.').next().unwrap_or_default();
        let found = NAMES.iter().find(|(_, names)| names.contains(&name));
        found.map(|(kind, _)| *kind)
    }

    /// The kind that a reference names, in either contract of Cluster API.
    pub fn of_reference(reference: &Value) -> Option<Self> {
        let kind = reference["kind"].as_str()?;
        let group = reference["apiGroup"].as_str().or_else(|| {
            let version = reference["apiVersion"].as_str()?;
            version.split_once('/').map(|(group, _)| group)
        })?;
        [
            CLUSTER,
            MACHINE_POOL,
            CLASSIC_CLUSTER,
            CLASSIC_PLANE,
            CLASSIC_POOL,
            INLINE_CLUSTER,
            INLINE_PLANE,
            INLINE_POOL,
        ]
        .into_iter()
        .find(|known| known.kind == kind && known.group == group)
    }
}

/// Reads objects of a management cluster.
#[derive(Clone)]
pub struct Objects {
    pub client: Client,
    /// The version that is served and preferred, by group and kind.
    served: BTreeMap<(String, String), ApiResource>,
}

impl Objects {
    /// Asks the management cluster which versions it serves of the kinds here.
    pub async fn discover(client: &Client) -> Result<Self, String> {
        let mut served = BTreeMap::new();
        for group in [CLUSTER_API, INFRASTRUCTURE] {
            let versions = served_versions(client, group).await?;
            for version in versions {
                let list = client
                    .list_api_group_resources(&format!("{group}/{version}"))
                    .await
                    .map_err(|error| format!("cannot ask which kinds of {group} are served: {error}"))?;
                for resource in list.resources {
                    if resource.name.contains('/') {
                        continue;
                    }
                    let gvk = GroupVersionKind::gvk(group, &version, &resource.kind);
                    let api = ApiResource::from_gvk_with_plural(&gvk, &resource.name);
                    served.entry((group.to_owned(), resource.kind)).or_insert(api);
                }
            }
        }
        Ok(Self {
            client: client.clone(),
            served,
        })
    }

    pub fn resource(&self, group: &str, kind: &str) -> Option<&ApiResource> {
        self.served.get(&(group.to_owned(), kind.to_owned()))
    }

    pub fn api(&self, kind: KindName, namespace: &str) -> Result<Api<DynamicObject>, String> {
        let resource = self.resource(kind.group, kind.kind).ok_or_else(|| {
            format!(
                "the cluster serves no {} of {}: is its provider installed?",
                kind.kind, kind.group
            )
        })?;
        Ok(Api::namespaced_with(self.client.clone(), namespace, resource))
    }

    pub async fn find(&self, kind: KindName, key: &ObjectKey) -> Result<Option<Value>, String> {
        let api = self.api(kind, key.namespace().unwrap_or_default())?;
        let found = api
            .get_opt(key.name())
            .await
            .map_err(|error| format!("cannot read {} {key}: {error}", kind.kind))?;
        Ok(found.map(|object| serde_json::json!(object)))
    }

    pub async fn get(&self, kind: KindName, key: &ObjectKey) -> Result<Value, String> {
        let found = self.find(kind, key).await?;
        found.ok_or_else(|| {
            format!(
                "there is no {} {key}: check its name, and its namespace with --namespace",
                kind.kind
            )
        })
    }

    /// Every object of a kind.
    pub async fn all(&self, kind: KindName) -> Result<Vec<Value>, String> {
        let Some(resource) = self.resource(kind.group, kind.kind) else {
            return Ok(Vec::new());
        };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), resource);
        let list = api
            .list(&ListParams::default())
            .await
            .map_err(|error| format!("cannot list {}s: {error}", kind.kind))?;
        Ok(list
            .items
            .into_iter()
            .map(|object| serde_json::json!(object))
            .collect())
    }

    /// The objects of a kind that are of a Cluster, by their word or their label.
    pub async fn of_cluster(&self, kind: KindName, cluster: &ObjectKey) -> Result<Vec<Value>, String> {
        if self.resource(kind.group, kind.kind).is_none() {
            return Ok(Vec::new());
        }
        let is_of_cluster = |object: &Value| {
            let label = &object["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"];
            [label, &object["spec"]["clusterName"]]
                .into_iter()
                .any(|name| name == cluster.name())
        };
        let api = self.api(kind, cluster.namespace().unwrap_or_default())?;
        let list = api
            .list(&ListParams::default())
            .await
            .map_err(|error| format!("cannot list {}s of Cluster {cluster}: {error}", kind.kind))?;
        let objects = list.items.into_iter().map(|object| serde_json::json!(object));
        let mut found: Vec<Value> = objects.filter(is_of_cluster).collect();
        found.sort_by_key(|object| object["metadata"]["name"].as_str().map(str::to_owned));
        Ok(found)
    }
}

/// The versions of a group, the preferred one first. None if it is not served.
async fn served_versions(client: &Client, group: &str) -> Result<Vec<String>, String> {
    let groups = client
        .list_api_groups()
        .await
        .map_err(|error| format!("cannot ask the management cluster which kinds it serves: {error}"))?;
    let Some(found) = groups.groups.into_iter().find(|one| one.name == group) else {
        return Ok(Vec::new());
    };
    let preferred = found.preferred_version.map(|version| version.version);
    let mut versions: Vec<String> = found
        .versions
        .into_iter()
        .map(|version| version.version)
        .collect();
    versions.sort_by_key(|version| Some(version) != preferred.as_ref());
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn kinds_are_known_by_the_names_people_write() {
        for text in ["cluster", "Cluster", "clusters.cluster.x-k8s.io"] {
            assert_eq!(KindName::parse(text), Some(CLUSTER), "{text}");
        }
        assert_eq!(KindName::parse("AzureASOManagedControlPlane"), Some(INLINE_PLANE));
        assert_eq!(KindName::parse("aasommp"), Some(INLINE_POOL));
        assert_eq!(KindName::parse("pod"), None);
        let v1beta1 = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "AzureManagedControlPlane"});
        let v1beta2 =
            json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "AzureManagedControlPlane"});
        for reference in [v1beta1, v1beta2] {
            assert_eq!(KindName::of_reference(&reference), Some(CLASSIC_PLANE));
        }
        assert_eq!(
            KindName::of_reference(&json!({"kind": "AzureManagedControlPlane"})),
            None
        );
    }
}
