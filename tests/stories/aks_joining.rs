//! Nodes that are not AKS's own beside its pools: Machines of another infrastructure provider, given their bootstrap data by
//! the real kubeadm provider, join the cluster, and AKS's pools do not count them.

use anyhow::{Context, Result, ensure};
use kube::{ResourceExt, api::ListParams};
use serde_json::{Value, json};
use slipway_testbed::{hosts::Hosts, wait::until};

use crate::{
    aks_world::{AZURE, CORE, Fleet, VERSION, World, system},
    support::is_true,
};

const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io/v1beta2";
/// By the kubeconfig of the cluster, and by a token with the CA of the cluster.
const WAYS: [(&str, usize); 2] = [("byofile", 2), ("byotoken", 1)];

fn join(fleet: &Fleet<'_>, way: &str) -> Value {
    let registration = json!({"kubeletExtraArgs": [{"name": "cloud-provider", "value": "external"}]});
    if way == "byotoken" {
        return json!({"joinConfiguration": {"nodeRegistration": registration}});
    }
    let path = "/etc/kubernetes/admin.conf";
    let secret = json!({"name": format!("{}-kubeconfig", fleet.name), "key": "value"});
    json!({
        "files": [{"path": path, "owner": "root:root", "permissions": "0644", "contentFrom": {"secret": secret}}],
        "joinConfiguration": {"discovery": {"file": {"kubeConfigPath": path}}, "nodeRegistration": registration},
    })
}

fn machines(fleet: &Fleet<'_>, way: &str, replicas: usize) -> Vec<Value> {
    let group = format!("MC_{0}_{0}_westus3", fleet.name);
    let labels = json!({"pool": way});
    vec![
        json!({"apiVersion": BOOTSTRAP, "kind": "KubeadmConfigTemplate", "metadata": {"name": way},
            "spec": {"template": {"spec": join(fleet, way)}}}),
        json!({"apiVersion": AZURE, "kind": "TestHostMachineTemplate", "metadata": {"name": way},
            "spec": {"template": {"spec": {"nodeLabels": {"kubernetes.azure.com/cluster": group}}}}}),
        json!({"apiVersion": CORE, "kind": "MachineDeployment", "metadata": {"name": way}, "spec": {
            "clusterName": fleet.name, "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "clusterName": fleet.name, "version": VERSION,
                "bootstrap": {"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io",
                    "kind": "KubeadmConfigTemplate", "name": way}},
                "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io",
                    "kind": "TestHostMachineTemplate", "name": way}}}}}),
    ]
}

/// A cluster of the classic API and nodes of one's own; all go with the cluster.
pub async fn bring_your_own_nodes(world: &World) -> Result<()> {
    let fleet = world.fleet("byo").await?.backed()?;
    fleet.create(&json!({}), &[system("byosys")]).await?;
    let _hosts = join_own_nodes(&fleet, "byosys").await?;
    fleet.delete().await
}

/// Two join as the kubeconfig says, one by a token; the pool of one node beside them stays what it is. Without the hosts that are
/// returned nobody deletes their Machines.
pub async fn join_own_nodes(fleet: &Fleet<'_>, pool: &str) -> Result<Hosts> {
    let world = fleet.world;
    fleet.until_nodes(pool, 1).await?;
    let before = fleet.writes();
    let hosts = Hosts::start(&world.management, &fleet.name, &world.workload).await?;
    for (way, replicas) in WAYS {
        fleet.apply(&machines(fleet, way, replicas)).await?;
    }
    let deployments = fleet.of(CORE, "MachineDeployment");
    for (way, replicas) in WAYS {
        until(&deployments, way, "have its nodes", |deployment| {
            deployment.data["status"]["readyReplicas"] == json!(replicas)
        })
        .await?;
    }
    let all = fleet.of(CORE, "Machine").list(&ListParams::default()).await?;
    ensure!(all.items.len() == 3, "{} Machines", all.items.len());
    let cluster = fleet.clusters().get(&fleet.name).await?;
    let server = cluster.data["spec"]["controlPlaneEndpoint"]["host"]
        .as_str()
        .context("an address")?
        .to_owned();
    for machine in &all {
        let name = machine.name_any();
        ensure!(is_true(machine, "Ready"), "{name} is ready");
        let data = hosts.bootstrap_data(&name).context("bootstrap data")?;
        let data = String::from_utf8(data)?;
        let told = if machine.labels()["pool"] == "byotoken" {
            ["apiServerEndpoint", server.as_str(), "caCertHashes"]
        } else {
            [
                "/etc/kubernetes/admin.conf",
                "certificate-authority-data",
                "kubeConfigPath",
            ]
        };
        for part in told {
            ensure!(data.contains(part), "{name} is not told {part}");
        }
    }
    // They are none of the pool's, though they say whose cluster they are in.
    fleet.until_nodes(pool, 1).await?;
    ensure!(fleet.pool_shown(pool)?["count"] == 1);
    ensure!(fleet.writes() == before, "{:?}", &fleet.writes()[before.len()..]);
    Ok(hosts)
}
