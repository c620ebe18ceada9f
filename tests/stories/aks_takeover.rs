//! A running installation of Cluster API Provider Azure with Azure Service Operator hands its clusters over: they make a
//! cluster, the real clusterctl takes them away and installs Slipway, and Slipway goes on with it. The operator's objects
//! are detached, Azure is not written to, and from then on the cluster is scaled, changed, upgraded and deleted by us.

use anyhow::{Context, Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_testbed::{
    install,
    wait::{until, until_gone},
};

use crate::{
    aks_handover::{Handover, NAME},
    aks_world::{AZURE, CORE, NEXT, is_ready},
};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "outside CI: builds Azure Service Operator and Cluster API Provider Azure; docs/guides/takeover-aks.md has the command"]
async fn a_running_installation_hands_its_clusters_over() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let handover = Handover::start(folder.path()).await?;
    let running = handover.install_theirs().await?;
    made_by_them(&handover).await?;

    // Before: a copy, and all is at rest.
    let backup = folder.path().join("backup");
    std::fs::create_dir(&backup)?;
    let path = backup.display().to_string();
    handover
        .clusterctl(&["move", "--to-directory", &path, "--namespace", NAME])
        .await?;
    ensure!(std::fs::read_dir(&backup)?.count() > 5, "a copy of every object");
    until_they_are_ready(&handover).await?;
    handover.until_theirs_rest().await?;

    Box::pin(handover.remove_theirs(running)).await?;
    let kept = handover.kept_by_the_operator().await?;
    ensure!(kept.len() >= 7, "{} objects of the operator", kept.len());
    let (before, seen) = (handover.standing().await?, handover.requests());

    let manager = handover.install_ours().await?;
    handover.until_taken().await?;
    for (api, object) in &kept {
        until_gone(api, &object.name_any()).await?;
    }
    let asked = handover.requests_since(seen);
    ensure!(
        asked
            .keys()
            .all(|asked| asked == "GET" || asked == "POST listClusterAdminCredential"),
        "Azure is only looked at: {asked:?}"
    );
    ensure!(
        handover.standing().await? == before,
        "nothing is changed or made again"
    );
    let nothing = handover
        .world
        .management
        .kubectl(&["get", "managedclusters.containerservice.azure.com", "-A"])
        .await?;
    ensure!(nothing.is_empty(), "{nothing}");
    let left = handover.secrets("aso").await?;
    println!(
        "report: aks takeover: {} objects detached, asked of Azure: {asked:?}, {} resources and {} nodes as before; \
         left: {left:?}",
        kept.len(),
        before.resources(),
        before.nodes()
    );
    for name in ["aso-secret", "aso-kubeconfig"] {
        ensure!(left.contains(&format!("{NAME}-{name}")), "{left:?}");
    }

    handover.remove_their_roles().await?;
    ours_from_here_on(&handover).await?;
    let beyond = handover.beyond_its_rights()?;
    ensure!(beyond.is_empty(), "not in the roles of our package: {beyond:?}");
    manager.kill();
    Ok(())
}

/// A cluster with two pools and an extension, made by upstream.
async fn made_by_them(handover: &Handover) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}});
    install::install(&handover.world.management.client(), &[namespace]).await?;
    handover
        .world
        .apply(NAME, include_str!("../manifests/aks-managed.yaml"))
        .await?;
    let extension = json!({"extensions": [{"name": "flux", "extensionType": "microsoft.flux"}]});
    change(handover, AZURE, "AzureManagedControlPlane", NAME, extension).await?;
    until_they_are_ready(handover).await?;
    ensure!(handover.in_azure("/extensions/flux").len() == 1);
    Ok(())
}

async fn until_they_are_ready(handover: &Handover) -> Result<()> {
    let planes = handover.of(AZURE, "AzureManagedControlPlane");
    until(&planes, NAME, "become ready", |plane| {
        let conditions = plane.data["status"]["conditions"].as_array();
        let is_true = |name: &str| {
            let mut found = conditions.into_iter().flatten();
            found.any(|one| one["type"] == name && one["status"] == "True")
        };
        plane.data["status"]["ready"] == true && is_true("AKSExtensionsReady")
    })
    .await?;
    for pool in ["system", "user"] {
        until_nodes(handover, pool, 1).await?;
    }
    Ok(())
}

async fn until_nodes(handover: &Handover, pool: &str, nodes: usize) -> Result<()> {
    let pools = handover.of(CORE, "MachinePool");
    until(&pools, &format!("{NAME}-{pool}"), "run its nodes", |pool| {
        pool.data["status"]["readyReplicas"] == json!(nodes)
            && pool.data["spec"]["providerIDList"].as_array().map(Vec::len) == Some(nodes)
    })
    .await?;
    Ok(())
}

async fn change(handover: &Handover, version: &str, kind: &str, name: &str, spec: Value) -> Result<()> {
    handover
        .of(version, kind)
        .patch(
            name,
            &PatchParams::default(),
            &Patch::Merge(json!({ "spec": spec })),
        )
        .await
        .with_context(|| format!("changing {kind} {name}"))?;
    Ok(())
}

/// It scales, loses what the other installation made, is upgraded, and goes.
async fn ours_from_here_on(handover: &Handover) -> Result<()> {
    let seen = handover.requests();
    let user = format!("{NAME}-user");
    change(handover, CORE, "MachinePool", &user, json!({"replicas": 3})).await?;
    until_nodes(handover, "user", 3).await?;

    let plane = "AzureManagedControlPlane";
    change(handover, AZURE, plane, NAME, json!({"extensions": null})).await?;
    let planes = handover.of(AZURE, plane);
    until(&planes, NAME, "be ready without it", is_ready).await?;
    ensure!(
        handover.in_azure("/extensions/flux").is_empty(),
        "the extension they made is known as the cluster's own"
    );

    change(handover, AZURE, plane, NAME, json!({"version": NEXT})).await?;
    until(&planes, NAME, "run the next version", |plane| {
        is_ready(plane) && plane.data["status"]["version"] == NEXT
    })
    .await?;
    let pools = handover.of(AZURE, "AzureManagedMachinePool");
    for (pool, nodes) in [("system", 1), ("user", 3)] {
        let name = format!("{NAME}-{pool}");
        let version = json!({"template": {"spec": {"version": NEXT}}});
        change(handover, CORE, "MachinePool", &name, version).await?;
        let runs = |pool: &str| {
            let azure = handover.world.azure.simulator().azure();
            let below = format!("/agentpools/{pool}");
            let resources = &azure.state().resources;
            let found = resources
                .iter()
                .find(|one| one.id.to_lowercase().ends_with(&below));
            found.is_some_and(|one| one.properties()["currentOrchestratorVersion"] == NEXT[1..])
        };
        until(&pools, &name, "run the next version", |object| {
            is_ready(object) && runs(pool)
        })
        .await?;
        until_nodes(handover, pool, nodes).await?;
    }

    let clusters = handover.of(CORE, "Cluster");
    clusters.delete(NAME, &DeleteParams::default()).await?;
    until_gone(&clusters, NAME).await?;
    let left = handover.in_azure("/resourcegroups/");
    ensure!(left.is_empty(), "left in Azure: {left:?}");
    println!(
        "report: aks takeover: scaled, changed, upgraded and deleted afterwards with {:?}",
        handover.requests_since(seen)
    );
    Ok(())
}
