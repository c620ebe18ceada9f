//! Provider ids and replicas from the nodes of a workload cluster that can be reached.

use std::collections::BTreeSet;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use jiff::SignedDuration;
use serde_json::{Value, json};
use slipway_azure::workload::nodes::Nodes;
use slipway_azure_sim::Fault;
use slipway_kit::workload::{AKS_POOL, Workload};

use super::world::{
    World, apply, cluster, condition, group, managed_cluster, manifests, merge, pool_manifests, quick,
    remove, token_ends,
};

fn ids(world: &World, pool: &str) -> Value {
    world.pool(pool)["spec"]["providerIDList"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_shows_no_nodes_names_the_role_that_does() {
    let workload = Workload::default();
    workload.join("a", "system").await;
    let (connector, forbidden) = workload.forbidding(&Method::GET, "/api/v1/nodes");
    let world = World::with(quick(), Nodes::connecting_by(connector));
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world
        .until("told", |world| {
            let pool = world.pool("system");
            let ready = condition(&pool, "Ready");
            let message = ready["message"].as_str().unwrap_or_default();
            ready["reason"] == "NodesForbidden"
                && ready["status"] == "False"
                && message.contains("the role Azure Kubernetes Service RBAC Cluster Admin")
        })
        .await;
    assert!(forbidden.asked() > 0);
    // Nobody tells when the role is assigned: the nodes are asked for again.
    forbidden.lift();
    world.until_ready(&["system"]).await;
    assert_eq!(ids(&world, "system"), json!(["azure:///a"]));
}

#[tokio::test(start_paused = true)]
async fn nodes_are_told_as_they_come_and_go() {
    let workload = Workload::default();
    for (name, pool) in [("a", "work"), ("c", "system")] {
        workload.join(name, pool).await;
    }
    let world = World::with(quick(), Nodes::connecting_by(workload.connector()));
    apply(
        &world.server,
        &manifests(&[("system", "System", 1), ("work", "User", 2)]),
    )
    .await;
    world
        .until("waiting for a node", |world| {
            let pool = world.pool("work");
            condition(&pool, "Ready")["reason"] == "WaitingForNodes" && pool["status"]["replicas"] == 1
        })
        .await;
    workload.join("b", "work").await;
    world.until_ready(&["system", "work"]).await;
    assert_eq!(ids(&world, "work"), json!(["azure:///a", "azure:///b"]));
    assert_eq!(ids(&world, "system"), json!(["azure:///c"]));
    assert_eq!(world.pool("work")["status"]["replicas"], 2);
    assert_eq!(
        world.count("GET", "/virtualMachineScaleSets"),
        0,
        "Azure is not asked"
    );
    world.assert_rests().await;
    workload.leave("a").await;
    world
        .until("told", |world| {
            ids(world, "work") == json!(["azure:///b"]) && world.pool("work")["status"]["replicas"] == 1
        })
        .await;
}

/// Machines that Azure does not have keep a pool from being ready, and none of the nodes it has from being shown: Cluster API
/// looks at them once `provisioned` is true.
#[tokio::test(start_paused = true)]
async fn a_pool_that_is_not_ready_shows_its_nodes() {
    let workload = Workload::default();
    workload.join("a", "system").await;
    workload.join("b", "work").await;
    let world = World::with(quick(), Nodes::connecting_by(workload.connector()));
    world.simulator.azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/agentPools/".into(),
        times: 0,
        operation_error: Some(json!({"code": "AllocationFailed", "message": "no capacity"})),
        ..Fault::default()
    });
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world.until_ready(&["system"]).await;
    apply(&world.server, &pool_manifests("work", "User", 3, &json!({}))).await;
    let shown = |world: &World, pool: &str, nodes: Value| {
        let object = world.pool(pool);
        condition(&object, "Ready")["status"] == "False"
            && object["status"]["initialization"]["provisioned"] == true
            && object["status"]["replicas"] == json!(nodes.as_array().map(Vec::len))
            && object["spec"]["providerIDList"] == nodes
    };
    world
        .until("shown", |world| shown(world, "work", json!(["azure:///b"])))
        .await;
    // A pool that cannot grow, and grows by a machine all the same.
    let three = json!({"spec": {"replicas": 3}});
    merge(&world.server, "MachinePool", "system", three).await;
    world
        .until("told", |world| {
            condition(&world.pool("system"), "Ready")["status"] == "False"
        })
        .await;
    workload.join("c", "system").await;
    world
        .until("shown", |world| {
            shown(world, "system", json!(["azure:///a", "azure:///c"]))
        })
        .await;
}

