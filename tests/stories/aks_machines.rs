//! Scenarios about nodes as Machines, with Cluster API's core, its health checks and clusterctl: shown, deleted, chosen, given up,
//! upgraded, scaled by AKS and by our autoscaler, moved, and switched off again. They run side by side in a world of their own; when
//! they are through, nothing is written at rest with machines on.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{
    ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use slipway_kit::manager::Manager;
use slipway_testbed::{
    Cluster, install,
    wait::{until, until_gone},
};

use crate::{
    aks_clusters::{all_of, nothing_is_written_at_rest},
    aks_manager::{self, USER, declared_roles},
    aks_world::{AZURE, CORE, Fleet, NEXT, READ_OFTEN, World, management, pool, system},
    autoscaled_machines::scaled_by_ours,
    pool_machines::{Machines, classic, ensure_rights},
};

/// A condition that something on the node reports, as a problem detector does.
const BROKEN: &str = "DiskBroken";

#[tokio::test(flavor = "multi_thread")]
async fn aks_nodes_live_as_machines() -> Result<()> {
    let world = World::with_scheduler("a client secret".to_owned(), "machines").await?;
    let mut there = None;
    all_of(vec![
        ("nodes as machines", Box::pin(nodes_as_machines(&world))),
        (
            "scaled by AKS and switched off",
            Box::pin(scaled_by_aks_and_switched_off(&world)),
        ),
        ("scaled by our autoscaler", Box::pin(scaled_by_ours(&world))),
        (
            "moved with machines",
            Box::pin(async {
                there = Some(moved_with_machines(&world).await?);
                Ok(())
            }),
        ),
    ])
    .await?;
    let (there, other) = there.context("it moved")?;
    other.kill();
    there.stop();
    let kinds = [
        ("azuremanagedcluster", "AzureManagedCluster"),
        ("azuremanagedcontrolplane", "AzureManagedControlPlane"),
        ("azuremanagedmachinepool", "AzureManagedMachinePool"),
        ("azuremanagedmachine", "AzureManagedMachine"),
    ];
    nothing_is_written_at_rest(&world, &kinds).await?;
    let fleet = world.fleet("nodes").await?;
    classic(&fleet).until_whole("nodeswork", 2).await?;
    // Deleted with machines on, the cluster leaves nothing behind.
    fleet.delete().await?;
    for kind in ["Machine", "AzureManagedMachine"] {
        let version = if kind == "Machine" { CORE } else { AZURE };
        let left = fleet.of(version, kind).list(&ListParams::default()).await?;
        ensure!(left.items.is_empty(), "{kind}s are left");
    }
    let audit = world.management.audit();
    let requests = audit.requests(None, |request| request.username() == USER)?;
    ensure_rights(&declared_roles()?, &requests, "AzureManagedMachine")?;
    world.manager.kill();
    Ok(())
}

/// A pool made without machines gets them; one is deleted, one is marked and scaled away, one is given up by a health check; the
/// pool is upgraded with one node more for a while; the last system node stays. What is left rests with its machines.
async fn nodes_as_machines(world: &World) -> Result<()> {
    let fleet = world.fleet("nodes").await?.backed()?;
    let nodes = classic(&fleet);
    let work = pool("nodeswork", "User", 3, json!({}));
    fleet.create(&json!({}), &[system("nodessys"), work]).await?;
    fleet.until_nodes("nodeswork", 3).await?;
    fleet.until_nodes("nodessys", 1).await?;
    let told = nodes.describe("before").await?;
    ensure!(!told.contains("Machine/"), "off by default: {told}");
    ensure!(nodes.names("nodeswork").await?.is_empty());
    let writes = fleet.writes();
    for pool in ["nodessys", "nodeswork"] {
        nodes.switch(pool, Some("true")).await?;
    }
    let first = nodes.until_whole("nodeswork", 3).await?;
    let last = nodes.until_whole("nodessys", 1).await?;
    ensure!(
        fleet.writes() == writes,
        "a pool is shown without a write to Azure"
    );
    let shown = nodes.shown().get(&first[0]).await?;
    let status = &shown.data["status"];
    ensure!(
        status["powerState"] == "running" && status["version"] == "v1.33.3",
        "{status}"
    );
    ensure!(
        status["image"].is_string() && status["addresses"].is_array(),
        "{status}"
    );
    let told = nodes.describe("after").await?;
    ensure!(first.iter().all(|name| told.contains(name)), "{told}");
    joined_by_itself(&nodes).await?;
    deleted_marked_and_given_up(&nodes, &first).await?;
    last_system_node(&nodes, &last).await?;
    upgraded_with_surge(&nodes).await
}

