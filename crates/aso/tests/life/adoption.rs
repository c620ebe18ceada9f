//! `slipway adopt`: a cluster that runs already gets its objects without a write in Azure, and is managed when that is confirmed.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use slipway_aso::{
    adopt::command::{Adoption, Read, confirm},
    command::objects::Objects,
};
use slipway_kit::{
    asker::asker,
    azure::{NAMESPACE, SUBSCRIPTION},
};

use super::world::{World, create, credential, merge, remove};

const AKS: &str = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/Fleet";
const NETWORK: &str = "/resourceGroups/fleet/providers/Microsoft.Network/virtualNetworks/net";

/// What somebody made in Azure by hand.
async fn existing(world: &World) {
    let group = |name: &str| format!("/resourceGroups/{name}");
    let put = |path: &str, body: Value| {
        world.ask(Method::PUT, path, Some(&body));
    };
    put(&group("fleet"), json!({"location": "westus3"}));
    put(&group("shared"), json!({"location": "westus3"}));
    put(
        NETWORK,
        json!({"location": "westus3", "properties": {"addressSpace": {"addressPrefixes": ["10.0.0.0/8"]},
            "subnets": [{"name": "nodes", "properties": {"addressPrefix": "10.1.0.0/16"}}]}}),
    );
    settle().await;
    let subnet = format!("/subscriptions/{SUBSCRIPTION}{NETWORK}/subnets/nodes");
    put(
        AKS,
        json!({"location": "westus3", "tags": {"team": "a"}, "identity": {"type": "SystemAssigned"}, "properties": {
            "dnsPrefix": "fleet", "kubernetesVersion": "1.33.3", "oidcIssuerProfile": {"enabled": true},
            "networkProfile": {"networkPlugin": "azure", "serviceCidr": "192.168.0.0/16", "dnsServiceIP": "192.168.0.10"},
            "agentPoolProfiles": [
                {"name": "system", "mode": "System", "count": 1, "vmSize": "Standard_D2s_v3", "type": "VirtualMachineScaleSets", "vnetSubnetID": subnet},
                {"name": "user", "mode": "User", "count": 2, "vmSize": "Standard_D2s_v3", "type": "VirtualMachineScaleSets", "vnetSubnetID": subnet,
                    "nodeLabels": {"a": "b"}}]}}),
    );
    settle().await;
    put(
        &format!("{AKS}/maintenanceConfigurations/default"),
        json!({"properties": {"timeInWeek": [{"day": "Monday", "hourSlots": [1]}]}}),
    );
    settle().await;
    put(
        &format!("{AKS}/providers/Microsoft.KubernetesConfiguration/extensions/flux"),
        json!({"properties": {"extensionType": "microsoft.flux", "autoUpgradeMinorVersion": true}}),
    );
    let fleet = "/resourceGroups/shared/providers/Microsoft.ContainerService/fleets/all";
    put(fleet, json!({"location": "westus3"}));
    let identity = "/resourceGroups/fleet/providers/Microsoft.ManagedIdentity/userAssignedIdentities/app";
    put(identity, json!({"location": "westus3"}));
    settle().await;
    put(
        &format!("{fleet}/members/fleet"),
        json!({"properties": {"clusterResourceId": format!("/subscriptions/{SUBSCRIPTION}{AKS}")}}),
    );
    settle().await;
    let aks = world.ask(Method::GET, AKS, None);
    let issuer = aks
        .pointer("/properties/oidcIssuerProfile/issuerURL")
        .and_then(Value::as_str)
        .expect("an issuer");
    put(
        &format!("{identity}/federatedIdentityCredentials/app"),
        json!({"properties": {"issuer": issuer, "subject": "system:serviceaccount:app:app", "audiences": ["api://AzureADTokenExchange"]}}),
    );
    settle().await;
}

async fn settle() {
    tokio::time::sleep(Duration::from_mins(10)).await;
}

fn adoption() -> Adoption {
    Adoption {
        namespace: NAMESPACE.to_owned(),
        credential: Some("sign-in".to_owned()),
        name: None,
    }
}

async fn adopted(world: &World) -> (Objects, Read, String) {
    let objects = Objects::discover(&world.server.client()).await.expect("kinds");
    let asker = asker(world.context());
    let ids = [format!("/subscriptions/{SUBSCRIPTION}{AKS}")];
    let read = adoption().read(&objects, &asker, &ids).await.expect("it is read");
    let text = adoption()
        .apply(&objects, &asker, &read)
        .await
        .expect("it is adopted");
    (objects, read, text)
}

