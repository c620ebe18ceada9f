//! Scenarios about nodes as Machines, with Cluster API's core and its health checks: shown, deleted, chosen, given up, upgraded,
//! scaled by AKS, and switched off again. They run side by side in a world of their own.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_testbed::wait::until;

use crate::{
    aks_clusters::all_of,
    aks_world::{AZURE, CORE, Fleet, NEXT, READ_OFTEN, SUBSCRIPTION, World, pool, system},
};

const MACHINES: &str = "slipway.dev/machines";
/// A condition that something on the node reports, as a problem detector does.
const BROKEN: &str = "DiskBroken";

#[tokio::test(flavor = "multi_thread")]
async fn aks_nodes_live_as_machines() -> Result<()> {
    let world = World::start("a client secret".to_owned()).await?;
    all_of(vec![
        ("nodes as machines", Box::pin(nodes_as_machines(&world))),
        (
            "scaled by AKS and switched off",
            Box::pin(scaled_by_aks_and_switched_off(&world)),
        ),
    ])
    .await?;
    world.fleet("nodes").await?.delete().await
}

impl Fleet<'_> {
    async fn switch_machines(&self, pool: &str, on: Option<&str>) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {(MACHINES): on}}});
        self.merge(&self.pools(), pool, patch).await
    }

    async fn of_pool(&self, version: &str, kind: &str, pool: &str) -> Result<Vec<DynamicObject>> {
        let labels = ListParams::default().labels(&format!("cluster.x-k8s.io/pool-name={pool}"));
        Ok(self.of(version, kind).list(&labels).await?.items)
    }

    /// The names of a pool's Machines.
    async fn machines(&self, pool: &str) -> Result<Vec<String>> {
        let mut names: Vec<String> = self
            .of_pool(CORE, "Machine", pool)
            .await?
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        names.sort();
        Ok(names)
    }

    /// The pool has as many nodes as Machines, every Machine its node, and nobody deletes any.
    async fn until_machines(&self, pool: &str, count: usize) -> Result<Vec<String>> {
        self.until_nodes(pool, count).await?;
        let mut last = String::new();
        for _ in 0..600 {
            let machines = self.of_pool(CORE, "Machine", pool).await?;
            let shown = self.of_pool(AZURE, "AzureManagedMachine", pool).await?;
            let is_whole = |machine: &&DynamicObject| {
                machine.metadata.deletion_timestamp.is_none()
                    && machine.data["status"]["nodeRef"]["name"] == json!(machine.name_any())
            };
            if machines.len() == count
                && shown.len() == count
                && machines.iter().filter(is_whole).count() == count
            {
                return self.machines(pool).await;
            }
            let lines: Vec<String> = machines
                .iter()
                .map(|one| format!("{}: {}", one.name_any(), one.data["status"]))
                .collect();
            last = lines.join("\n");
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
        anyhow::bail!("{pool} has not {count} Machines with nodes: {last}")
    }

    async fn annotate_machine(&self, machine: &str, annotation: &str) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {(annotation): ""}}});
        self.merge(&self.of(CORE, "Machine"), machine, patch).await
    }

    async fn until_machine_goes(&self, pool: &str, machine: &str) -> Result<()> {
        let machines = self.of(CORE, "Machine");
        slipway_testbed::wait::until_gone(&machines, machine)
            .await
            .with_context(|| format!("{machine} of {pool}"))
    }

    fn deletions(&self) -> usize {
        let azure = self.world.simulator().azure();
        let path = format!("{}/agentPools", self.aks()).to_lowercase();
        azure
            .requests()
            .filter(|request| {
                let asked = request.path.to_lowercase();
                asked.contains(&path) && asked.ends_with("/deletemachines") && request.status < 300
            })
            .count()
    }

    async fn describe(&self, when: &str) -> Result<()> {
        let told = self
            .world
            .management
            .clusterctl(&[
                "describe",
                "cluster",
                &self.name,
                "--namespace",
                &self.name,
                "--grouping=false",
            ])
            .await?;
        for line in told.lines() {
            println!("report: describe {when}: {line}");
        }
        Ok(())
    }
}

fn nodes(fleet: &Fleet<'_>) -> Api<Node> {
    Api::all(fleet.world.workload.client())
}

