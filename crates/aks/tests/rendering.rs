//! What goes to Azure, for the choices that are more than a copied field.

use serde_json::{Value, json};
use slipway_aks::{
    api::{AzureManagedControlPlane, PoolClass},
    render::{Facts, PoolFacts, RenderError, addons, agent_pool, managed_cluster, network},
};

// By value, so that cases read as what they are.
#[allow(clippy::needless_pass_by_value)]
fn plane(patch: Value) -> AzureManagedControlPlane {
    let mut spec = json!({
        "version": "v1.31.0", "location": "westus", "resourceGroupName": "group", "identityRef": {},
        "networkPlugin": "azure", "loadBalancerSKU": "Standard", "dnsPrefix": "plane",
        "nodeResourceGroupName": "MC_group_plane_westus",
        "virtualNetwork": {"name": "network", "cidrBlock": "10.0.0.0/8", "resourceGroup": "group", "subnet": {"name": "nodes", "cidrBlock": "10.240.0.0/16"}}
    });
    json_patch::merge(&mut spec, &patch);
    serde_json::from_value(json!({"metadata": {"name": "plane"}, "spec": spec})).expect("a control plane")
}

// By value, so that cases read as what they are.
#[allow(clippy::needless_pass_by_value)]
fn class(patch: Value) -> PoolClass {
    let mut spec = json!({"mode": "System", "sku": "small"});
    json_patch::merge(&mut spec, &patch);
    serde_json::from_value(spec).expect("a pool")
}

fn facts(plane: &AzureManagedControlPlane) -> Facts<'_> {
    Facts {
        plane,
        cluster_name: "fleet",
        subscription: "sub",
        services: None,
        pods: None,
    }
}

fn pool<'a>(class: &'a PoolClass, name: &'a str) -> PoolFacts<'a> {
    PoolFacts {
        class,
        azure_name: name,
        replicas: 3,
        version: None,
        existing: None,
    }
}

#[test]
fn a_cluster_is_created_with_its_pools_in_order() {
    let plane = plane(json!({}));
    let (system, user) = (class(json!({})), class(json!({"mode": "User"})));
    let body = managed_cluster(
        &facts(&plane),
        None,
        Some(&[pool(&user, "zeta"), pool(&system, "alpha")]),
    )
    .expect("a cluster");
    let profiles = body["spec"]["agentPoolProfiles"].as_array().expect("profiles");
    assert_eq!(profiles.len(), 2);
    assert_eq!(
        profiles[0],
        json!({
            "name": "alpha", "count": 3, "enableAutoScaling": false, "mode": "System", "type": "VirtualMachineScaleSets", "vmSize": "small",
            "vnetSubnetReference": {"armId": "/subscriptions/sub/resourceGroups/group/providers/Microsoft.Network/virtualNetworks/network/subnets/nodes"}
        })
    );
    assert_eq!(profiles[1]["name"], "zeta");
    assert_eq!(body["spec"]["kubernetesVersion"], "1.31.0");
    assert_eq!(
        body["spec"]["tags"]["sigs.k8s.io_cluster-api-provider-azure_cluster_fleet"],
        "owned"
    );
    assert_eq!(
        body["spec"]["networkProfile"],
        json!({"networkPlugin": "azure", "loadBalancerSku": "standard"})
    );
}

#[test]
fn a_cluster_is_never_created_without_a_system_pool_and_never_updated_with_pools() {
    let plane = plane(json!({}));
    let user = class(json!({"mode": "User"}));
    for pools in [vec![], vec![pool(&user, "user")]] {
        assert_eq!(
            managed_cluster(&facts(&plane), None, Some(&pools)),
            Err(RenderError::NoSystemPool("plane".into()))
        );
    }
    let body = managed_cluster(&facts(&plane), Some("1.31.0"), None).expect("a cluster");
    assert_eq!(body["spec"].get("agentPoolProfiles"), None);
}

#[test]
fn versions_are_never_fought() {
    let plane = plane(json!({}));
    for (running, expected) in [
        (None, "1.31.0"),
        (Some("1.30.4"), "1.31.0"),
        (Some("1.32.7"), "1.32.7"),
    ] {
        let body = managed_cluster(&facts(&plane), running, None).expect("a cluster");
        assert_eq!(body["spec"]["kubernetesVersion"], expected);
    }
    let system = class(json!({}));
    for (desired, running, expected) in [
        (Some("v1.30.1"), None, json!("1.30.1")),
        (Some("v1.30.1"), Some("1.31.0"), json!("1.31.0")),
        (None, Some("1.30.0"), json!("1.30.0")),
        (None, None, Value::Null),
    ] {
        let existing = running.map(|version| json!({"properties": {"orchestratorVersion": version}}));
        let pool = PoolFacts {
            version: desired,
            existing: existing.as_ref(),
            ..pool(&system, "pool")
        };
        let body = agent_pool(&facts(&plane), &pool).expect("a pool");
        assert_eq!(
            body["spec"]
                .get("orchestratorVersion")
                .cloned()
                .unwrap_or_default(),
            expected
        );
    }
    let above = PoolFacts {
        version: Some("v1.32.0"),
        ..pool(&system, "pool")
    };
    let error = agent_pool(&facts(&plane), &above).expect_err("a pool above its control plane");
    assert_eq!(
        error.to_string(),
        "node pool pool wants Kubernetes 1.32.0, which is above the control plane's v1.31.0: upgrade the control plane first"
    );
}

