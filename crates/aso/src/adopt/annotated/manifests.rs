//! The objects that stand for an AKS cluster, or a node pool, of which Azure Service Operator has an object already. Their resources are
//! that object as it is: its spec in the version it was written in with every field, and what it signs in with. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Map, Value, json};

use crate::{
    adopt::manifests::UPGRADES,
    command::objects::{CLUSTER_API, INFRASTRUCTURE, INLINE_CLUSTER, INLINE_PLANE, INLINE_POOL, KindName},
    inline::{CREDENTIAL_FROM, Policy, RECONCILE_POLICY},
};

/// On an object of Azure Service Operator: it becomes a Cluster's, or a pool's. The name is the one that people write already.
pub const ANNOTATION: &str = "sigs.k8s.io/cluster-api-provider-azure-adopt";
const REPLICAS_MANAGED_BY: &str = "cluster.x-k8s.io/replicas-managed-by";

/// Whether an object asks to be adopted, and nobody of ours has done so.
pub fn is_asked_for(metadata: &ObjectMeta) -> bool {
    let annotation = metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
    annotation.is_some_and(|value| value == "true")
        && metadata.deletion_timestamp.is_none()
        && holder(metadata).is_none()
}

/// The object of ours that an object of the operator belongs to.
pub fn holder(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let owners = metadata.owner_references.as_ref()?;
    owners.iter().find(|owner| {
        let is_ours = owner.api_version.split('/').next() == Some(INFRASTRUCTURE);
        is_ours && [INLINE_CLUSTER.kind, INLINE_PLANE.kind, INLINE_POOL.kind].contains(&owner.kind.as_str())
    })
}

/// The version in which somebody last wrote the spec: the operator sends what that version means.
pub fn written_version(metadata: &ObjectMeta) -> Option<String> {
    let fields = metadata.managed_fields.as_ref()?;
    let of_spec = fields.iter().filter(|entry| {
        let owned = entry.fields_v1.as_ref();
        let has_spec = owned.is_some_and(|owned| owned.0.get("f:spec").is_some());
        has_spec && entry.subresource.as_deref().unwrap_or_default().is_empty()
    });
    let latest = of_spec.max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?;
    let version = latest.api_version.as_deref()?;
    version.rsplit('/').next().map(str::to_owned)
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// What of an object's annotations is its user's, and not the operator's or a tool's.
fn carried(live: &Value) -> Map<String, Value> {
    let all = live["metadata"]["annotations"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let is_users = |name: &str| {
        let is_operators = name.starts_with("serviceoperator.azure.com/");
        let is_tools = name == "kubectl.kubernetes.io/last-applied-configuration"
            || name.starts_with("sigs.k8s.io/cluster-api-provider-azure-");
        [CREDENTIAL_FROM, RECONCILE_POLICY].contains(&name) || !(is_operators || is_tools)
    };
    all.into_iter().filter(|(name, _)| is_users(name)).collect()
}

/// The object as a resource, without the fields that Cluster API decides.
fn resource(live: &Value, without: &[&str]) -> Value {
    let mut spec = live["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        spec.retain(|name, _| !without.contains(&name.as_str()));
    }
    let mut metadata = json!({"name": live["metadata"]["name"]});
    let annotations = carried(live);
    if !annotations.is_empty() {
        metadata["annotations"] = Value::Object(annotations);
    }
    json!({"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": metadata, "spec": spec})
}

fn ours(kind: KindName, name: &str, live: &Value, resources: &[Value]) -> Value {
    json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": kind.kind,
        "metadata": {"name": name, "namespace": live["metadata"]["namespace"]}, "spec": {"resources": resources}})
}

fn reference(kind: KindName, name: &str, core: &str) -> Value {
    if core == "v1beta1" {
        return json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": kind.kind, "name": name});
    }
    json!({"apiGroup": INFRASTRUCTURE, "kind": kind.kind, "name": name})
}

/// A version in full, which Cluster API may decide from now on. Where AKS upgrades by itself, or only a minor version is asked for, it
/// stays as it is.
fn version(live: &Value, field: &str, plane: &Value) -> Option<String> {
    let channel = text(plane, "/spec/autoUpgradeProfile/upgradeChannel");
    let version = live["spec"][field].as_str()?;
    let is_full = version.split('.').count() == 3;
    (is_full && !UPGRADES.contains(&channel)).then(|| format!("v{version}"))
}

/// Whether a ManagedCluster says what its pools are: Cluster API does.
pub fn has_pools(live: &Value) -> bool {
    let pools = live["spec"]["agentPoolProfiles"].as_array();
    pools.is_some_and(|pools| !pools.is_empty())
}

