//! Private clusters, disabled local accounts, the OIDC issuer, fleets, extensions and private endpoints.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::world::{SUBSCRIPTION, World, apply, condition, manifests, merge, remove};

const POOL: &[(&str, &str, i32)] = &[("system", "System", 1)];

fn kubeconfig(world: &World, name: &str) -> Option<Value> {
    let secret = world.object("Secret", name)?;
    let bytes: k8s_openapi::ByteString = serde_json::from_value(secret["data"]["value"].clone()).ok()?;
    serde_saphyr::from_str(std::str::from_utf8(&bytes.0).ok()?).ok()
}

#[tokio::test(start_paused = true)]
async fn a_private_cluster_is_reached_by_its_private_name() {
    let world = World::new();
    let spec = json!({"apiServerAccessProfile": {"enablePrivateCluster": true}, "oidcIssuerProfile": {"enabled": true}});
    apply(&world.server, &manifests(&spec, POOL)).await;
    world.until_ready(&["system"]).await;
    let plane = world.plane();
    let host = plane["spec"]["controlPlaneEndpoint"]["host"]
        .as_str()
        .expect("a host");
    assert!(host.contains("privatelink"), "{host}");
    let issuer = plane["status"]["oidcIssuerProfile"]["issuerURL"]
        .as_str()
        .unwrap_or_default();
    assert!(issuer.starts_with("https://"), "{plane}");
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn without_local_accounts_the_kubeconfig_holds_a_token_that_is_renewed_in_time() {
    let world = World::new();
    let spec = json!({"disableLocalAccounts": true,
        "aadProfile": {"managed": true, "adminGroupObjectIDs": ["33333333-3333-3333-3333-333333333333"]}});
    apply(&world.server, &manifests(&spec, POOL)).await;
    world.until_ready(&["system"]).await;
    let token = |world: &World| {
        kubeconfig(world, "fleet-kubeconfig").expect("a kubeconfig")["users"][0]["user"]["token"]
            .as_str()
            .expect("a token")
            .to_owned()
    };
    let user = kubeconfig(&world, "fleet-kubeconfig-user").expect("the users' kubeconfig");
    assert_eq!(user["users"][0]["user"]["exec"]["command"], "kubelogin");
    let mut before = token(&world);
    for _ in 0..3 {
        // The token lives an hour: after 35 minutes it is another.
        tokio::time::sleep(Duration::from_mins(35)).await;
        let now = token(&world);
        assert_ne!(now, before);
        before = now;
    }
    assert!(!world.plane().to_string().contains(&before));
}

#[tokio::test(start_paused = true)]
async fn people_who_sign_in_with_entra_have_a_kubeconfig_of_their_own() {
    let world = World::new();
    let spec = json!({"aadProfile": {"managed": true, "adminGroupObjectIDs": ["33333333-3333-3333-3333-333333333333"]}});
    apply(&world.server, &manifests(&spec, POOL)).await;
    world.until_ready(&["system"]).await;
    assert!(kubeconfig(&world, "fleet-kubeconfig").expect("a kubeconfig")["users"][0]["user"]["client-certificate-data"].is_string());
    assert!(kubeconfig(&world, "fleet-kubeconfig-user").is_some());
    // A kubeconfig that was deleted comes back.
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> =
        kube::Api::namespaced(world.server.client(), "default");
    secrets
        .delete("fleet-kubeconfig", &kube::api::DeleteParams::default())
        .await
        .expect("deleted");
    world
        .until("back", |world| kubeconfig(world, "fleet-kubeconfig").is_some())
        .await;
    world.assert_rests().await;
}

#[tokio::test(start_paused = true)]
async fn fleet_extension_and_endpoint_come_and_go_with_the_spec() {
    let world = World::new();
    let group = |name: &str| format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{name}");
    world.ask(
        Method::PUT,
        "/resourceGroups/hub",
        Some(&json!({"location": "westus3"})),
    );
    world.ask(
        Method::PUT,
        "/resourceGroups/hub/providers/Microsoft.ContainerService/fleets/armada",
        Some(&json!({"location": "westus3", "properties": {}})),
    );
    tokio::time::sleep(Duration::from_mins(5)).await;
    let service = format!(
        "{}/providers/Microsoft.Network/privateLinkServices/registry",
        group("hub")
    );
    let spec = json!({
        "fleetsMember": {"name": "fleet", "managerName": "armada", "managerResourceGroup": "hub"},
        "extensions": [
            {"name": "flux", "extensionType": "microsoft.flux", "scope": {"scopeType": "Cluster", "releaseNamespace": "flux-system"}},
            {"name": "dapr", "extensionType": "microsoft.dapr"},
        ],
        "virtualNetwork": {"name": "fleet", "cidrBlock": "10.0.0.0/8", "subnet": {"name": "fleet", "cidrBlock": "10.240.0.0/16",
            "privateEndpoints": [{"name": "registry", "privateLinkServiceConnections": [
                {"name": "registry", "privateLinkServiceID": service}]}]}},
    });
    apply(&world.server, &manifests(&spec, POOL)).await;
    world.until_ready(&["system"]).await;
    let has = |world: &World, end: &str| world.in_azure().iter().any(|id| id.ends_with(end));
    for made in [
        "/members/fleet",
        "/extensions/flux",
        "/extensions/dapr",
        "/privateendpoints/registry",
    ] {
        assert!(has(&world, made), "{made}: {:?}", world.in_azure());
    }
    let plane = world.plane();
    for part in ["FleetReady", "AKSExtensionsReady", "PrivateEndpointsReady"] {
        assert_eq!(condition(&plane, part)["status"], "True", "{part}");
    }
    world.assert_rests().await;
    // Somebody else's extension on the same cluster is nobody's business.
    let aks = "/resourceGroups/fleet/providers/Microsoft.ContainerService/managedClusters/fleet";
    world.ask(
        Method::PUT,
        &format!("{aks}/providers/Microsoft.KubernetesConfiguration/extensions/theirs"),
        Some(&json!({"properties": {"extensionType": "microsoft.azuremonitor.containers"}})),
    );
    tokio::time::sleep(Duration::from_mins(5)).await;
    merge(
        &world.server,
        "AzureManagedControlPlane",
        "fleet",
        json!({"spec": {"fleetsMember": null, "extensions": [{"name": "dapr", "extensionType": "microsoft.dapr"}],
            "virtualNetwork": {"subnet": {"privateEndpoints": null}}}}),
    )
    .await;
    world
        .until("taken away", |world| {
            !["/members/fleet", "/extensions/flux", "/privateendpoints/registry"]
                .iter()
                .any(|end| has(world, end))
        })
        .await;
    world.until_ready(&["system"]).await;
    for kept in ["/extensions/dapr", "/extensions/theirs", "/fleets/armada"] {
        assert!(has(&world, kept), "{kept}");
    }
    world.assert_rests().await;
    remove(&world.server, "Cluster", "fleet").await;
    world.until_gone().await;
    assert!(has(&world, "/fleets/armada"));
    assert!(!has(&world, "/managedclusters/fleet"));
}
