//! Scenarios about who decides: paused, given up and adopted, changed behind our back, deleted while it is made, moved.

use anyhow::{Context, Result, ensure};
use http::Method;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use serde_json::{Value, json};
use slipway_kit::manager::Manager;
use slipway_testbed::wait::{until, until_gone};

use crate::{
    aks_manager,
    aks_world::{CORE, Fleet, NEXT, READ_OFTEN, World, condition, is_ready, management, pool, system},
};

const MEMBERS: &[&str] = &[
    "AzureManagedMachinePool",
    "AzureManagedControlPlane",
    "AzureManagedCluster",
];

fn paused_for_now(object: &DynamicObject) -> bool {
    let conditions = &object.data["status"]["v1beta2"]["conditions"];
    conditions.as_array().into_iter().flatten().any(|one| {
        one["type"] == "Paused"
            && one["status"] == "True"
            && one["observedGeneration"] == json!(object.metadata.generation)
    })
}

/// While it is paused nothing is touched; what was given up is adopted again, without a write.
pub async fn pause_and_adopt(world: &World) -> Result<()> {
    let fleet = world.fleet("pause").await?;
    let (plane, pools) = (
        json!({}),
        [system("pausesys"), pool("pausework", "User", 1, json!({}))],
    );
    fleet.create(&plane, &pools).await?;
    let before = fleet.writes();
    let pause = |on: bool| json!({"spec": {"paused": on}});
    fleet.merge(&fleet.clusters(), "pause", pause(true)).await?;
    until(&fleet.planes(), "pause", "be paused", paused_for_now).await?;
    fleet
        .change_plane(json!({"additionalTags": {"team": "blue"}}))
        .await?;
    fleet
        .change_pool("pausework", json!({"nodeLabels": {"a": "b"}}))
        .await?;
    until(&fleet.planes(), "pause", "be paused", paused_for_now).await?;
    until(&fleet.pools(), "pausework", "be paused", paused_for_now).await?;
    ensure!(fleet.writes() == before, "{:?}", fleet.writes());
    fleet.merge(&fleet.clusters(), "pause", pause(false)).await?;
    fleet.until_ready(&["pausesys", "pausework"]).await?;
    ensure!(fleet.shown("")?["tags"]["team"] == "blue");

    fleet.merge(&fleet.clusters(), "pause", pause(true)).await?;
    until(&fleet.planes(), "pause", "be paused", paused_for_now).await?;
    until(&fleet.pools(), "pausework", "be paused", paused_for_now).await?;
    let (before, uid) = (
        fleet.writes(),
        fleet.shown("")?["properties"]["resourceUID"].clone(),
    );
    give_up(&fleet).await?;
    ensure!(fleet.writes() == before, "what was given up stays in Azure");
    let mut again = fleet.manifests(&json!({"additionalTags": {"team": "blue"}}), &pools);
    let labels = again.last_mut().context("a pool")?;
    labels["spec"]["nodeLabels"] = json!({"a": "b"});
    // Whoever adopts it says whose it was: Azure shows the mark, and so would the condition.
    let mark = fleet.shown("")?["tags"]["slipway.dev_owner"].clone();
    ensure!(mark.is_string(), "what we made carries our mark");
    for manifest in again
        .iter_mut()
        .filter(|one| one["kind"] == "AzureManagedControlPlane")
    {
        manifest["metadata"]["annotations"]["slipway.dev/adopt"] = mark.clone();
    }
    fleet.apply(&again).await?;
    fleet.until_ready(&["pausesys", "pausework"]).await?;
    ensure!(
        fleet.shown("")?["properties"]["resourceUID"] == uid,
        "it is the same cluster"
    );
    ensure!(fleet.writes() == before, "{:?}", &fleet.writes()[before.len()..]);
    Ok(())
}

/// Takes the objects of a paused cluster away, and leaves what they stand for.
async fn give_up(fleet: &Fleet<'_>) -> Result<()> {
    let mut all = vec![(fleet.clusters(), fleet.name.clone())];
    for name in ["pausesys", "pausework"] {
        all.push((fleet.machine_pools(), name.to_owned()));
        all.push((fleet.pools(), name.to_owned()));
    }
    all.push((fleet.planes(), fleet.name.clone()));
    all.push((
        fleet.of(crate::aks_world::AZURE, "AzureManagedCluster"),
        fleet.name.clone(),
    ));
    for (api, name) in &all {
        api.delete(name, &DeleteParams::default()).await?;
    }
    // The Cluster, which says that all of it is paused, goes last.
    for (api, name) in all.iter().rev() {
        if api.get_opt(name).await?.is_some() {
            fleet
                .merge(api, name, json!({"metadata": {"finalizers": null}}))
                .await?;
        }
        until_gone(api, name).await?;
    }
    Ok(())
}

