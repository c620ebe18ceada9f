//! Scenarios about node pools: scaled, labelled, tainted, tagged, patched, autoscaled, spot, refused and mended.

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use slipway_azure_sim::Fault;
use slipway_testbed::wait::{until, until_gone};

use crate::aks_world::{Fleet, NEXT, READ_OFTEN, SUBSCRIPTION, World, condition, is_ready, pool, system};

/// Out, in, to nothing and back, with real nodes; then everything else of a pool that may change.
pub async fn scale_and_change(world: &World) -> Result<()> {
    let fleet = world.fleet("scale").await?.backed()?;
    fleet
        .create(
            &json!({}),
            &[system("scalesys"), pool("scalework", "User", 1, json!({}))],
        )
        .await?;
    fleet.until_nodes("scalesys", 1).await?;
    for nodes in [3, 1, 0, 2] {
        fleet.scale("scalework", nodes).await?;
        fleet
            .until_nodes("scalework", nodes)
            .await
            .with_context(|| format!("to {nodes}"))?;
        until(&fleet.pools(), "scalework", "tell its replicas", |object| {
            is_ready(object) && object.data["status"]["replicas"] == json!(nodes)
        })
        .await?;
    }
    change_all_that_may(&fleet).await?;
    // With another system pool there, the first may go; the last may not.
    fleet
        .machine_pools()
        .delete("scalesys", &DeleteParams::default())
        .await?;
    until_gone(&fleet.machine_pools(), "scalesys").await?;
    ensure!(
        fleet.pool_shown("scalesys").is_err(),
        "the pool is gone from Azure"
    );
    let refused = fleet.pools().delete("scalework", &DeleteParams::default()).await;
    let message = refused.err().context("the last system pool stays")?.to_string();
    ensure!(message.contains("at least one system pool"), "{message}");
    Ok(())
}

/// Labels, taints, tags, patches and mode: set, changed, taken away and set again.
async fn change_all_that_may(fleet: &Fleet<'_>) -> Result<()> {
    let taint = |value: &str| json!({"taints": [{"key": "only", "value": value, "effect": "NoSchedule"}]});
    let surge = |share: &str| {
        let patch = json!({"spec": {"upgradeSettings": {"maxSurge": share}}}).to_string();
        json!({"asoManagedClustersAgentPoolPatches": [patch]})
    };
    for (spec, field, desired) in [
        (
            json!({"nodeLabels": {"tier": "gold"}}),
            "/nodeLabels/tier",
            json!("gold"),
        ),
        (
            json!({"nodeLabels": {"tier": "silver", "zone": "a"}}),
            "/nodeLabels",
            json!({"tier": "silver", "zone": "a"}),
        ),
        (json!({"nodeLabels": null}), "/nodeLabels/tier", Value::Null),
        (taint("batch"), "/nodeTaints", json!(["only=batch:NoSchedule"])),
        (taint("night"), "/nodeTaints", json!(["only=night:NoSchedule"])),
        (json!({"taints": null}), "/nodeTaints/0", Value::Null),
        (
            json!({"additionalTags": {"team": "blue"}}),
            "/tags/team",
            json!("blue"),
        ),
        (
            json!({"additionalTags": {"team": "red"}}),
            "/tags/team",
            json!("red"),
        ),
        (json!({"additionalTags": null}), "/tags/team", Value::Null),
        (
            json!({"additionalTags": {"team": "blue"}}),
            "/tags/team",
            json!("blue"),
        ),
        (
            json!({"scaleDownMode": "Deallocate"}),
            "/scaleDownMode",
            json!("Deallocate"),
        ),
        (surge("33%"), "/upgradeSettings/maxSurge", json!("33%")),
        (surge("50%"), "/upgradeSettings/maxSurge", json!("50%")),
        // What AKS makes of a patch that is gone is its own affair.
        (
            json!({"asoManagedClustersAgentPoolPatches": null}),
            "/provisioningState",
            json!("Succeeded"),
        ),
        (json!({"mode": "System"}), "/mode", json!("System")),
    ] {
        fleet.change_pool("scalework", spec.clone()).await?;
        fleet
            .until_pool("scalework", |pool| {
                pool.pointer(field).unwrap_or(&Value::Null) == &desired
            })
            .await
            .with_context(|| spec.to_string())?;
    }
    Ok(())
}