/// Whether a pool says how many nodes it has, and AKS scales it.
pub fn has_stale_count(live: &Value) -> bool {
    live["spec"]["enableAutoScaling"] == true && !live["spec"]["count"].is_null()
}

/// The Cluster of a ManagedCluster, in the order in which its objects are made. `group`: the operator's object for its resource group.
pub fn of_cluster(live: &Value, group: Option<&Value>, core: &str) -> Vec<Value> {
    let name = text(live, "/metadata/name");
    let around = group.map(|group| {
        let mut resource = resource(group, &[]);
        // Others may stand in it.
        if resource["metadata"]["annotations"][RECONCILE_POLICY].is_null() {
            resource["metadata"]["annotations"][RECONCILE_POLICY] = json!(Policy::DetachOnDelete.to_string());
        }
        resource
    });
    let version = version(live, "kubernetesVersion", live);
    let decided: &[&str] = if version.is_some() {
        &["agentPoolProfiles", "kubernetesVersion"]
    } else {
        &["agentPoolProfiles"]
    };
    let mut plane = ours(INLINE_PLANE, name, live, &[resource(live, decided)]);
    if let Some(version) = version {
        plane["spec"]["version"] = json!(version);
    }
    vec![
        json!({"apiVersion": format!("{CLUSTER_API}/{core}"), "kind": "Cluster",
            "metadata": {"name": name, "namespace": live["metadata"]["namespace"]},
            "spec": {"infrastructureRef": reference(INLINE_CLUSTER, name, core),
                "controlPlaneRef": reference(INLINE_PLANE, name, core)}}),
        ours(INLINE_CLUSTER, name, live, around.as_slice()),
        plane,
    ]
}

