//! Where Machines come from, but for MachineDeployments of their own: infrastructure machine templates, a MachinePool with machines, a
//! MachineSet, a ClusterClass.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use kube::ResourceExt;
use serde_json::json;
use slipway_testbed::wait::until;

use super::{
    fleet::{Fleet, infrastructure, sizes},
    world::{BOOTSTRAP, CLASS, CONTROL_PLANE, CORE, HOSTS, VERSION, World, objects},
};

/// The second design of karpenter-provider-cluster-api's document, as its sequence diagram has it: templates are listed and become
/// instance types, one is chosen, a Machine is made of it, and the claim's status follows that Machine.
pub async fn machine_templates(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "templates").await?;
    let template = |name: &str, cpu: &str, price: &str, labels: serde_json::Value| {
        json!({"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "metadata": {"name": name, "labels": labels,
            "annotations": {"capacity.cluster-autoscaler.kubernetes.io/price": price}},
            "spec": {"template": {"spec": {"capacity": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}}}})
    };
    let taken = json!({"fleet": "edge"});
    fleet
        .apply(&[
            template("small", "2", "0.1", taken.clone()),
            template("large", "4", "0.15", taken),
            // Cheaper than all, and not of the filter.
            template("foreign", "4", "0.01", json!({})),
            json!({"apiVersion": BOOTSTRAP, "kind": "TestHostConfigTemplate", "metadata": {"name": "workers"},
                "spec": {"template": {"spec": {"dataSecretName": "bootstrap"}}}}),
        ])
        .await?;
    fleet
        .apply(&fleet.node_pool(json!({
            "scalableResource": {"group": "infrastructure.cluster.x-k8s.io", "kind": "TestHostMachineTemplate"},
            "labels": ["fleet=edge"],
            "machineTemplate": {"version": VERSION, "bootstrapRef": {"apiGroup": "bootstrap.cluster.x-k8s.io",
                "kind": "TestHostConfigTemplate", "name": "workers"}},
        })))
        .await?;
    fleet.deploy("web", 3).await?;
    fleet.until_running("web", 3).await?;
    fleet.until_one_to_one(2).await?;
    for claim in fleet.claims().await? {
        // One claim, one Machine, of the claim's name; what it is made of carries the name too.
        let machine = fleet.core("Machine").get(&claim.name_any()).await?;
        assert!(
            machine
                .owner_references()
                .iter()
                .all(|owner| owner.kind == "Cluster")
        );
        let host = fleet.there(HOSTS, "TestHostMachine");
        let host = host.get(&claim.name_any()).await?;
        let from = host.annotations().get("cluster.x-k8s.io/cloned-from-name");
        assert_ne!(from.context("a template")?, "foreign");
        assert_eq!(
            claim.data["status"]["providerID"],
            machine.data["spec"]["providerID"]
        );
    }
    fleet.to_zero("web").await?;
    for (version, kind) in [(HOSTS, "TestHostMachine"), (BOOTSTRAP, "TestHostConfig")] {
        let left = fleet.there(version, kind);
        let left = left.list(&kube::api::ListParams::default()).await?.items;
        let left: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
        let control = format!("{}-control", fleet.name);
        assert!(left.iter().all(|name| *name == control), "{left:?} are left");
    }
    Ok(())
}

pub async fn a_machine_pool(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "pool").await?;
    fleet
        .apply(&[
            json!({"apiVersion": HOSTS, "kind": "TestHostMachinePool", "metadata": {"name": "workers"}, "spec":
                {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}),
            json!({"apiVersion": CORE, "kind": "MachinePool", "metadata": {"name": "workers", "annotations": sizes()},
                "spec": {"clusterName": fleet.name, "replicas": 0, "template": {"spec": {"clusterName": fleet.name,
                "version": VERSION, "bootstrap": {"dataSecretName": "bootstrap"},
                "infrastructureRef": infrastructure("TestHostMachinePool", "workers")}}}}),
        ])
        .await?;
    let class = json!({"scalableResource": {"group": "cluster.x-k8s.io", "kind": "MachinePool"}});
    fleet.apply(&fleet.node_pool(class)).await?;
    fleet.deploy("web", 3).await?;
    fleet.until_running("web", 3).await?;
    fleet.until_one_to_one(2).await?;
    let pool = fleet.core("MachinePool").get("workers").await?;
    assert_eq!(pool.data["spec"]["replicas"], 2);
    fleet.to_zero("web").await?;
    let pool = fleet.core("MachinePool").get("workers").await?;
    assert_eq!(pool.data["spec"]["replicas"], 0);
    Ok(())
}