/// AKS scales the pool and nobody fights it; then it no longer does.
pub async fn autoscale(world: &World) -> Result<()> {
    let fleet = world.fleet("auto").await?;
    let work = pool(
        "autowork",
        "User",
        1,
        json!({"scaling": {"minSize": 1, "maxSize": 5}}),
    );
    fleet.create(&json!({}), &[system("autosys"), work]).await?;
    let follows = |count: u64| {
        move |object: &kube::api::DynamicObject| {
            let annotations = object.metadata.annotations.as_ref();
            let by = annotations.and_then(|all| all.get("cluster.x-k8s.io/replicas-managed-by"));
            by.is_some_and(|by| by == "true") && object.data["spec"]["replicas"] == count
        }
    };
    until(&fleet.machine_pools(), "autowork", "be followed", follows(1)).await?;
    let often = json!({"metadata": {"annotations": {READ_OFTEN: "1s"}}});
    fleet.merge(&fleet.pools(), "autowork", often).await?;
    let before = fleet.writes();
    let id = format!("/subscriptions/{SUBSCRIPTION}{}/agentPools/autowork", fleet.aks());
    ensure!(world.simulator().azure().set_pool_count(&id, 4));
    until(&fleet.machine_pools(), "autowork", "follow AKS", follows(4)).await?;
    ensure!(fleet.writes() == before, "AKS is not fought");
    fleet.change_pool("autowork", json!({"scaling": null})).await?;
    fleet
        .until_pool("autowork", |shown| shown["enableAutoScaling"] != true)
        .await?;
    until(
        &fleet.machine_pools(),
        "autowork",
        "be the user's again",
        |object| {
            let annotations = object.metadata.annotations.as_ref();
            annotations.is_none_or(|all| !all.contains_key("cluster.x-k8s.io/replicas-managed-by"))
        },
    )
    .await?;
    // What AKS scales at random is left behind looked at as seldom as the rest.
    let seldom = json!({"metadata": {"annotations": {READ_OFTEN: null}}});
    fleet.merge(&fleet.pools(), "autowork", seldom).await
}

/// Spot nodes and Windows nodes come and go.
pub async fn spot_and_windows(world: &World) -> Result<()> {
    let fleet = world.fleet("spot").await?;
    fleet.create(&json!({}), &[system("spotsys")]).await?;
    fleet
        .add(&pool(
            "spotwork",
            "User",
            1,
            json!({"scaleSetPriority": "Spot", "spotMaxPrice": "0.05"}),
        ))
        .await?;
    fleet
        .add(&pool("spotw", "User", 1, json!({"osType": "Windows"})))
        .await?;
    fleet
        .until_pool("spotwork", |shown| {
            shown["scaleSetPriority"] == "Spot" && shown["spotMaxPrice"] == 0.05
        })
        .await?;
    fleet
        .until_pool("spotw", |shown| shown["osType"] == "Windows")
        .await?;
    for name in ["spotwork", "spotw"] {
        fleet
            .machine_pools()
            .delete(name, &DeleteParams::default())
            .await?;
        until_gone(&fleet.machine_pools(), name).await?;
        ensure!(fleet.pool_shown(name).is_err(), "{name} is gone from Azure");
    }
    fleet.delete().await
}