/// The MachinePool of a ManagedClustersAgentPool. `plane`: the ManagedCluster that it stands in.
pub fn of_pool(live: &Value, plane: &Value, cluster: &str, core: &str) -> Vec<Value> {
    let name = text(live, "/metadata/name");
    let version = version(live, "orchestratorVersion", plane);
    let decided: &[&str] = if version.is_some() {
        &["count", "orchestratorVersion"]
    } else {
        &["count"]
    };
    let mut template = json!({
        "clusterName": cluster, "bootstrap": {"dataSecretName": ""},
        "infrastructureRef": reference(INLINE_POOL, name, core),
    });
    if let Some(version) = version {
        template["version"] = json!(version);
    }
    let mut machines = json!({"apiVersion": format!("{CLUSTER_API}/{core}"), "kind": "MachinePool",
        "metadata": {"name": name, "namespace": live["metadata"]["namespace"]},
        "spec": {"clusterName": cluster, "template": {"spec": template}}});
    let counts = [&live["spec"]["count"], &live["status"]["count"]];
    if let Some(count) = counts.into_iter().find(|count| !count.is_null()) {
        machines["spec"]["replicas"] = count.clone();
    }
    if live["spec"]["enableAutoScaling"] == true {
        machines["metadata"]["annotations"] = json!({(REPLICAS_MANAGED_BY): "aks"});
    }
    let mut pool = ours(INLINE_POOL, name, live, &[resource(live, decided)]);
    pool["metadata"]["labels"] = json!({"cluster.x-k8s.io/cluster-name": cluster});
    vec![machines, pool]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Value {
        json!({
            "apiVersion": "containerservice.azure.com/v1api20240901", "kind": "ManagedCluster",
            "metadata": {"name": "shop", "namespace": "team", "annotations": {
                (CREDENTIAL_FROM): "sign-in", (ANNOTATION): "true", "team": "a",
                "serviceoperator.azure.com/resource-id": "/x", "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
            "spec": {"azureName": "shop", "owner": {"name": "group"}, "kubernetesVersion": "1.33.3", "newerThanAnything": {"a": [1]},
                "agentPoolProfiles": [{"name": "system"}]},
        })
    }

    #[test]
    fn what_is_adopted_keeps_its_credential_and_every_field() {
        let objects = of_cluster(&live(), None, "v1beta2");
        let kinds: Vec<&str> = objects.iter().map(|one| text(one, "/kind")).collect();
        assert_eq!(
            kinds,
            ["Cluster", "AzureASOManagedCluster", "AzureASOManagedControlPlane"]
        );
        let plane = &objects[2]["spec"];
        assert_eq!(plane["version"], "v1.33.3");
        let resource = &plane["resources"][0];
        assert_eq!(
            resource["metadata"]["annotations"],
            json!({(CREDENTIAL_FROM): "sign-in", "team": "a"})
        );
        assert_eq!(
            resource["spec"],
            json!({"azureName": "shop", "owner": {"name": "group"}, "newerThanAnything": {"a": [1]}})
        );
        assert_eq!(objects[1]["spec"]["resources"], json!([]));
    }

    #[test]
    fn a_group_stays_unless_its_policy_says_otherwise() {
        let policy = |annotations: Value| {
            let group = json!({"apiVersion": "resources.azure.com/v1api20200601", "kind": "ResourceGroup",
                "metadata": {"name": "group", "namespace": "team", "annotations": annotations}, "spec": {"location": "westus3"}});
            of_cluster(&live(), Some(&group), "v1beta2")[1]["spec"]["resources"][0]["metadata"]["annotations"]
                [RECONCILE_POLICY]
                .clone()
        };
        assert_eq!(policy(json!({})), "detach-on-delete");
        assert_eq!(policy(json!({(RECONCILE_POLICY): "manage"})), "manage");
    }

    #[test]
    fn versions_that_others_decide_stay_where_they_are() {
        for (field, value) in [
            ("kubernetesVersion", json!("1.33")),
            ("autoUpgradeProfile", json!({"upgradeChannel": "stable"})),
        ] {
            let mut live = live();
            live["spec"][field] = value;
            let plane = &of_cluster(&live, None, "v1beta2")[2]["spec"];
            assert!(plane["version"].is_null(), "{plane}");
            assert!(
                !plane["resources"][0]["spec"]["kubernetesVersion"].is_null(),
                "{plane}"
            );
        }
    }

    #[test]
    fn the_count_of_a_pool_goes_to_its_machine_pool() {
        let pool = json!({"apiVersion": "containerservice.azure.com/v1api20240901", "kind": "ManagedClustersAgentPool",
            "metadata": {"name": "shop-user", "namespace": "team"},
            "spec": {"azureName": "user", "owner": {"name": "shop"}, "count": 3, "orchestratorVersion": "1.33.3", "enableAutoScaling": true}});
        let objects = of_pool(&pool, &live(), "shop", "v1beta1");
        assert_eq!(objects[0]["spec"]["replicas"], 3);
        assert_eq!(objects[0]["spec"]["template"]["spec"]["version"], "v1.33.3");
        assert_eq!(objects[0]["metadata"]["annotations"][REPLICAS_MANAGED_BY], "aks");
        assert_eq!(
            objects[0]["spec"]["template"]["spec"]["infrastructureRef"]["apiVersion"],
            "infrastructure.cluster.x-k8s.io/v1beta1"
        );
        let spec = &objects[1]["spec"]["resources"][0]["spec"];
        assert_eq!(
            *spec,
            json!({"azureName": "user", "owner": {"name": "shop"}, "enableAutoScaling": true})
        );
        assert!(has_stale_count(&pool) && has_pools(&live()));
    }

    #[test]
    fn only_what_asks_and_is_nobodys_is_adopted() {
        let metadata = |value: Value| serde_json::from_value::<ObjectMeta>(value).unwrap();
        let asking = json!({"annotations": {(ANNOTATION): "true"}});
        assert!(is_asked_for(&metadata(asking.clone())));
        assert!(!is_asked_for(&metadata(
            json!({"annotations": {(ANNOTATION): "false"}})
        )));
        let mut owned = asking.clone();
        owned["ownerReferences"] = json!([{"apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
            "kind": "AzureASOManagedControlPlane", "name": "shop", "uid": "u"}]);
        assert!(!is_asked_for(&metadata(owned)));
        let mut leaving = asking;
        leaving["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(!is_asked_for(&metadata(leaving)));
    }

    #[test]
    fn the_version_is_the_one_in_which_the_spec_was_written_last() {
        let entry = |version: &str, time: &str, fields: Value, subresource: &str| {
            json!({"apiVersion": format!("containerservice.azure.com/{version}"), "manager": "m", "operation": "Update",
                "time": time, "fieldsV1": fields, "subresource": subresource})
        };
        let metadata: ObjectMeta = serde_json::from_value(json!({"managedFields": [
            entry("v1api20231001", "2026-01-01T00:00:00Z", json!({"f:spec": {}}), ""),
            entry("v1api20240901", "2026-01-02T00:00:00Z", json!({"f:spec": {}}), ""),
            entry("v1api20250801", "2026-01-03T00:00:00Z", json!({"f:metadata": {}}), ""),
            entry("v1api20250801", "2026-01-04T00:00:00Z", json!({"f:spec": {}}), "status"),
        ]}))
        .unwrap();
        assert_eq!(written_version(&metadata).as_deref(), Some("v1api20240901"));
        assert_eq!(written_version(&ObjectMeta::default()), None);
    }
}
