//! The cluster as packing sees it, kept up object by object: what a watch brings is converted once, and only if it changed.
//! Pure: whoever watches puts objects in, and whoever plans takes a snapshot out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use k8s_openapi::api::{apps::v1 as apps, core::v1 as core, policy::v1 as policy, storage::v1 as storage};
use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use slipway_packing::model::{
    Controller, CsiNode, DaemonSet, Improvements, Namespace, Node, NodeClaim, NodePool, Options,
    PersistentVolume, PersistentVolumeClaim, Pod, PodDisruptionBudget, Service, Snapshot, StorageClass,
};

use crate::{
    api,
    api::names::{NODE_CLASS_GROUP, annotation},
    instances::Catalog,
};

/// An object that packing cannot read, although the apiserver could.
#[derive(Debug, thiserror::Error)]
#[error("reading {kind} {name} for planning: {source}")]
pub struct ConvertError {
    kind: String,
    name: String,
    source: serde_json::Error,
}

/// Objects of one kind, by uid, with the version they were converted at.
#[derive(Debug)]
struct ByVersion<T>(HashMap<String, (String, T)>);

impl<T> Default for ByVersion<T> {
    fn default() -> Self {
        ByVersion(HashMap::new())
    }
}

impl<T: Clone + PartialEq> ByVersion<T> {
    /// Says whether that changed what planning could see.
    fn put(
        &mut self,
        key: String,
        version: String,
        convert: impl FnOnce() -> Result<T, ConvertError>,
    ) -> Result<bool, ConvertError> {
        let known = self.0.get(&key);
        if known.is_some_and(|(known, _)| *known == version && !version.is_empty()) {
            return Ok(false);
        }
        let value = convert()?;
        let is_other = known.is_none_or(|(_, known)| *known != value);
        self.0.insert(key, (version, value));
        Ok(is_other)
    }

    /// What is not among these keys is gone. Says whether there was any.
    fn retain(&mut self, keys: &HashSet<String>) -> bool {
        let before = self.0.len();
        self.0.retain(|key, _| keys.contains(key));
        self.0.len() != before
    }

    /// In the order of their keys, so that the same cluster is always the same snapshot.
    fn values(&self) -> impl Iterator<Item = &T> {
        let mut entries: Vec<(&String, &T)> = self.0.iter().map(|(key, (_, value))| (key, value)).collect();
        entries.sort_by_key(|(key, _)| *key);
        entries.into_iter().map(|(_, value)| value)
    }

    fn all(&self) -> Vec<T> {
        self.values().cloned().collect()
    }
}

/// The cluster.
#[derive(Debug, Default)]
pub struct Store {
    pods: ByVersion<Pod>,
    nodes: ByVersion<Node>,
    node_pools: ByVersion<NodePool>,
    node_claims: ByVersion<NodeClaim>,
    daemon_sets: ByVersion<DaemonSet>,
    namespaces: ByVersion<Namespace>,
    services: ByVersion<Service>,
    controllers: ByVersion<Controller>,
    claims: ByVersion<PersistentVolumeClaim>,
    volumes: ByVersion<PersistentVolume>,
    storage_classes: ByVersion<StorageClass>,
    csi_nodes: ByVersion<CsiNode>,
    budgets: ByVersion<PodDisruptionBudget>,
    changes: u64,
}

/// Packing reads Kubernetes' own JSON, so an object becomes its own by way of it.
fn convert<K: Resource<DynamicType = ()> + Serialize, T: DeserializeOwned>(
    object: &K,
    adapt: impl FnOnce(&mut Value),
) -> Result<T, ConvertError> {
    let failed = |source| ConvertError {
        kind: K::kind(&()).into_owned(),
        name: object.name_any(),
        source,
    };
    let mut value = serde_json::to_value(object).map_err(failed)?;
    adapt(&mut value);
    serde_json::from_value(value).map_err(failed)
}

fn key<K: Resource<DynamicType = ()>>(object: &K) -> String {
    object.meta().uid.clone().unwrap_or_else(|| object.name_any())
}

fn version<K: Resource<DynamicType = ()>>(object: &K) -> String {
    object.meta().resource_version.clone().unwrap_or_default()
}

macro_rules! keeps {
    ($($put:ident, $remove:ident $(, $sync:ident)?: $kind:ty => $field:ident;)*) => {$(
        $(/// Makes these all there are of their kind. What cannot be converted is left out, and told.
        pub fn $sync<'a>(&mut self, objects: impl IntoIterator<Item = &'a $kind>) -> Vec<ConvertError> {
            let (mut keys, mut errors) = (HashSet::new(), Vec::new());
            for object in objects {
                match self.$put(object) {
                    Ok(()) => {
                        keys.insert(key(object));
                    }
                    Err(error) => errors.push(error),
                }
            }
            self.changes += u64::from(self.$field.retain(&keys));
            errors
        })?

        pub fn $put(&mut self, object: &$kind) -> Result<(), ConvertError> {
            let put = self.$field.put(key(object), version(object), || convert(object, |_| {}));
            put.map(|is_other| self.changes += u64::from(is_other))
        }

        pub fn $remove(&mut self, object: &$kind) {
            self.changes += u64::from(self.$field.0.remove(&key(object)).is_some());
        }
    )*};
}

