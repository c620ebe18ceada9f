//! The objects that stand for a cluster that Azure shows: a Cluster, its infrastructure, its control plane and its pools. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use slipway_azure::{ResourceId, ownership, resource::import::object_name};

use super::{ADOPTED_POLICY, Found, FoundCluster};
use crate::{
    command::objects::{CLUSTER_API, INFRASTRUCTURE},
    inline::{CREDENTIAL_FROM, Policy, RECONCILE_POLICY},
    mutators::{AGENT_POOL, MANAGED_CLUSTER},
};

/// What whoever adopts decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    pub namespace: String,
    /// The Secret that the resources sign in with; the namespace's own where absent.
    pub credential: Option<String>,
    /// The name of the Cluster; the AKS cluster's where absent.
    pub name: Option<String>,
    /// The version of Cluster API's kinds that the management cluster serves.
    pub core: String,
}

/// Kinds that others may use too: they stay when the objects go.
const SHARED: &[&str] = &[
    "ResourceGroup",
    "VirtualNetwork",
    "VirtualNetworksSubnet",
    "UserAssignedIdentity",
];

/// Channels by which AKS itself changes the version.
const UPGRADES: &[&str] = &["patch", "stable", "rapid"];

/// A resource with the name of its object.
struct Named<'a> {
    found: &'a Found,
    id: ResourceId,
    name: String,
}

/// The objects, in the order in which they are applied.
pub fn manifests(cluster: &FoundCluster, wishes: &Wishes) -> Result<Vec<Value>, String> {
    let named = named(cluster)?;
    let plane = named
        .iter()
        .find(|one| one.found.kind == MANAGED_CLUSTER)
        .ok_or("there is no AKS cluster among what was read")?;
    let name = wishes.name.clone().unwrap_or_else(|| plane.name.clone());
    let mut infrastructure = Vec::new();
    let mut control_plane = Vec::new();
    let mut pools = Vec::new();
    for one in &named {
        let manifest = manifest(one, &named, wishes);
        match one.found.kind.as_str() {
            AGENT_POOL => pools.push((one, manifest)),
            kind if SHARED.contains(&kind) || kind == "FederatedIdentityCredential" => {
                infrastructure.push(manifest);
            }
            _ => control_plane.push(manifest),
        }
    }
    let version = version(plane.found, "currentKubernetesVersion", "kubernetesVersion");
    let upgrades = plane
        .found
        .spec
        .get("autoUpgradeProfile")
        .and_then(|profile| profile["upgradeChannel"].as_str());
    let version = version.filter(|_| upgrades.is_none_or(|channel| !UPGRADES.contains(&channel)));
    let ours = |kind: &str, name: &str, spec: Value| {
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": kind,
            "metadata": {"name": name, "namespace": wishes.namespace}, "spec": spec})
    };
    let mut plane_spec = json!({"resources": control_plane});
    if let Some(version) = &version {
        plane_spec["version"] = json!(version);
    }
    let mut objects = vec![
        core_cluster(&name, plane.found, wishes),
        ours(
            "AzureASOManagedCluster",
            &name,
            json!({"resources": infrastructure}),
        ),
        ours("AzureASOManagedControlPlane", &name, plane_spec),
    ];
    for (pool, manifest) in pools {
        let pool_name = format!("{name}-{}", object_name(pool.id.name()));
        objects.push(machine_pool(
            &pool_name,
            &name,
            pool.found,
            version.is_some(),
            wishes,
        ));
        let mut object = ours(
            "AzureASOManagedMachinePool",
            &pool_name,
            json!({"resources": [manifest]}),
        );
        object["metadata"]["labels"] = json!({"cluster.x-k8s.io/cluster-name": name});
        objects.push(object);
    }
    Ok(objects)
}

/// Every resource with a name that no other of its kind has.
fn named(cluster: &FoundCluster) -> Result<Vec<Named<'_>>, String> {
    let mut taken: BTreeSet<(&str, String)> = BTreeSet::new();
    let mut named = Vec::new();
    for found in &cluster.resources {
        let id =
            ResourceId::parse(&found.id).map_err(|error| format!("{:?} is no ARM id: {error}", found.id))?;
        let own = object_name(id.name());
        let name = match id
            .parent()
            .filter(|_| found.kind != "ResourceGroup" && is_child(found))
        {
            Some(parent) => format!("{}-{own}", object_name(parent.name())),
            None => own,
        };
        let mut free = name.clone();
        let mut number = 2;
        while !taken.insert((found.kind.as_str(), free.clone())) {
            free = format!("{name}-{number}");
            number += 1;
        }
        named.push(Named {
            found,
            id,
            name: free,
        });
    }
    Ok(named)
}