/// A pool made without machines gets them; one is deleted, one is marked and scaled away, one is given up by a health check; the
/// pool is upgraded with one node more for a while; the last system node stays. What is left rests with its machines.
async fn nodes_as_machines(world: &World) -> Result<()> {
    let fleet = world.fleet("nodes").await?.backed()?;
    let work = pool("nodeswork", "User", 3, json!({}));
    fleet.create(&json!({}), &[system("nodessys"), work]).await?;
    fleet.until_nodes("nodeswork", 3).await?;
    fleet.describe("before").await?;
    ensure!(fleet.machines("nodeswork").await?.is_empty(), "off by default");
    for pool in ["nodessys", "nodeswork"] {
        fleet.switch_machines(pool, Some("true")).await?;
    }
    let first = fleet.until_machines("nodeswork", 3).await?;
    let last = fleet.until_machines("nodessys", 1).await?;
    let machine = fleet.of(AZURE, "AzureManagedMachine").get(&first[0]).await?;
    let status = &machine.data["status"];
    ensure!(
        status["powerState"] == "running" && status["version"] == "v1.33.3",
        "{status}"
    );
    ensure!(
        status["image"].is_string() && status["addresses"].is_array(),
        "{status}"
    );
    fleet.describe("after").await?;

    // Deleted: its VM goes, another comes.
    let machines = fleet.of(CORE, "Machine");
    machines.delete(&first[1], &DeleteParams::default()).await?;
    fleet.until_machine_goes("nodeswork", &first[1]).await?;
    let second = fleet.until_machines("nodeswork", 3).await?;
    ensure!(
        second.contains(&first[0]) && second.contains(&first[2]),
        "{second:?}"
    );
    ensure!(fleet.deletions() == 1);

    // Marked and scaled away: that one and no other.
    fleet
        .annotate_machine(&first[0], "cluster.x-k8s.io/delete-machine")
        .await?;
    fleet.scale("nodeswork", 2).await?;
    fleet.until_machine_goes("nodeswork", &first[0]).await?;
    let third = fleet.until_machines("nodeswork", 2).await?;
    ensure!(third.iter().all(|one| second.contains(one)), "{third:?}");
    ensure!(fleet.deletions() == 2);

    // Given up by a health check.
    fleet.apply(&[health_check(&fleet.name)]).await?;
    let broken = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": third[0]},
        "status": {"conditions": [{"type": BROKEN, "status": "True", "reason": "Test", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}});
    let detector = PatchParams::apply("problem-detector").force();
    nodes(&fleet)
        .patch_status(&third[0], &detector, &Patch::Apply(&broken))
        .await?;
    fleet.until_machine_goes("nodeswork", &third[0]).await?;
    let fourth = fleet.until_machines("nodeswork", 2).await?;
    ensure!(fourth.contains(&third[1]) && fleet.deletions() == 3, "{fourth:?}");

    // The last system node is not drained.
    machines.delete(&last[0], &DeleteParams::default()).await?;
    until(&machines, &last[0], "be kept", |machine| {
        let conditions = machine.data["status"]["conditions"].to_string();
        conditions.contains("slipway-last-system-node")
    })
    .await?;
    ensure!(
        nodes(&fleet)
            .get(&last[0])
            .await?
            .spec
            .unwrap_or_default()
            .unschedulable
            != Some(true)
    );
    fleet.scale("nodessys", 2).await?;
    fleet.until_machine_goes("nodessys", &last[0]).await?;
    fleet.until_machines("nodessys", 2).await?;
    ensure!(fleet.deletions() == 4);

    // Upgraded, with one node more for a while, and no Machine less in the end.
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
    let fifth = fleet.until_machines("nodeswork", 2).await?;
    ensure!(fifth == fourth && fleet.deletions() == 4, "{fifth:?}");
    for machine in &fifth {
        until(&machines, machine, "tell its version", |machine| {
            machine.data["spec"]["version"] == NEXT
        })
        .await?;
    }
    Ok(())
}

fn health_check(cluster: &str) -> Value {
    json!({"apiVersion": CORE, "kind": "MachineHealthCheck", "metadata": {"name": "disks"},
        "spec": {"clusterName": cluster,
            "selector": {"matchLabels": {"cluster.x-k8s.io/pool-name": "nodeswork"}},
            "checks": {"unhealthyNodeConditions": [{"type": BROKEN, "status": "True", "timeoutSeconds": 0}]}}})
}

/// What AKS scales is shown; then machines are switched off, and neither VM nor node goes with them.
async fn scaled_by_aks_and_switched_off(world: &World) -> Result<()> {
    let fleet = world.fleet("bysize").await?.backed()?;
    let scaling = json!({"scaling": {"minSize": 1, "maxSize": 5}});
    let pools = [system("bysizesys"), pool("bysizework", "User", 2, scaling)];
    fleet.create(&json!({}), &pools).await?;
    let often = json!({"metadata": {"annotations": {READ_OFTEN: "1s"}}});
    fleet.merge(&fleet.pools(), "bysizework", often).await?;
    fleet.switch_machines("bysizework", Some("true")).await?;
    fleet.until_machines("bysizework", 2).await?;
    let id = format!(
        "/subscriptions/{SUBSCRIPTION}{}/agentPools/bysizework",
        fleet.aks()
    );
    for count in [4, 3] {
        ensure!(world.simulator().azure().set_pool_count(&id, count));
        fleet
            .until_machines("bysizework", usize::try_from(count)?)
            .await
            .with_context(|| format!("to {count}"))?;
    }
    ensure!(fleet.deletions() == 0, "AKS decides");
    let before = fleet.machines("bysizework").await?;
    let uids = async || {
        let mut uids = Vec::new();
        for name in &before {
            uids.push(nodes(&fleet).get(name).await?.uid());
        }
        anyhow::Ok(uids)
    };
    let of_nodes = uids().await?;
    let writes = fleet.writes();
    fleet.switch_machines("bysizework", None).await?;
    for name in &before {
        fleet.until_machine_goes("bysizework", name).await?;
        let shown = fleet.of(AZURE, "AzureManagedMachine");
        slipway_testbed::wait::until_gone(&shown, name).await?;
    }
    ensure!(uids().await? == of_nodes, "the nodes of before");
    ensure!(fleet.writes() == writes && fleet.deletions() == 0);
    for name in &before {
        let node = nodes(&fleet).get(name).await?;
        ensure!(
            node.spec.unwrap_or_default().unschedulable != Some(true),
            "{name} is drained"
        );
    }
    // Deleted with machines on, the cluster leaves nothing behind.
    fleet.switch_machines("bysizework", Some("true")).await?;
    fleet.until_machines("bysizework", 3).await?;
    fleet.delete().await
}