/// Nodes that node auto-provisioning makes are no pool's, also where they are labelled like one.
#[tokio::test(start_paused = true)]
async fn nodes_of_auto_provisioning_are_not_counted_for_pools() {
    let workload = Workload::default();
    workload.join("a", "system").await;
    let world = World::with(quick(), Nodes::connecting_by(workload.connector()));
    let mut automatic = managed_cluster(&json!({
        "nodeProvisioningProfile": {"mode": "Auto", "defaultNodePools": "Auto"},
        "networkProfile": {"networkPlugin": "azure", "networkPluginMode": "overlay", "networkDataplane": "cilium"},
    }));
    automatic["apiVersion"] = json!("containerservice.azure.com/v1api20250801");
    let mut all = cluster(&[group()], &[automatic]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    world.until_ready(&["system"]).await;
    let made = world.document("/managedClusters/fleet");
    assert_eq!(made["properties"]["nodeProvisioningProfile"]["mode"], "Auto");
    for number in 0..3 {
        let labels = json!({(AKS_POOL): "system", "karpenter.sh/nodepool": "default"});
        workload
            .join_labelled(&format!("provisioned-{number}"), &labels)
            .await;
    }
    assert_eq!(world.count("PUT", "/managedClusters/fleet"), 1);
    world.assert_rests().await;
    assert_eq!(ids(&world, "system"), json!(["azure:///a"]));
    assert_eq!(world.pool("system")["status"]["replicas"], 1);
    world.until_ready(&["system"]).await;
}

/// Nodes that are not AKS's own join by kubeadm: they find the API server and its CA, and no pool counts them.
#[tokio::test(start_paused = true)]
async fn self_managed_nodes_find_what_they_join_by_and_are_no_pools() {
    let workload = Workload::default();
    workload.join("a", "system").await;
    let world = World::with(quick(), Nodes::connecting_by(workload.connector()));
    apply(&world.server, &manifests(&[("system", "System", 1)])).await;
    world.until_ready(&["system"]).await;
    world
        .until("the CA", |world| world.object("Secret", "fleet-ca").is_some())
        .await;
    let ca = world.object("Secret", "fleet-ca").expect("a Secret");
    assert_eq!(ca["type"], "cluster.x-k8s.io/secret");
    assert!(ca["data"]["tls.crt"].is_string() && ca["data"]["tls.key"].is_string());
    assert_eq!(
        ca["metadata"]["ownerReferences"][0]["kind"],
        "AzureASOManagedControlPlane"
    );
    let published = || {
        let objects = workload.server.objects();
        let is_it = |object: &&Value| object["metadata"]["name"] == "cluster-info";
        objects.iter().find(is_it).is_some_and(|found| {
            let text = found["data"]["kubeconfig"].as_str().unwrap_or_default();
            text.contains("certificate-authority-data")
        })
    };
    world.until("published", |_| published()).await;
    let labels = json!({"kubernetes.azure.com/cluster": "MC_fleet_fleet_westus3"});
    workload.join_labelled("own", &labels).await;
    workload.join_labelled("other", &json!({})).await;
    world.assert_rests().await;
    assert_eq!(ids(&world, "system"), json!(["azure:///a"]));
    assert_eq!(world.pool("system")["status"]["replicas"], 1);

    // A CA that somebody took away is written again.
    remove(&world.server, "Secret", "fleet-ca").await;
    world
        .until("written again", |world| {
            world.object("Secret", "fleet-ca").is_some()
        })
        .await;
}

/// AKS Automatic disables local accounts by itself: what cannot be used is told with the way out, the kubeconfig of Cluster API gets
/// a token, and the role that lists nodes is named until it is assigned.
#[tokio::test(start_paused = true)]
async fn aks_automatic_is_reached_by_a_token_once_its_credentials_can_be_used() {
    let workload = Workload::default();
    workload.join("a", "system").await;
    let (connector, forbidden) = workload.forbidding(&Method::GET, "/api/v1/nodes");
    let world = World::with(quick(), Nodes::connecting_by(connector));
    let automatic = |secrets: Value| {
        let mut found = managed_cluster(&json!({
            "sku": {"name": "Automatic", "tier": "Standard"}, "networkProfile": null,
            "operatorSpec": {"secrets": secrets},
        }));
        found["apiVersion"] = json!("containerservice.azure.com/v1api20250801");
        found
    };
    let mut all = cluster(&[group()], &[automatic(json!({}))]);
    all.extend(pool_manifests("system", "System", 1, &json!({})));
    apply(&world.server, &all).await;
    let named = |name: &str| json!({"name": name, "key": "value"});
    for (secrets, way_out) in [
        (
            json!({}),
            "ask for userCredentials instead, under another name than fleet-kubeconfig",
        ),
        (
            json!({"adminCredentials": named("fleet-kubeconfig")}),
            "ask for userCredentials instead, under another name than fleet-kubeconfig",
        ),
        (
            json!({"userCredentials": named("fleet-kubeconfig")}),
            "choose another name, e.g. fleet-user-kubeconfig",
        ),
    ] {
        world
            .replace_resources("AzureASOManagedControlPlane", "fleet", &[automatic(secrets)])
            .await;
        world
            .until(way_out, |world| {
                let plane = world.plane();
                let told = condition(&plane, "KubeconfigReady");
                told["reason"] == "CredentialsNotUsable"
                    && told["message"]
                        .as_str()
                        .is_some_and(|text| text.contains(way_out))
            })
            .await;
    }
    let shown = world.document("/managedClusters/fleet")["properties"].clone();
    assert_eq!(shown["disableLocalAccounts"], true, "nobody asked for it");
    assert_eq!(shown["nodeProvisioningProfile"]["mode"], "Auto");
    assert_eq!(
        world.count("POST", "listCluster"),
        0,
        "nothing is asked for in vain"
    );

    let usable = automatic(json!({"userCredentials": named("fleet-user-kubeconfig")}));
    world
        .replace_resources("AzureASOManagedControlPlane", "fleet", &[usable])
        .await;
    world
        .until("the role is named", |world| {
            let pool = world.pool("system");
            let ready = condition(&pool, "Ready");
            let message = ready["message"].as_str().unwrap_or_default();
            ready["reason"] == "NodesForbidden"
                && message.contains("the role Azure Kubernetes Service RBAC Cluster Admin")
        })
        .await;
    assert!(forbidden.asked() > 0);
    forbidden.lift();
    world.until_ready(&["system"]).await;
    let text = |name: &str| {
        let secret = world.object("Secret", name).expect(name);
        let value = secret["data"]["value"].as_str().expect("a value").to_owned();
        String::from_utf8(STANDARD.decode(value).expect("base64")).expect("text")
    };
    assert!(text("fleet-user-kubeconfig").contains("exec:"), "as AKS gives it");
    // Whoever reads the Secret at any time finds a token that lives on.
    let mut tokens = BTreeSet::new();
    for _ in 0..36 {
        assert!(!text("fleet-kubeconfig").contains("exec:"));
        let ends = token_ends(&world.server.objects()).expect("a token");
        let left = ends.duration_since(world.clock.now());
        assert!(left > SignedDuration::from_mins(20), "{left:?} are left");
        tokens.insert(ends);
        tokio::time::sleep(std::time::Duration::from_mins(5)).await;
    }
    assert!(
        (5..=7).contains(&tokens.len()),
        "{} tokens in three hours",
        tokens.len()
    );
    assert_eq!(
        world.count("PUT", "/managedClusters/fleet"),
        1,
        "nothing that AKS decides is sent"
    );
}
