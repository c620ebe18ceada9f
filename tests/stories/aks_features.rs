//! Scenarios about what a cluster may have: private API servers, Entra accounts, fleets, extensions, an issuer, a default
//! pool, an identity that not everybody may use.

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use slipway_testbed::{install, wait::until};

use crate::aks_world::{AZURE, World, condition, is_ready, pool, system};

/// A private API server with an issuer.
pub async fn private(world: &World) -> Result<()> {
    let fleet = world.fleet("private").await?;
    let spec = json!({"apiServerAccessProfile": {"enablePrivateCluster": true}, "oidcIssuerProfile": {"enabled": true}});
    fleet.create(&spec, &[system("privatesys")]).await?;
    let plane = fleet.planes().get("private").await?;
    let host = plane.data["spec"]["controlPlaneEndpoint"]["host"].to_string();
    ensure!(host.contains("privatelink"), "{host}");
    let issuer = plane.data["status"]["oidcIssuerProfile"]["issuerURL"].to_string();
    ensure!(issuer.contains("https://"), "{issuer}");
    // Nobody reaches its nodes from here, so they come from the scale set.
    let pool = fleet.pools().get("privatesys").await?;
    ensure!(
        pool.data["spec"]["providerIDList"].as_array().map(Vec::len) == Some(1),
        "{}",
        pool.data
    );
    until(&fleet.clusters(), "private", "have a control plane", |cluster| {
        cluster.data["spec"]["controlPlaneEndpoint"]["host"]
            == plane.data["spec"]["controlPlaneEndpoint"]["host"]
            && cluster.data["status"]["initialization"]["controlPlaneInitialized"] == true
    })
    .await?;
    fleet.delete().await
}

/// Without local accounts the kubeconfig holds a token, and people sign in with their own.
pub async fn entra(world: &World) -> Result<String> {
    let fleet = world.fleet("entra").await?;
    let spec = json!({"disableLocalAccounts": true,
        "aadProfile": {"managed": true, "adminGroupObjectIDs": ["33333333-3333-3333-3333-333333333333"]}});
    fleet.create(&spec, &[system("entrasys")]).await?;
    let own = fleet.kubeconfig("entra-kubeconfig").await?;
    let token = own["users"][0]["user"]["token"]
        .as_str()
        .context("a token")?
        .to_owned();
    let people = fleet.kubeconfig("entra-kubeconfig-user").await?;
    ensure!(people["users"][0]["user"]["exec"]["command"] == "kubelogin");
    Ok(token)
}

/// A fleet is joined and left, an extension comes and goes; what others made stays.
pub async fn fleet_and_extension(world: &World) -> Result<()> {
    let fleet = world.fleet("extras").await?;
    let hub = "/resourceGroups/hub";
    world.ask(Method::PUT, hub, Some(&json!({"location": "westus3"})))?;
    let manager = format!("{hub}/providers/Microsoft.ContainerService/fleets/armada");
    world.ask(
        Method::PUT,
        &manager,
        Some(&json!({"location": "westus3", "properties": {}})),
    )?;
    let spec = json!({
        "fleetsMember": {"name": "extras", "managerName": "armada", "managerResourceGroup": "hub"},
        "extensions": [{"name": "flux", "extensionType": "microsoft.flux",
            "scope": {"scopeType": "Cluster", "releaseNamespace": "flux-system"}}],
    });
    fleet.create(&spec, &[system("extrasys")]).await?;
    let plane = fleet.planes().get("extras").await?;
    for part in ["FleetReady", "AKSExtensionsReady"] {
        ensure!(condition(&plane, part)["status"] == "True", "{part}");
    }
    let member = world.ask(Method::GET, &format!("{manager}/members/extras"), None)?;
    let joined = member["properties"]["clusterResourceId"].to_string();
    ensure!(
        joined.to_lowercase().contains("managedclusters/extras"),
        "{joined}"
    );
    fleet
        .change_plane(json!({"fleetsMember": null, "extensions": null}))
        .await?;
    until(&fleet.planes(), "extras", "be ready without them", is_ready).await?;
    for gone in ["/members/extras", "/extensions/flux"] {
        ensure!(world.in_azure(gone).is_empty(), "{gone}");
    }
    ensure!(
        !world.in_azure("/fleets/armada").is_empty(),
        "the fleet is not ours"
    );
    fleet.delete().await
}

/// No pool object: the template's pool is made, and a pool object that names it later adopts it.
pub async fn default_pool(world: &World) -> Result<()> {
    let fleet = world.fleet("first").await?;
    fleet.apply(&fleet.identity()).await?;
    let mut manifests = fleet.manifests(&json!({}), &[]);
    manifests[1]["spec"] = json!({"defaultPoolTemplate": {"replicas": 2,
        "spec": {"mode": "System", "sku": "Standard_D4s_v3", "name": "firstpool"}}});
    fleet.apply(&manifests).await?;
    fleet.until_ready(&[]).await?;
    ensure!(fleet.pool_shown("firstpool")?["count"] == 2);
    let before = fleet.writes();
    fleet
        .add(&pool("firstpool", "System", 2, json!({"sku": "Standard_D4s_v3"})))
        .await?;
    fleet.until_ready(&["firstpool"]).await?;
    let pools = fleet.shown("")?["properties"]["agentPoolProfiles"]
        .as_array()
        .map_or(0, Vec::len);
    ensure!(pools == 1, "{pools} pools");
    ensure!(fleet.writes() == before, "{:?}", fleet.writes());
    fleet.delete().await
}

/// An identity for labelled namespaces: told who may not, and taken once the label is there.
pub async fn identity_of_others(world: &World) -> Result<()> {
    let fleet = world.fleet("denied").await?;
    let mut identity = fleet.identity();
    identity[1]["spec"]["allowedNamespaces"] = json!({"selector": {"matchLabels": {"azure": "yes"}}});
    fleet.apply(&identity).await?;
    fleet
        .apply(&fleet.manifests(&json!({}), &[system("deniedsys")]))
        .await?;
    until(&fleet.planes(), "denied", "be refused", |plane| {
        condition(plane, "Ready")["reason"] == "NamespaceNotAllowedByIdentity"
    })
    .await?;
    ensure!(fleet.writes().is_empty(), "nothing is made without leave");
    let allowed = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "denied", "labels": {"azure": "yes"}}});
    install::install(&fleet.client, &[allowed]).await?;
    // Namespaces are not watched; the identity is.
    let identities = fleet.of(AZURE, "AzureClusterIdentity");
    let note = json!({"metadata": {"annotations": {"note": "the namespace has its label"}}});
    fleet.merge(&identities, "identity", note).await?;
    fleet.until_ready(&["deniedsys"]).await?;
    let shown: Value = fleet.shown("")?;
    ensure!(shown["properties"]["provisioningState"] == "Succeeded");
    fleet.delete().await
}