/// Another changes tags and a pool, and deletes a pool: ours is put right, theirs stays.
pub async fn drift(world: &World) -> Result<()> {
    let fleet = world.fleet("drift").await?;
    fleet
        .create(
            &json!({"additionalTags": {"team": "blue"}}),
            &[system("driftsys"), pool("driftwork", "User", 2, json!({}))],
        )
        .await?;
    let reads = |often: Value| json!({"metadata": {"annotations": {READ_OFTEN: often}}});
    for (api, name) in [(fleet.planes(), "drift"), (fleet.pools(), "driftwork")] {
        fleet.merge(&api, name, reads(json!("3s"))).await?;
    }
    let mut body = fleet.shown("")?;
    body["tags"]["team"] = json!("red");
    body["tags"]["theirs"] = json!("1");
    world.ask(Method::PUT, &fleet.aks(), Some(&body))?;
    until(&fleet.planes(), "drift", "put it right", |plane| {
        is_ready(plane)
            && fleet.shown("").is_ok_and(|shown| {
                shown["tags"]["team"] == "blue"
                    && shown["tags"]["theirs"] == "1"
                    && shown["properties"]["provisioningState"] == "Succeeded"
            })
    })
    .await?;
    world.ask(
        Method::DELETE,
        &format!("{}/agentPools/driftwork", fleet.aks()),
        None,
    )?;
    let puts = || {
        let path = "/managedclusters/drift/agentpools/driftwork";
        let writes = world.writes(path);
        writes.iter().filter(|write| write.starts_with("PUT")).count()
    };
    let before = puts();
    until(&fleet.pools(), "driftwork", "be made again", |pool| {
        puts() > before
            && is_ready(pool)
            && fleet
                .pool_shown("driftwork")
                .is_ok_and(|shown| shown["provisioningState"] == "Succeeded" && shown["count"] == 2)
    })
    .await?;
    fleet.delete().await
}

/// Deleted as soon as it is held, while the cluster is made, and while a pool is made: nothing is left.
pub async fn deleted_while_made(world: &World) -> Result<()> {
    let held = async {
        let fleet = world.fleet("stagea").await?;
        fleet.apply(&fleet.identity()).await?;
        fleet
            .apply(&fleet.manifests(&json!({}), &[system("stagea")]))
            .await?;
        until(&fleet.planes(), "stagea", "be held", |plane| {
            plane.metadata.finalizers.is_some()
        })
        .await?;
        fleet.delete().await
    };
    let created = async {
        let fleet = world.fleet("stageb").await?;
        fleet.apply(&fleet.identity()).await?;
        fleet
            .apply(&fleet.manifests(&json!({}), &[system("stageb")]))
            .await?;
        until(&fleet.planes(), "stageb", "be made", |plane| {
            condition(plane, "ManagedClusterRunning")["reason"] == "Creating"
        })
        .await?;
        fleet.delete().await
    };
    let grown = async {
        let fleet = world.fleet("stagec").await?;
        fleet.create(&json!({}), &[system("stagec")]).await?;
        fleet.add(&pool("stagecwork", "User", 3, json!({}))).await?;
        until(&fleet.pools(), "stagecwork", "be made", |pool| {
            condition(pool, "Ready")["reason"] == "Creating"
        })
        .await?;
        fleet.delete().await
    };
    tokio::try_join!(
        async { held.await.context("held") },
        async { created.await.context("created") },
        async { grown.await.context("grown") },
    )?;
    Ok(())
}

/// To another management cluster and back, then upgraded: no write in Azure for the moves.
pub async fn move_there_and_back(world: &World) -> Result<(slipway_testbed::Cluster, Manager)> {
    let fleet = world.fleet("moved").await?.backed()?;
    let (there, ()) = tokio::try_join!(
        async {
            // clusterctl moves only to where the same providers are.
            let there = management("aks-there", true).await?;
            let manager = aks_manager::start(&there, &world.azure).await?;
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "moved"}});
            slipway_testbed::install::install(&there.client(), &[namespace]).await?;
            Ok::<_, anyhow::Error>((there, manager))
        },
        async {
            let pools = [system("movedsys"), pool("movedwork", "User", 2, json!({}))];
            fleet.create(&json!({}), &pools).await?;
            fleet.until_nodes("movedwork", 2).await
        },
    )?;
    let (there, manager) = there;
    let before = fleet.writes();
    let moved = Fleet {
        client: there.client(),
        ..fleet.clone()
    };
    for (from, to, old, new) in [
        (&world.management, &there, &fleet, &moved),
        (&there, &world.management, &moved, &fleet),
    ] {
        let kubeconfig = to.kubeconfig().display().to_string();
        from.clusterctl(&["move", "--namespace", "moved", "--to-kubeconfig", &kubeconfig])
            .await?;
        new.until_ready(&["movedsys", "movedwork"]).await?;
        new.until_nodes("movedwork", 2).await?;
        for kind in MEMBERS {
            let left = old
                .of(crate::aks_world::AZURE, kind)
                .list(&ListParams::default())
                .await?;
            ensure!(left.items.is_empty(), "{kind} stayed behind");
        }
        until_gone(&old.of(CORE, "Cluster"), "moved").await?;
        ensure!(fleet.writes() == before, "{:?}", &fleet.writes()[before.len()..]);
    }
    fleet.change_plane(json!({"version": NEXT})).await?;
    until(&fleet.planes(), "moved", "run the next version", |plane| {
        is_ready(plane) && plane.data["status"]["version"] == NEXT
    })
    .await?;
    Ok((there, manager))
}
