//! The nodes of a pool as Machines, as stories of either API look at them: the VMs in Azure, the objects that show them, and the
//! Machines that core makes of those.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_testbed::{
    audit::Request,
    rights::{self, Right},
    wait::until_gone,
};

use crate::aks_world::{AZURE, CORE, Fleet, SUBSCRIPTION};

const SWITCH: &str = "slipway.dev/machines";
const MARK: &str = "cluster.x-k8s.io/delete-machine";
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A fleet whose pools are of this kind.
pub struct Machines<'f, 'w> {
    pub fleet: &'f Fleet<'w>,
    /// The kind of its pools.
    pub pools: &'static str,
    /// The kind of the objects that show their VMs.
    pub shown: &'static str,
}

pub fn classic<'f, 'w>(fleet: &'f Fleet<'w>) -> Machines<'f, 'w> {
    Machines {
        fleet,
        pools: "AzureManagedMachinePool",
        shown: "AzureManagedMachine",
    }
}

pub fn inline<'f, 'w>(fleet: &'f Fleet<'w>) -> Machines<'f, 'w> {
    Machines {
        fleet,
        pools: "AzureASOManagedMachinePool",
        shown: "AzureASOManagedMachine",
    }
}

impl Machines<'_, '_> {
    pub fn pools(&self) -> Api<DynamicObject> {
        self.fleet.of(AZURE, self.pools)
    }

    pub fn shown(&self) -> Api<DynamicObject> {
        self.fleet.of(AZURE, self.shown)
    }