/// Whether a resource stands in another than a resource group.
fn is_child(found: &Found) -> bool {
    ![
        "ResourceGroup",
        MANAGED_CLUSTER,
        "VirtualNetwork",
        "UserAssignedIdentity",
    ]
    .contains(&found.kind.as_str())
}

/// One resource, which is only read until it is confirmed.
fn manifest(one: &Named<'_>, all: &[Named<'_>], wishes: &Wishes) -> Value {
    let mut spec = one.found.spec.clone();
    spec.insert("azureName".to_owned(), json!(one.id.name()));
    if let Some(owner) = owner(one, all) {
        spec.insert("owner".to_owned(), owner);
    }
    without_mark(&mut spec);
    match one.found.kind.as_str() {
        MANAGED_CLUSTER => {
            // What Cluster API decides, and what is made elsewhere.
            spec.remove("agentPoolProfiles");
            spec.remove("kubernetesVersion");
            ask_for_credentials(&mut spec, &one.name);
        }
        AGENT_POOL => {
            spec.remove("count");
            spec.remove("orchestratorVersion");
        }
        // Subnets are resources of their own.
        "VirtualNetwork" => drop(spec.remove("subnets")),
        _ => {}
    }
    let policy = if SHARED.contains(&one.found.kind.as_str()) {
        Policy::DetachOnDelete
    } else {
        Policy::Manage
    };
    let mut annotations = Map::new();
    annotations.insert(RECONCILE_POLICY.to_owned(), json!(Policy::Skip.to_string()));
    annotations.insert(ADOPTED_POLICY.to_owned(), json!(policy.to_string()));
    if let Some(credential) = &wishes.credential {
        annotations.insert(CREDENTIAL_FROM.to_owned(), json!(credential));
    }
    json!({
        "apiVersion": format!("{}/{}", one.found.group, one.found.version), "kind": one.found.kind,
        "metadata": {"name": one.name, "annotations": annotations}, "spec": spec,
    })
}

/// What a resource stands in: by name where that is adopted too.
fn owner(one: &Named<'_>, all: &[Named<'_>]) -> Option<Value> {
    if one.found.kind == "ResourceGroup" {
        return None;
    }
    let parent = if is_child(one.found) {
        // An extension stands on its cluster, which is what comes before its own provider.
        let text = one.id.as_str();
        match text
            .to_ascii_lowercase()
            .rfind("/providers/microsoft.kubernetesconfiguration/")
        {
            Some(at) => ResourceId::parse(&text[..at]).ok(),
            None => one.id.parent(),
        }
    } else {
        ResourceId::resource_group(one.id.subscription()?, one.id.resource_group_name()?).ok()
    }?;
    let known = all.iter().find(|other| other.id.key() == parent.key());
    let is_any = one.found.group == "kubernetesconfiguration.azure.com";
    Some(match known {
        Some(known) if is_any => {
            json!({"group": known.found.group, "kind": known.found.kind, "name": known.name})
        }
        Some(known) => json!({"name": known.name}),
        None => json!({"armId": parent.as_str()}),
    })
}

/// The mark of whoever owned it is not desired.
fn without_mark(spec: &mut Map<String, Value>) {
    if let Some(Value::Object(tags)) = spec.get_mut("tags") {
        tags.remove(ownership::TAG);
        if tags.is_empty() {
            spec.remove("tags");
        }
    }
}

/// Without local accounts the kubeconfig is a user's, under a name of its own.
fn ask_for_credentials(spec: &mut Map<String, Value>, name: &str) {
    let automatic = spec.get("sku").is_some_and(|sku| sku["name"] == "Automatic");
    if automatic
        || spec
            .get("disableLocalAccounts")
            .is_some_and(|value| *value == true)
    {
        let secret = json!({"name": format!("{name}-user-kubeconfig"), "key": "value"});
        spec.insert(
            "operatorSpec".to_owned(),
            json!({"secrets": {"userCredentials": secret}}),
        );
    }
}

/// A version in full, with a `v`.
fn version(found: &Found, shown: &str, written: &str) -> Option<String> {
    let text = |value: &Value| {
        value
            .as_str()
            .filter(|text| text.split('.').count() == 3)
            .map(|text| format!("v{text}"))
    };
    text(&found.status[shown]).or_else(|| found.spec.get(written).and_then(text))
}

fn reference(kind: &str, name: &str, wishes: &Wishes) -> Value {
    if wishes.core == "v1beta1" {
        return json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": kind, "name": name});
    }
    json!({"apiGroup": INFRASTRUCTURE, "kind": kind, "name": name})
}