/// More nodes than the prefix has addresses: AKS's own words are told, and a smaller number mends it.
pub async fn refused_and_mended(world: &World) -> Result<()> {
    let fleet = world.fleet("mend").await?;
    fleet.create(&json!({}), &[system("mendsys")]).await?;
    world.simulator().azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/agentPools/mendwork".into(),
        operation_error: Some(json!({"code": "PublicIPPrefixOutOfIpAddressesForVMScaleSet",
            "message": "Unable to allocate 3 addresses from a prefix of 2."})),
        ..Fault::default()
    });
    let prefix = format!(
        "/subscriptions/{SUBSCRIPTION}/resourceGroups/mend/providers/Microsoft.Network/publicIPPrefixes/two"
    );
    let spec = json!({"enableNodePublicIP": true, "nodePublicIPPrefixID": prefix});
    fleet.add(&pool("mendwork", "User", 3, spec)).await?;
    let told = until(&fleet.pools(), "mendwork", "tell why", |object| {
        condition(object, "Ready")["reason"] == "PublicIPPrefixOutOfIpAddressesForVMScaleSet"
    })
    .await?;
    let message = condition(&told, "Ready")["message"].to_string();
    ensure!(message.contains("prefix of 2"), "{message}");
    fleet.scale("mendwork", 2).await?;
    fleet.until_pool("mendwork", |shown| shown["count"] == 2).await?;

    // A terminal refusal of the cluster itself: told with its severity, and mended by the next change.
    world.simulator().azure().add_fault(Fault {
        method: "PUT".into(),
        path: "/managedClusters/mend".into(),
        times: 0,
        status: Some(400),
        code: "InvalidParameter".into(),
        message: "The value of parameter tags is invalid.".into(),
        ..Fault::default()
    });
    fleet
        .change_plane(json!({"additionalTags": {"bad": "yes"}}))
        .await?;
    until(&fleet.planes(), "mend", "tell why", |plane| {
        let running = condition(plane, "ManagedClusterRunning");
        running["reason"] == "InvalidParameter" && running["severity"] == "Error"
    })
    .await?;
    world.simulator().azure().clear_faults();
    fleet
        .change_plane(json!({"additionalTags": {"bad": null, "good": "yes"}}))
        .await?;
    fleet.until_ready(&["mendsys", "mendwork"]).await?;
    ensure!(fleet.shown("")?["tags"]["good"] == "yes");
    fleet.delete().await
}

/// The control plane, then its pools; then the autoscaler's profile, and tags come and go.
pub async fn upgrade(world: &World) -> Result<()> {
    let fleet = world.fleet("raise").await?.backed()?;
    fleet
        .create(
            &json!({}),
            &[system("raisesys"), pool("raisework", "User", 2, json!({}))],
        )
        .await?;
    fleet.change_plane(json!({"version": NEXT})).await?;
    until(&fleet.planes(), "raise", "run the next version", |plane| {
        is_ready(plane) && plane.data["status"]["version"] == NEXT
    })
    .await?;
    for name in ["raisesys", "raisework"] {
        ensure!(
            fleet.pool_shown(name)?["orchestratorVersion"] == "1.33.3",
            "a pool follows its own MachinePool"
        );
        let version = json!({"spec": {"template": {"spec": {"version": NEXT}}}});
        fleet.merge(&fleet.machine_pools(), name, version).await?;
        fleet
            .until_pool(name, |shown| shown["currentOrchestratorVersion"] == "1.34.1")
            .await?;
    }
    fleet.until_nodes("raisework", 2).await?;
    for (spec, field, shown) in [
        (
            json!({"autoscalerProfile": {"expander": "priority"}}),
            "/properties/autoScalerProfile/expander",
            json!("priority"),
        ),
        (
            json!({"additionalTags": {"team": "blue"}}),
            "/tags/team",
            json!("blue"),
        ),
        (
            json!({"additionalTags": {"team": "red"}}),
            "/tags/team",
            json!("red"),
        ),
        (json!({"additionalTags": null}), "/tags/team", Value::Null),
        (
            json!({"additionalTags": {"team": "blue"}}),
            "/tags/team",
            json!("blue"),
        ),
        (
            json!({"asoManagedClusterPatches": ["{\"spec\": {\"publicNetworkAccess\": \"Disabled\"}}"]}),
            "/properties/publicNetworkAccess",
            json!("Disabled"),
        ),
        (
            json!({"asoManagedClusterPatches": ["{\"spec\": {\"publicNetworkAccess\": \"Enabled\"}}"]}),
            "/properties/publicNetworkAccess",
            json!("Enabled"),
        ),
        // A field that only the preview has.
        (
            json!({"enablePreviewFeatures": true,
                "asoManagedClusterPatches": ["{\"spec\": {\"enableNamespaceResources\": true}}"]}),
            "/properties/enableNamespaceResources",
            json!(true),
        ),
        (
            json!({"enablePreviewFeatures": false, "asoManagedClusterPatches": null, "sku": {"tier": "Standard"}}),
            "/sku/tier",
            json!("Standard"),
        ),
    ] {
        fleet.change_plane(spec.clone()).await?;
        until(&fleet.planes(), "raise", "be so", is_ready).await?;
        let found = fleet.shown("")?;
        ensure!(
            found.pointer(field).unwrap_or(&Value::Null) == &shown,
            "{spec}: {field} is {:?}",
            found.pointer(field)
        );
    }
    Ok(())
}