/// MachineSets that no MachineDeployment owns: which of them is the cheapest, a price list says; one with a typo is left out, and told.
pub async fn machine_sets(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::found(world, "set").await?;
    let set = |name: &str, memory: &str| {
        let mut set = fleet.machine_deployment();
        set["kind"] = json!("MachineSet");
        set["metadata"]["name"] = json!(name);
        let annotations = &mut set["metadata"]["annotations"];
        annotations["capacity.cluster-autoscaler.kubernetes.io/price"] = json!("");
        annotations["capacity.cluster-autoscaler.kubernetes.io/memory"] = json!(memory);
        annotations["capacity.cluster-autoscaler.kubernetes.io/labels"] =
            json!(format!("node.kubernetes.io/instance-type={name}"));
        set["spec"]["selector"]["matchLabels"] = json!({"pool": name});
        set["spec"]["template"]["metadata"]["labels"] = json!({"pool": name});
        set
    };
    let prices = "dear 0.5\nworkers 0.2 # the cheapest that can be had\nbroken 0.1\n";
    fleet
        .apply(&[
            set("dear", "8Gi"),
            set("workers", "8Gi"),
            set("broken", "8gb"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prices"}, "data": {"prices": prices}}),
        ])
        .await?;
    let class = json!({"scalableResource": {"group": "cluster.x-k8s.io", "kind": "MachineSet"},
        "price": {"configMap": {"namespace": fleet.name, "name": "prices"}}});
    fleet.apply(&fleet.node_pool(class)).await?;
    let classes = objects(&fleet.client, None, CLASS, "ClusterAPINodeClass");
    let said = until(&classes, &fleet.name, "say what is wrong", |class| {
        let conditions = class.data["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|one| one["type"] == "ValidationSucceeded" && one["status"] == "False")
    })
    .await?;
    assert!(
        said.data.to_string().contains("MachineSet/"),
        "it names the object: {}",
        said.data
    );
    fleet
        .until_told("MachineSet", "broken", "InvalidAnnotation")
        .await?;
    fleet.deploy("web", 3).await?;
    fleet.until_running("web", 3).await?;
    fleet.until_one_to_one(2).await?;
    let sets = fleet.core("MachineSet");
    let replicas = async |name: &str| -> Result<Option<i64>> {
        Ok(sets.get(name).await?.data["spec"]["replicas"].as_i64())
    };
    assert_eq!(replicas("workers").await?, Some(2));
    assert_eq!(
        (replicas("dear").await?, replicas("broken").await?),
        (Some(0), Some(0))
    );
    fleet.to_zero("web").await?;
    assert_eq!(replicas("workers").await?, Some(0));
    Ok(())
}

/// A MachineDeployment of a topology, whose replicas the topology leaves to the autoscaler.
pub async fn a_cluster_class(world: &Arc<World>) -> Result<()> {
    let fleet = Fleet::founded_by(world, "class", |name| {
        let template = |version: &str, kind: &str| json!({"templateRef": {"apiVersion": version, "kind": kind, "name": "workers"}});
        let of = |version: &str, kind: &str, spec: serde_json::Value| {
            json!({"apiVersion": version, "kind": kind, "metadata": {"name": "workers"}, "spec": {"template": {"spec": spec}}})
        };
        vec![
            of(HOSTS, "TestHostClusterTemplate", json!({})),
            of(CONTROL_PLANE, "TestHostControlPlaneTemplate", json!({})),
            of(BOOTSTRAP, "TestHostConfigTemplate", json!({"dataSecretName": "bootstrap"})),
            json!({"apiVersion": CORE, "kind": "ClusterClass", "metadata": {"name": "edge"}, "spec": {
                "infrastructure": template(HOSTS, "TestHostClusterTemplate"),
                "controlPlane": template(CONTROL_PLANE, "TestHostControlPlaneTemplate"),
                "workers": {"machineDeployments": [{"class": "workers",
                    "bootstrap": template(BOOTSTRAP, "TestHostConfigTemplate"),
                    "infrastructure": template(HOSTS, "TestHostMachineTemplate"),
                    "naming": {"template": "{{ .machineDeployment.topologyName }}"}}]}}}),
            json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": name}, "spec": {"topology": {
                "classRef": {"name": "edge"}, "version": VERSION,
                "workers": {"machineDeployments": [{"class": "workers", "name": "workers",
                    "metadata": {"annotations": sizes()}}]}}}}),
        ]
    })
    .await?;
    fleet.apply(&fleet.node_pool(json!({}))).await?;
    fleet.deploy("web", 3).await?;
    fleet.until_running("web", 3).await?;
    fleet.until_one_to_one(2).await?;
    let workers = fleet.core("MachineDeployment").get("workers").await?;
    assert_eq!(workers.data["spec"]["replicas"], 2);
    assert!(workers.labels().contains_key("topology.cluster.x-k8s.io/owned"));
    fleet.to_zero("web").await?;
    let workers = fleet.core("MachineDeployment").get("workers").await?;
    assert_eq!(
        workers.data["spec"]["replicas"], 0,
        "and the topology leaves it so"
    );
    Ok(())
}