fn core_cluster(name: &str, plane: &Found, wishes: &Wishes) -> Value {
    let network = plane.spec.get("networkProfile").cloned().unwrap_or_default();
    let blocks: BTreeMap<&str, Value> = [("services", "serviceCidr"), ("pods", "podCidr")]
        .into_iter()
        .filter_map(|(key, field)| Some((key, json!({"cidrBlocks": [network[field].as_str()?]}))))
        .collect();
    let mut spec = json!({
        "infrastructureRef": reference("AzureASOManagedCluster", name, wishes),
        "controlPlaneRef": reference("AzureASOManagedControlPlane", name, wishes),
    });
    if !blocks.is_empty() {
        spec["clusterNetwork"] = json!(blocks);
    }
    json!({"apiVersion": format!("{CLUSTER_API}/{}", wishes.core), "kind": "Cluster",
        "metadata": {"name": name, "namespace": wishes.namespace}, "spec": spec})
}

fn machine_pool(name: &str, cluster: &str, pool: &Found, has_version: bool, wishes: &Wishes) -> Value {
    let mut template = json!({
        "clusterName": cluster, "bootstrap": {"dataSecretName": ""},
        "infrastructureRef": reference("AzureASOManagedMachinePool", name, wishes),
    });
    let version = version(pool, "currentOrchestratorVersion", "orchestratorVersion");
    if let Some(version) = version.filter(|_| has_version) {
        template["version"] = json!(version);
    }
    let mut object = json!({"apiVersion": format!("{CLUSTER_API}/{}", wishes.core), "kind": "MachinePool",
        "metadata": {"name": name, "namespace": wishes.namespace},
        "spec": {"clusterName": cluster, "template": {"spec": template}}});
    if let Some(count) = pool.spec.get("count") {
        object["spec"]["replicas"] = count.clone();
    }
    if pool
        .spec
        .get("enableAutoScaling")
        .is_some_and(|value| *value == true)
    {
        object["metadata"]["annotations"] = json!({"cluster.x-k8s.io/replicas-managed-by": "aks"});
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: &str = "/subscriptions/s/resourceGroups/fleet";

    fn found(id: &str, group: &str, kind: &str, spec: &Value, status: &Value) -> Found {
        Found {
            id: format!("{GROUP}{id}"),
            group: group.to_owned(),
            version: "v1api20250801".to_owned(),
            kind: kind.to_owned(),
            spec: spec.as_object().cloned().unwrap_or_default(),
            status: status.clone(),
        }
    }

    const AKS: &str = "/providers/Microsoft.ContainerService/managedClusters/Fleet";

    fn cluster(spec: &Value) -> FoundCluster {
        let service = "containerservice.azure.com";
        let mut plane = json!({
            "location": "westus3", "kubernetesVersion": "1.33", "tags": {"slipway.dev_owner": "theirs"},
            "agentPoolProfiles": [{"name": "system"}], "networkProfile": {"serviceCidr": "10.0.0.0/16"},
        });
        json_patch(&mut plane, spec);
        FoundCluster {
            resources: vec![
                found(
                    AKS,
                    service,
                    MANAGED_CLUSTER,
                    &plane,
                    &json!({"currentKubernetesVersion": "1.33.3"}),
                ),
                found(
                    "",
                    "resources.azure.com",
                    "ResourceGroup",
                    &json!({"location": "westus3"}),
                    &json!({}),
                ),
                found(
                    &format!("{AKS}/agentPools/system"),
                    service,
                    AGENT_POOL,
                    &json!({"count": 3, "mode": "System", "orchestratorVersion": "1.33.3", "enableAutoScaling": true}),
                    &json!({"currentOrchestratorVersion": "1.33.3"}),
                ),
                found(
                    &format!("{AKS}/providers/Microsoft.KubernetesConfiguration/extensions/flux"),
                    "kubernetesconfiguration.azure.com",
                    "Extension",
                    &json!({"extensionType": "microsoft.flux"}),
                    &json!({}),
                ),
            ],
            ..FoundCluster::default()
        }
    }

    fn json_patch(object: &mut Value, patch: &Value) {
        for (key, value) in patch.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
    }

    fn wishes() -> Wishes {
        Wishes {
            namespace: "default".to_owned(),
            credential: Some("sign-in".to_owned()),
            name: None,
            core: "v1beta2".to_owned(),
        }
    }

    fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
        objects.iter().find(|object| object["kind"] == kind).expect(kind)
    }

    #[test]
    fn every_resource_is_only_read_and_says_what_it_becomes() {
        let objects = manifests(&cluster(&json!({})), &wishes()).unwrap();
        let kinds: Vec<&str> = objects
            .iter()
            .filter_map(|object| object["kind"].as_str())
            .collect();
        assert_eq!(
            kinds,
            [
                "Cluster",
                "AzureASOManagedCluster",
                "AzureASOManagedControlPlane",
                "MachinePool",
                "AzureASOManagedMachinePool"
            ]
        );
        let mut resources = 0;
        for object in &objects {
            for resource in object["spec"]["resources"].as_array().into_iter().flatten() {
                resources += 1;
                let annotations = &resource["metadata"]["annotations"];
                assert_eq!(annotations[RECONCILE_POLICY], "skip", "{resource}");
                assert_eq!(annotations[CREDENTIAL_FROM], "sign-in", "{resource}");
                let stays = resource["kind"] == "ResourceGroup";
                let expected = if stays { "detach-on-delete" } else { "manage" };
                assert_eq!(annotations[ADOPTED_POLICY], expected, "{resource}");
            }
        }
        assert_eq!(resources, 4);
    }

    #[test]
    fn what_cluster_api_decides_is_with_cluster_api() {
        let objects = manifests(&cluster(&json!({})), &wishes()).unwrap();
        let plane = find(&objects, "AzureASOManagedControlPlane");
        assert_eq!(plane["spec"]["version"], "v1.33.3");
        let aks = &plane["spec"]["resources"][0]["spec"];
        assert_eq!(aks["azureName"], "Fleet");
        assert_eq!(aks["owner"], json!({"name": "fleet"}));
        for gone in ["kubernetesVersion", "agentPoolProfiles", "tags"] {
            assert_eq!(aks.get(gone), None, "{gone}");
        }
        let extension = &plane["spec"]["resources"][1];
        assert_eq!(extension["metadata"]["name"], "fleet-flux");
        assert_eq!(
            extension["spec"]["owner"],
            json!({"group": "containerservice.azure.com", "kind": "ManagedCluster", "name": "fleet"})
        );
        let core = find(&objects, "Cluster");
        assert_eq!(
            core["spec"]["clusterNetwork"]["services"]["cidrBlocks"],
            json!(["10.0.0.0/16"])
        );
        let pool = find(&objects, "MachinePool");
        assert_eq!(
            (&pool["spec"]["replicas"], &pool["metadata"]["name"]),
            (&json!(3), &json!("fleet-system"))
        );
        assert_eq!(
            pool["metadata"]["annotations"]["cluster.x-k8s.io/replicas-managed-by"],
            "aks"
        );
        let inline = &find(&objects, "AzureASOManagedMachinePool")["spec"]["resources"][0]["spec"];
        assert_eq!(
            (inline.get("count"), inline.get("orchestratorVersion")),
            (None, None)
        );
    }

    #[test]
    fn a_version_that_azure_raises_is_left_to_azure() {
        let objects = manifests(
            &cluster(&json!({"autoUpgradeProfile": {"upgradeChannel": "stable"}})),
            &wishes(),
        )
        .unwrap();
        assert_eq!(
            find(&objects, "AzureASOManagedControlPlane")["spec"].get("version"),
            None
        );
        assert_eq!(
            find(&objects, "MachinePool")["spec"]["template"]["spec"].get("version"),
            None
        );
    }

    #[test]
    fn without_local_accounts_a_users_credentials_are_asked_for() {
        let objects = manifests(&cluster(&json!({"disableLocalAccounts": true})), &wishes()).unwrap();
        let aks = &find(&objects, "AzureASOManagedControlPlane")["spec"]["resources"][0]["spec"];
        assert_eq!(
            aks["operatorSpec"]["secrets"]["userCredentials"]["name"],
            "fleet-user-kubeconfig"
        );
    }

    #[test]
    fn two_resources_of_one_name_get_two_objects() {
        let mut two = cluster(&json!({}));
        for group in ["a", "b"] {
            let id = format!(
                "/subscriptions/s/resourceGroups/{group}/providers/Microsoft.Network/virtualNetworks/net"
            );
            let mut network = found("", "network.azure.com", "VirtualNetwork", &json!({}), &json!({}));
            network.id = id;
            two.resources.push(network);
        }
        let objects = manifests(&two, &wishes()).unwrap();
        let resources = find(&objects, "AzureASOManagedCluster")["spec"]["resources"]
            .as_array()
            .unwrap();
        let names: Vec<&str> = resources
            .iter()
            .filter_map(|one| one["metadata"]["name"].as_str())
            .collect();
        assert_eq!(names, ["fleet", "net", "net-2"]);
        assert_eq!(
            resources[1]["spec"]["owner"]["armId"],
            "/subscriptions/s/resourceGroups/a"
        );
    }
}
