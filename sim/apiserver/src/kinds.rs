//! The kinds the server knows: built-in ones from a table, custom ones from their CRDs.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use slipway_runtime::{
    admission::Admission,
    conversion::{Conversion, Convert},
};

/// One resource type, in all its served versions.
#[derive(Clone)]
pub struct Kind {
    pub group: String,
    pub kind: String,
    pub plural: String,
    pub namespaced: bool,
    /// Whether `/status` is written on its own.
    pub status: bool,
    /// Whether replicas are read and written at `/scale`, in `spec.replicas` and `status.replicas`.
    pub scale: bool,
    pub storage_version: String,
    /// Version to OpenAPI schema; null where anything goes.
    pub versions: BTreeMap<String, Arc<Value>>,
    pub custom: bool,
    pub convert: Option<Convert>,
    resource: String,
}

fn resource_of(group: &str, plural: &str) -> String {
    if group.is_empty() {
        plural.to_owned()
    } else {
        format!("{plural}.{group}")
    }
}

impl Kind {
    /// `machines.cluster.x-k8s.io`, or the bare plural in the core group.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    pub fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() {
            version.to_owned()
        } else {
            format!("{}/{version}", self.group)
        }
    }

    fn built_in(group: &str, version: &str, kind: &str, plural: &str, namespaced: bool) -> Self {
        Self {
            group: group.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            namespaced,
            status: matches!(
                plural,
                "nodes"
                    | "pods"
                    | "namespaces"
                    | "services"
                    | "deployments"
                    | "daemonsets"
                    | "poddisruptionbudgets"
                    | "persistentvolumeclaims"
                    | "customresourcedefinitions"
            ),
            scale: false,
            storage_version: version.to_owned(),
            versions: BTreeMap::from([(version.to_owned(), Arc::new(built_in_schema(plural)))]),
            custom: false,
            convert: None,
            resource: resource_of(group, plural),
        }
    }

    /// Reads a CRD as the apiserver does when it is established.
    pub fn from_crd(crd: &Value) -> Option<Self> {
        let spec = &crd["spec"];
        let mut versions = BTreeMap::new();
        let (mut storage_version, mut status, mut scale) = (String::new(), false, false);
        for version in spec["versions"].as_array()? {
            let name = version["name"].as_str()?.to_owned();
            if version["storage"] == true {
                name.clone_into(&mut storage_version);
                status = version["subresources"].get("status").is_some();
                scale = version["subresources"].get("scale").is_some();
            }
            if version["served"] == true {
                versions.insert(name, Arc::new(version["schema"]["openAPIV3Schema"].clone()));
            }
        }
        let (group, plural) = (spec["group"].as_str()?, spec["names"]["plural"].as_str()?);
        Some(Self {
            group: group.to_owned(),
            kind: spec["names"]["kind"].as_str()?.to_owned(),
            plural: plural.to_owned(),
            resource: resource_of(group, plural),
            namespaced: spec["scope"] == "Namespaced",
            status,
            scale,
            storage_version,
            versions,
            custom: true,
            convert: None,
        })
    }
}

/// Custom kinds with their conversions and webhooks, read once for any number of servers.
#[derive(Clone, Default)]
pub struct Kinds {
    pub(crate) kinds: Vec<Arc<Kind>>,
    pub(crate) webhooks: Vec<Admission>,
}

impl Kinds {
    pub fn read(
        crds: &[CustomResourceDefinition],
        conversion: &[Conversion],
        webhooks: &[Admission],
    ) -> Self {
        let kinds = crds.iter().filter_map(|crd| {
            let mut kind = Kind::from_crd(&serde_json::to_value(crd).ok()?)?;
            kind.convert = conversion
                .iter()
                .find(|one| one.crd == kind.resource())
                .map(|one| one.convert.clone());
            Some(Arc::new(kind))
        });
        Self {
            kinds: kinds.collect(),
            webhooks: webhooks.to_vec(),
        }
    }

    /// These and the others.
    pub fn and(mut self, others: Self) -> Self {
        self.kinds.extend(others.kinds);
        self.webhooks.extend(others.webhooks);
        self
    }
}

/// Merge keys of the built-in lists our controllers touch.
fn built_in_schema(plural: &str) -> Value {
    let conditions = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": {"type": "object", "properties": {"type": {}, "status": {}, "reason": {}, "message": {},
            "lastTransitionTime": {}, "lastHeartbeatTime": {}}}});
    match plural {
        "nodes" => json!({"x-kubernetes-preserve-unknown-fields": true, "properties": {
            "spec": {"x-kubernetes-preserve-unknown-fields": true, "properties": {"providerID": {}, "unschedulable": {}}},
            "status": {"x-kubernetes-preserve-unknown-fields": true, "properties": {"conditions": conditions}}}}),
        "pods" | "deployments" | "daemonsets" => {
            json!({"x-kubernetes-preserve-unknown-fields": true, "properties": {
            "status": {"x-kubernetes-preserve-unknown-fields": true, "properties": {"conditions": conditions}}}})
        }
        "secrets" | "configmaps" => json!({"x-kubernetes-preserve-unknown-fields": true, "properties": {
            "data": {"additionalProperties": {"type": "string"}}, "type": {}, "immutable": {}}}),
        _ => Value::Null,
    }
}

/// The built-in kinds our controllers and tests use.
pub fn built_in() -> Vec<Arc<Kind>> {
    static KINDS: LazyLock<Vec<Arc<Kind>>> = LazyLock::new(|| table().into_iter().map(Arc::new).collect());
    KINDS.clone()
}

fn table() -> Vec<Kind> {
    [
        ("", "v1", "Namespace", "namespaces", false),
        ("", "v1", "Secret", "secrets", true),
        ("", "v1", "ConfigMap", "configmaps", true),
        ("", "v1", "Event", "events", true),
        ("", "v1", "Node", "nodes", false),
        ("", "v1", "Pod", "pods", true),
        ("", "v1", "Service", "services", true),
        ("", "v1", "ServiceAccount", "serviceaccounts", true),
        ("", "v1", "PersistentVolume", "persistentvolumes", false),
        ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
        ("apps", "v1", "Deployment", "deployments", true),
        ("apps", "v1", "DaemonSet", "daemonsets", true),
        ("coordination.k8s.io", "v1", "Lease", "leases", true),
        ("events.k8s.io", "v1", "Event", "events", true),
        (
            "policy",
            "v1",
            "PodDisruptionBudget",
            "poddisruptionbudgets",
            true,
        ),
        ("storage.k8s.io", "v1", "StorageClass", "storageclasses", false),
        ("storage.k8s.io", "v1", "CSINode", "csinodes", false),
        (
            "storage.k8s.io",
            "v1",
            "VolumeAttachment",
            "volumeattachments",
            false,
        ),
        (
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            false,
        ),
    ]
    .map(|(group, version, kind, plural, namespaced)| {
        Kind::built_in(group, version, kind, plural, namespaced)
    })
    .into()
}