/// Kind and name of every resource in the objects.
fn resources(read: &Read) -> Vec<String> {
    let all = read.all();
    let resources = all
        .iter()
        .flat_map(|object| object["spec"]["resources"].as_array().into_iter().flatten());
    let mut names: Vec<String> = resources
        .map(|one| {
            format!(
                "{} {}",
                one["kind"].as_str().expect("a kind"),
                one["metadata"]["name"].as_str().expect("a name")
            )
        })
        .collect();
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn a_running_cluster_is_adopted_without_a_write_and_managed_once_confirmed() {
    let world = World::new();
    existing(&world).await;
    create(&world.server, &credential("sign-in")).await;
    let before = (world.writes(), world.in_azure());

    let (objects, read, text) = adopted(&world).await;
    assert_eq!(read.notes, Vec::<String>::new());
    assert_eq!(
        resources(&read),
        [
            "Extension fleet-flux",
            "FederatedIdentityCredential app-app",
            "FleetsMember all-fleet",
            "MaintenanceConfiguration fleet-default",
            "ManagedCluster fleet",
            "ManagedClustersAgentPool fleet-system",
            "ManagedClustersAgentPool fleet-user",
            "ResourceGroup fleet",
            "UserAssignedIdentity app",
            "VirtualNetwork net",
            "VirtualNetworksSubnet net-nodes",
        ]
    );
    assert!(text.contains("Nothing is written in Azure yet"), "{text}");
    assert_eq!(text.matches("no difference").count(), 4, "{text}");
    world.until_ready(&["fleet-system", "fleet-user"]).await;
    world.assert_rests().await;
    assert_eq!(
        (0, world.in_azure()),
        (world.writes(), before.1.clone()),
        "adopting writes nothing in Azure"
    );
    assert!(
        world.object("Secret", "fleet-kubeconfig").is_some(),
        "what is read is exported"
    );

    // Nothing is done before it is confirmed, whatever the objects say.
    let scale = json!({"spec": {"replicas": 3}});
    merge(&world.server, "MachinePool", "fleet-user", scale).await;
    settle().await;
    assert_eq!(world.writes(), 0);
    let names = ["fleet".to_owned()];
    let asker = asker(world.context());
    let text = confirm(&objects, &asker, NAMESPACE, &names)
        .await
        .expect("confirmed");
    assert!(
        text.contains("properties.count: 2 -> 3") && text.contains("is managed from now on"),
        "{text}"
    );
    world
        .until("scaled", |world| {
            world.document("agentPools/user")["properties"]["count"] == 3
        })
        .await;
    assert_eq!(world.writes(), 1, "one request, for what was asked");
    let again = confirm(&objects, &asker, NAMESPACE, &names).await.expect("again");
    assert!(again.contains("nothing left to confirm"), "{again}");

    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    let left: Vec<String> = world.in_azure();
    for stays in [
        "/resourcegroups/fleet",
        "/virtualnetworks/net",
        "/userassignedidentities/app",
        "/fleets/all",
    ] {
        assert!(
            left.iter().any(|id| id.ends_with(stays)),
            "{stays} may be shared, and stays: {left:?}"
        );
    }
    for goes in [
        "/managedclusters/fleet",
        "/members/fleet",
        "/federatedidentitycredentials/app",
    ] {
        assert!(!left.iter().any(|id| id.ends_with(goes)), "{goes} goes: {left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_stands_in_the_way_of_adoption_is_told_with_what_to_do() {
    let world = World::new();
    let objects = Objects::discover(&world.server.client()).await.expect("kinds");
    let asker = asker(world.context());
    let tell = async |adoption: Adoption, ids: &[&str]| {
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        adoption.read(&objects, &asker, &ids).await.expect_err("refused")
    };
    let aks = format!("/subscriptions/{SUBSCRIPTION}{AKS}");
    let network = format!("/subscriptions/{SUBSCRIPTION}{NETWORK}");
    for (ids, words) in [
        (&["fleet"][..], "is no ARM id"),
        (&[network.as_str()], "is no AKS cluster"),
        (&[aks.as_str()], "Secret default/sign-in"),
    ] {
        let error = tell(adoption(), ids).await;
        assert!(error.contains(words), "{error}");
    }
    create(&world.server, &credential("sign-in")).await;
    let error = tell(adoption(), &[&aks]).await;
    assert!(error.contains("Azure shows no AKS cluster"), "{error}");
    let named = Adoption {
        name: Some("one".to_owned()),
        ..adoption()
    };
    let error = tell(named, &[&aks, &aks]).await;
    assert!(error.contains("one by one"), "{error}");

    // A cluster whose difference cannot be told is not managed.
    let error = confirm(&objects, &asker, NAMESPACE, &["nobodys".to_owned()])
        .await
        .expect_err("refused");
    assert!(error.contains("there is no Cluster default/nobodys"), "{error}");
    assert_eq!(world.writes(), 0);
}