#[test]
fn aks_owns_the_count_of_a_pool_that_scales() {
    let plane = plane(json!({}));
    let scaling = class(json!({"scaling": {"minSize": 4, "maxSize": 9}}));
    for (existing, expected) in [(None, 4), (Some(7), 7)] {
        let existing = existing.map(|count| json!({"properties": {"count": count}}));
        let body = agent_pool(
            &facts(&plane),
            &PoolFacts {
                existing: existing.as_ref(),
                ..pool(&scaling, "pool")
            },
        )
        .expect("a pool");
        assert_eq!(body["spec"]["count"], expected);
        assert_eq!(body["spec"]["enableAutoScaling"], true);
    }
    let fixed = class(json!({}));
    let existing = json!({"properties": {"count": 7}});
    let body = agent_pool(
        &facts(&plane),
        &PoolFacts {
            existing: Some(&existing),
            ..pool(&fixed, "pool")
        },
    )
    .expect("a pool");
    assert_eq!(
        body["spec"]["count"], 3,
        "the MachinePool's number counts where AKS does not scale"
    );
}

#[test]
fn patches_come_last_and_in_order() {
    let plane = plane(
        json!({"asoManagedClusterPatches": ["{\"spec\": {\"supportPlan\": \"AKSLongTermSupport\", \"enableRBAC\": null}}", "spec:\n  supportPlan: KubernetesOfficial\n"]}),
    );
    let body = managed_cluster(&facts(&plane), None, None).expect("a cluster");
    assert_eq!(body["spec"]["supportPlan"], "KubernetesOfficial");
    assert_eq!(body["spec"].get("enableRBAC"), None);
    let patched =
        class(json!({"asoManagedClustersAgentPoolPatches": ["{\"spec\": {\"osSKU\": \"AzureLinux\"}}"]}));
    let body = managed_cluster(&facts(&plane), None, Some(&[pool(&patched, "pool")])).expect("a cluster");
    assert_eq!(
        body["spec"]["agentPoolProfiles"][0]["osSKU"], "AzureLinux",
        "a pool's patches count at creation too"
    );
}

#[test]
fn the_fleet_member_points_at_the_aks_cluster() {
    let plane =
        plane(json!({"fleetsMember": {"managerName": "m", "managerResourceGroup": "g", "group": "one"}}));
    let body = addons::fleet_member(&facts(&plane)).expect("a member");
    assert_eq!(body["spec"]["azureName"], "fleet");
    assert_eq!(
        body["spec"]["clusterResourceReference"]["armId"],
        "/subscriptions/sub/resourceGroups/group/providers/Microsoft.ContainerService/managedClusters/plane"
    );
}

#[test]
fn an_extension_has_its_scope_and_plan() {
    let plane = plane(json!({"extensions": [
        {"name": "one", "extensionType": "t", "scope": {"scopeType": "Cluster", "releaseNamespace": "a"}, "plan": {"name": "n", "promotionCode": "c"}},
        {"name": "two", "extensionType": "t", "scope": {"scopeType": "Namespace", "targetNamespace": "b"}}
    ]}));
    let bodies = addons::extensions(&facts(&plane));
    assert_eq!(
        bodies[0]["spec"]["scope"],
        json!({"cluster": {"releaseNamespace": "a"}})
    );
    assert_eq!(bodies[0]["spec"]["plan"]["promotionCode"], "c");
    assert_eq!(
        bodies[1]["spec"]["scope"],
        json!({"namespace": {"targetNamespace": "b"}})
    );
}

#[test]
fn the_network_may_live_in_another_resource_group() {
    let here = plane(json!({}));
    assert_eq!(network::resource_groups(&facts(&here)).len(), 1);
    let elsewhere = plane(json!({"virtualNetwork": {"resourceGroup": "other"}}));
    let groups = network::resource_groups(&facts(&elsewhere));
    assert_eq!(
        groups
            .iter()
            .map(|group| group["spec"]["azureName"].clone())
            .collect::<Vec<_>>(),
        ["group", "other"]
    );
    assert_eq!(
        network::virtual_network(&facts(&elsewhere))["spec"]["owner"]["armId"],
        "/subscriptions/sub/resourceGroups/other"
    );
}

#[test]
fn the_dns_service_is_the_tenth_address() {
    let plane = plane(json!({}));
    let body = managed_cluster(
        &Facts {
            services: Some("192.168.0.0/16"),
            pods: Some("10.1.0.0/16"),
            ..facts(&plane)
        },
        None,
        None,
    )
    .expect("a cluster");
    assert_eq!(body["spec"]["networkProfile"]["dnsServiceIP"], "192.168.0.10");
    assert_eq!(body["spec"]["networkProfile"]["podCidr"], "10.1.0.0/16");
    let error = managed_cluster(
        &Facts {
            services: Some("nonsense"),
            ..facts(&plane)
        },
        None,
        None,
    )
    .expect_err("no range");
    assert_eq!(error, RenderError::ServiceRange("nonsense".into()));
}