    pub fn machines(&self) -> Api<DynamicObject> {
        self.fleet.of(CORE, "Machine")
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.fleet.world.workload.client())
    }

    pub async fn switch(&self, pool: &str, on: Option<&str>) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {(SWITCH): on}}});
        self.fleet.merge(&self.pools(), pool, patch).await
    }

    /// The id of a pool in Azure.
    pub fn id(&self, pool: &str) -> String {
        format!(
            "/subscriptions/{SUBSCRIPTION}{}/agentPools/{pool}",
            self.fleet.aks()
        )
    }

    /// The names of a pool's VMs in Azure.
    fn vms(&self, pool: &str) -> Vec<String> {
        let azure = self.fleet.world.simulator().azure();
        let cluster = format!("/subscriptions/{SUBSCRIPTION}{}", self.fleet.aks());
        let of_pool = azure.nodes(&cluster).into_iter().filter(|node| node.pool == pool);
        let mut names: Vec<String> = of_pool.map(|node| node.name).collect();
        names.sort();
        names
    }

    async fn of_pool(&self, api: &Api<DynamicObject>, pool: &str) -> Result<Vec<DynamicObject>> {
        let labels = ListParams::default().labels(&format!("cluster.x-k8s.io/pool-name={pool}"));
        Ok(api.list(&labels).await?.items)
    }

    /// The names of a pool's Machines, in their order.
    pub async fn names(&self, pool: &str) -> Result<Vec<String>> {
        Ok(names(&self.of_pool(&self.machines(), pool).await?))
    }

    /// A pool has so many VMs, each of them an object that shows it and a Machine with its node, and nobody deletes any. They span
    /// kinds and clusters, so it is looked again and again.
    pub async fn until_whole(&self, pool: &str, count: usize) -> Result<Vec<String>> {
        let mut last = String::new();
        for _ in 0..600 {
            let machines = self.of_pool(&self.machines(), pool).await?;
            let shown = self.of_pool(&self.shown(), pool).await?;
            let vms = self.vms(pool);
            let has_node = |machine: &DynamicObject| {
                machine.metadata.deletion_timestamp.is_none()
                    && machine.data["status"]["nodeRef"]["name"] == json!(machine.name_any())
                    && machine.data["status"]["phase"] == "Running"
            };
            if vms.len() == count
                && names(&machines) == vms
                && names(&shown) == vms
                && machines.iter().all(has_node)
            {
                return Ok(vms);
            }
            let lines: Vec<String> = machines
                .iter()
                .map(|one| {
                    let deleted = one.metadata.deletion_timestamp.is_some();
                    format!("{} (deleted: {deleted}): {}", one.name_any(), one.data["status"])
                })
                .collect();
            last = format!(
                "VMs {vms:?}, shown {:?}, Machines:\n{}",
                names(&shown),
                lines.join("\n")
            );
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        bail!("{pool} has not {count} Machines with nodes: {last}")
    }

    pub async fn delete(&self, machine: &str) -> Result<()> {
        self.machines().delete(machine, &DeleteParams::default()).await?;
        Ok(())
    }

    pub async fn mark(&self, machine: &str) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {(MARK): ""}}});
        self.fleet.merge(&self.machines(), machine, patch).await
    }

    pub async fn until_goes(&self, machine: &str) -> Result<()> {
        let gone = until_gone(&self.machines(), machine).await;
        gone.with_context(|| format!("Machine {machine}"))
    }

    /// A condition of the node as something that runs there reports it, e.g. a problem detector.
    pub async fn report(&self, node: &str, condition: &str) -> Result<()> {
        let at = "2026-01-01T00:00:00Z";
        let reported = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node},
            "status": {"conditions": [{"type": condition, "status": "True", "reason": "Test", "message": "",
                "lastTransitionTime": at, "lastHeartbeatTime": at}]}});
        let detector = PatchParams::apply("problem-detector").force();
        let patch = Patch::Apply(&reported);
        self.nodes().patch_status(node, &detector, &patch).await?;
        Ok(())
    }

    /// Nodes by name and identity: one that was made again is another.
    pub async fn identities(&self, machines: &[String]) -> Result<Vec<(String, Option<String>)>> {
        let mut found = Vec::new();
        for name in machines {
            found.push((name.clone(), self.nodes().get(name).await?.uid()));
        }
        Ok(found)
    }

    /// None of these nodes is drained.
    pub async fn ensure_schedulable(&self, machines: &[String]) -> Result<()> {
        for name in machines {
            let spec = self.nodes().get(name).await?.spec.unwrap_or_default();
            ensure!(spec.unschedulable != Some(true), "{name} is drained");
        }
        Ok(())
    }

    /// The VMs that AKS was asked to delete, in the order of the requests.
    pub fn deleted(&self) -> usize {
        let azure = self.fleet.world.simulator().azure();
        let pools = format!("{}/agentPools/", self.fleet.aks()).to_lowercase();
        let asked = azure.requests().filter(|request| {
            let path = request.path.to_lowercase();
            path.contains(&pools) && path.ends_with("/deletemachines") && request.status < 300
        });
        asked.count()
    }

    /// Machines are switched off: they and the objects go, and no VM and no node with them.
    pub async fn until_off(&self, pool: &str) -> Result<()> {
        let before = self.names(pool).await?;
        let (nodes, writes, deleted) = (
            self.identities(&before).await?,
            self.fleet.writes(),
            self.deleted(),
        );
        self.switch(pool, None).await?;
        for name in &before {
            self.until_goes(name).await?;
            until_gone(&self.shown(), name).await?;
        }
        ensure!(self.identities(&before).await? == nodes, "the nodes of before");
        ensure!(self.fleet.writes() == writes && self.deleted() == deleted);
        self.ensure_schedulable(&before).await
    }

    /// What clusterctl says of the Cluster, for the docs.
    pub async fn describe(&self, when: &str) -> Result<String> {
        let name = &self.fleet.name;
        let arguments = [
            "describe",
            "cluster",
            name,
            "--namespace",
            name,
            "--grouping=false",
        ];
        let told = self.fleet.world.management.clusterctl(&arguments).await?;
        for line in told.lines() {
            println!("report: describe {when}: {line}");
        }
        Ok(told)
    }
}

fn names(objects: &[DynamicObject]) -> Vec<String> {
    let mut names: Vec<String> = objects.iter().map(ResourceExt::name_any).collect();
    names.sort();
    names
}

/// The manager was refused nothing, and used every right that it declares for machines.
pub fn ensure_rights(roles: &[Value], requests: &[Request], shown: &str) -> Result<()> {
    let denied: Vec<String> = requests
        .iter()
        .filter(|request| request.was_denied())
        .map(ToString::to_string)
        .collect();
    ensure!(denied.is_empty(), "denied: {denied:?}");
    let shown = format!("{}s", shown.to_lowercase());
    let of_machines = |right: &&Right| {
        let resource = right.resource.split('/').next().unwrap_or_default();
        resource == "machines" || resource == shown
    };
    let declared = rights::declared(roles);
    let is_used = |right: &Right| {
        requests.iter().any(|request| {
            Right::new(&request.object.api_group, &request.resource(), &request.verb) == *right
        })
    };
    let unused: Vec<String> = declared
        .iter()
        .filter(of_machines)
        .filter(|right| !is_used(right))
        .map(ToString::to_string)
        .collect();
    ensure!(unused.is_empty(), "declared and not used: {unused:?}");
    Ok(())
}