impl Store {
    keeps! {
        put_pod, remove_pod, sync_pods: core::Pod => pods;
        put_node, remove_node, sync_nodes: core::Node => nodes;
        put_node_pool, remove_node_pool, sync_node_pools: api::NodePool => node_pools;
        put_node_claim, remove_node_claim, sync_node_claims: api::NodeClaim => node_claims;
        put_daemon_set, remove_daemon_set, sync_daemon_sets: apps::DaemonSet => daemon_sets;
        put_namespace, remove_namespace, sync_namespaces: core::Namespace => namespaces;
        put_service, remove_service, sync_services: core::Service => services;
        put_replica_set, remove_replica_set: apps::ReplicaSet => controllers;
        put_stateful_set, remove_stateful_set: apps::StatefulSet => controllers;
        put_volume_claim, remove_volume_claim, sync_volume_claims: core::PersistentVolumeClaim => claims;
        put_volume, remove_volume, sync_volumes: core::PersistentVolume => volumes;
        put_storage_class, remove_storage_class, sync_storage_classes: storage::StorageClass => storage_classes;
        put_csi_node, remove_csi_node, sync_csi_nodes: storage::CSINode => csi_nodes;
        put_budget, remove_budget, sync_budgets: policy::PodDisruptionBudget => budgets;
    }

    /// Its selector is a plain map, where the other controllers have a selector.
    pub fn put_replication_controller(
        &mut self,
        object: &core::ReplicationController,
    ) -> Result<(), ConvertError> {
        let adapt = |value: &mut Value| {
            let labels = value["spec"]["selector"].take();
            if labels.is_object() {
                value["spec"]["selector"] = serde_json::json!({"matchLabels": labels});
            }
        };
        let put = self
            .controllers
            .put(key(object), version(object), || convert(object, adapt));
        put.map(|is_other| self.changes += u64::from(is_other))
    }

    pub fn remove_replication_controller(&mut self, object: &core::ReplicationController) {
        self.changes += u64::from(self.controllers.0.remove(&key(object)).is_some());
    }

    /// Pods for which nothing has been found yet.
    pub fn waiting(&self) -> Vec<Pod> {
        self.pods
            .values()
            .filter(|pod| pod.is_provisionable() && pod.is_active())
            .cloned()
            .collect()
    }

    /// How often something came, went or changed that planning could see.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Pods that will have to go elsewhere, because their node is on its way out: these, and those of deleted claims.
    pub fn moving(&self, going: &BTreeSet<String>) -> Vec<Pod> {
        let leaving: BTreeSet<&str> = self
            .node_claims
            .values()
            .filter(|claim| claim.metadata.deletion_timestamp.is_some())
            .map(|claim| claim.status.node_name.as_str())
            .filter(|node| !node.is_empty())
            .chain(going.iter().map(String::as_str))
            .collect();
        self.pods
            .values()
            .filter(|pod| leaving.contains(pod.spec.node_name.as_str()) && pod.is_reschedulable())
            .cloned()
            .collect()
    }

    /// The cluster at this moment. `catalogs` are by NodePool; a NodePool without one is not planned with.
    ///
    /// A claim that has no provider id yet is in it as capacity on its way: it keeps nobody else waiting.
    pub fn snapshot(&self, catalogs: &BTreeMap<String, Catalog>, now: jiff::Timestamp) -> Snapshot {
        let mut well_known: Vec<String> = catalogs
            .values()
            .flat_map(|catalog| catalog.well_known_labels.iter().cloned())
            .collect();
        well_known.sort();
        well_known.dedup();
        Snapshot {
            node_pools: self
                .node_pools
                .values()
                .filter(|pool| takes_nodes(pool) && catalogs.contains_key(&pool.metadata.name))
                .cloned()
                .collect(),
            instance_types: catalogs
                .iter()
                .map(|(pool, catalog)| (pool.clone(), catalog.types.clone()))
                .collect(),
            nodes: self.nodes.all(),
            node_claims: self.node_claims.all(),
            bound_pods: self
                .pods
                .values()
                .filter(|pod| !pod.spec.node_name.is_empty() && !pod.is_terminal())
                .cloned()
                .collect(),
            daemon_sets: self.daemon_sets.all(),
            persistent_volume_claims: self.claims.all(),
            persistent_volumes: self.volumes.all(),
            storage_classes: self.storage_classes.all(),
            csi_nodes: self.csi_nodes.all(),
            namespaces: self.namespaces.all(),
            services: self.services.all(),
            controllers: self.controllers.all(),
            pod_disruption_budgets: self.budgets.all(),
            options: Options {
                now: Some(now.to_string()),
                well_known_labels: well_known,
                improvements: Improvements {
                    exact_node_limits: true,
                    replacements_within_limits: true,
                    // A claim is assigned to the cheapest object that fits, and given up if that gives no machine.
                    cheapest_is_launched: true,
                    ..Improvements::default()
                },
                ..Options::default()
            },
            ..Snapshot::default()
        }
    }
}

/// Whether nodes may be made for a NodePool: it is ours, not on its way out, and nobody froze it.
fn takes_nodes(pool: &NodePool) -> bool {
    let is_ours = pool
        .spec
        .template
        .spec
        .node_class_ref
        .as_ref()
        .is_some_and(|class| class.group == NODE_CLASS_GROUP);
    is_ours
        && pool.metadata.deletion_timestamp.is_none()
        && !pool.metadata.annotations.contains_key(annotation::FROZEN)
}