/// A VM that joins with the labels of the pool is shown; its Machine goes with its node, and AKS is asked for nothing.
async fn joined_by_itself(nodes: &Machines<'_, '_>) -> Result<()> {
    const OWN: &str = "nodesown";
    let id =
        "azure:///subscriptions/s/resourceGroups/mine/providers/Microsoft.Compute/virtualMachines/nodesown";
    let node: Node = serde_json::from_value(json!({"metadata": {"name": OWN,
        "labels": {"kubernetes.azure.com/agentpool": "nodeswork"}, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "spec": {"providerID": id}}))?;
    nodes.nodes().create(&PostParams::default(), &node).await?;
    until(&nodes.machines(), OWN, "have its node", |machine| {
        machine.data["status"]["nodeRef"]["name"] == OWN
    })
    .await?;
    nodes.delete(OWN).await?;
    nodes.until_goes(OWN).await?;
    until_gone(&nodes.nodes(), OWN).await?;
    until_gone(&nodes.shown(), OWN).await?;
    ensure!(nodes.deleted() == 0, "no VM of others is touched");
    nodes.until_whole("nodeswork", 3).await?;
    Ok(())
}

async fn deleted_marked_and_given_up(nodes: &Machines<'_, '_>, first: &[String]) -> Result<()> {
    let fleet = nodes.fleet;
    // Deleted: its VM goes, another comes.
    nodes.delete(&first[1]).await?;
    nodes.until_goes(&first[1]).await?;
    let second = nodes.until_whole("nodeswork", 3).await?;
    ensure!(
        second.contains(&first[0]) && second.contains(&first[2]) && nodes.deleted() == 1,
        "{first:?}, then {second:?}"
    );
    // Marked and scaled away: that one and no other.
    nodes.mark(&first[0]).await?;
    fleet.scale("nodeswork", 2).await?;
    nodes.until_goes(&first[0]).await?;
    let third = nodes.until_whole("nodeswork", 2).await?;
    ensure!(
        third.iter().all(|one| second.contains(one)) && nodes.deleted() == 2,
        "{second:?}, then {third:?}"
    );
    // More again: nothing that is there goes.
    fleet.scale("nodeswork", 3).await?;
    let more = nodes.until_whole("nodeswork", 3).await?;
    ensure!(
        third.iter().all(|one| more.contains(one)),
        "{third:?}, then {more:?}"
    );
    fleet.scale("nodeswork", 2).await?;
    let third = nodes.until_whole("nodeswork", 2).await?;
    ensure!(nodes.deleted() == 3);
    // Given up by a health check.
    fleet.apply(&[health_check(&fleet.name)]).await?;
    nodes.report(&third[0], BROKEN).await?;
    nodes.until_goes(&third[0]).await?;
    let fourth = nodes.until_whole("nodeswork", 2).await?;
    ensure!(
        fourth.contains(&third[1]) && nodes.deleted() == 4,
        "{third:?}, then {fourth:?}"
    );
    Ok(())
}

fn health_check(cluster: &str) -> Value {
    json!({"apiVersion": CORE, "kind": "MachineHealthCheck", "metadata": {"name": "disks"},
        "spec": {"clusterName": cluster,
            "selector": {"matchLabels": {"cluster.x-k8s.io/pool-name": "nodeswork"}},
            "checks": {"unhealthyNodeConditions": [{"type": BROKEN, "status": "True", "timeoutSeconds": 0}]}}})
}

/// The last node of the last system pool is not drained before there is another.
async fn last_system_node(nodes: &Machines<'_, '_>, last: &[String]) -> Result<()> {
    nodes.delete(&last[0]).await?;
    until(&nodes.machines(), &last[0], "be kept", |machine| {
        let conditions = machine.data["status"]["conditions"].to_string();
        conditions.contains("slipway-last-system-node")
    })
    .await?;
    nodes.ensure_schedulable(last).await?;
    nodes.fleet.scale("nodessys", 2).await?;
    nodes.until_goes(&last[0]).await?;
    nodes.until_whole("nodessys", 2).await?;
    ensure!(nodes.deleted() == 5);
    Ok(())
}

/// Upgraded, with one node more for a while, and no Machine less in the end.
async fn upgraded_with_surge(nodes: &Machines<'_, '_>) -> Result<()> {
    let fleet = nodes.fleet;
    let before = nodes.names("nodeswork").await?;
    let mut uids = Vec::new();
    for machine in &before {
        uids.push(nodes.machines().get(machine).await?.uid());
    }
    fleet.change_plane(json!({"version": NEXT})).await?;
    until(&fleet.planes(), "nodes", "run the next version", |plane| {
        plane.data["status"]["version"] == NEXT
    })
    .await?;
    let version = json!({"spec": {"template": {"spec": {"version": NEXT}}}});
    fleet.merge(&fleet.machine_pools(), "nodeswork", version).await?;
    fleet
        .until_pool("nodeswork", |shown| {
            shown["currentOrchestratorVersion"] == "1.34.1"
        })
        .await?;
    let after = nodes.until_whole("nodeswork", 2).await?;
    ensure!(
        after == before && nodes.deleted() == 5,
        "{before:?}, then {after:?}"
    );
    let shown = nodes.shown();
    for (machine, uid) in after.iter().zip(uids) {
        let upgraded = until(&shown, machine, "tell its version", |shown| {
            shown.data["status"]["version"] == NEXT
        });
        upgraded.await?;
        let machine = nodes.machines().get(machine).await?;
        ensure!(machine.uid() == uid, "{} is another", machine.name_any());
    }
    Ok(())
}

/// What AKS scales is shown; then machines are switched off, and neither VM nor node goes with them.
async fn scaled_by_aks_and_switched_off(world: &World) -> Result<()> {
    let fleet = world.fleet("bysize").await?.backed()?;
    let nodes = classic(&fleet);
    let scaling = json!({"scaling": {"minSize": 1, "maxSize": 5}});
    let pools = [system("bysizesys"), pool("bysizework", "User", 2, scaling)];
    fleet.create(&json!({}), &pools).await?;
    let often = json!({"metadata": {"annotations": {READ_OFTEN: "1s"}}});
    fleet.merge(&fleet.pools(), "bysizework", often).await?;
    nodes.switch("bysizework", Some("true")).await?;
    let first = nodes.until_whole("bysizework", 2).await?;
    nodes.mark(&first[1]).await?;
    until(&fleet.pools(), "bysizework", "say who decides", |pool| {
        let conditions = pool.data["status"]["v1beta2"]["conditions"].to_string();
        conditions.contains("own autoscaler decides which nodes of the pool go")
    })
    .await?;
    for count in [4, 3] {
        let id = nodes.id("bysizework");
        ensure!(world.simulator().azure().set_pool_count(&id, count));
        nodes
            .until_whole("bysizework", usize::try_from(count)?)
            .await
            .with_context(|| format!("to {count}"))?;
    }
    ensure!(nodes.deleted() == 0, "AKS decides");
    nodes.until_off("bysizework").await?;
    nodes.switch("bysizework", Some("true")).await?;
    nodes.until_whole("bysizework", 3).await?;
    fleet.delete().await
}

/// `clusterctl move`: Machines and what shows them go along, and neither VM nor node is touched. There, they are as alive as here.
async fn moved_with_machines(world: &World) -> Result<(Cluster, Manager)> {
    let fleet = world.fleet("along").await?.backed()?;
    let (there, before) = tokio::try_join!(
        async {
            let there = management("machines-there", true).await?;
            let manager = aks_manager::start(&there, &world.azure).await?;
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "along"}});
            install::install(&there.client(), &[namespace]).await?;
            Ok::<_, anyhow::Error>((there, manager))
        },
        async {
            let pools = [system("alongsys"), pool("alongwork", "User", 2, json!({}))];
            fleet.create(&json!({}), &pools).await?;
            classic(&fleet).switch("alongwork", Some("true")).await?;
            classic(&fleet).until_whole("alongwork", 2).await
        },
    )?;
    let (there, manager) = there;
    let nodes = classic(&fleet).identities(&before).await?;
    let writes = fleet.writes();
    let kubeconfig = there.kubeconfig().display().to_string();
    let arguments = ["move", "--namespace", "along", "--to-kubeconfig", &kubeconfig];
    world.management.clusterctl(&arguments).await?;
    let moved = Fleet {
        client: there.client(),
        ..fleet.clone()
    };
    let moved = classic(&moved);
    moved.fleet.until_ready(&["alongsys", "alongwork"]).await?;
    ensure!(moved.until_whole("alongwork", 2).await? == before);
    ensure!(moved.identities(&before).await? == nodes, "the nodes of before");
    moved.ensure_schedulable(&before).await?;
    ensure!(
        fleet.writes() == writes && moved.deleted() == 0,
        "{:?}",
        fleet.writes()
    );
    for api in [classic(&fleet).machines(), classic(&fleet).shown()] {
        let left = api.list(&ListParams::default()).await?;
        ensure!(left.items.is_empty(), "machines stayed behind");
    }
    moved.delete(&before[0]).await?;
    moved.until_goes(&before[0]).await?;
    let after = moved.until_whole("alongwork", 2).await?;
    ensure!(after.contains(&before[1]) && moved.deleted() == 1, "{after:?}");
    moved.fleet.delete().await?;
    Ok((there, manager))
}
