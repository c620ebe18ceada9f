//! Who is measured: how each autoscaler is installed and started, where its machines come from, and what the kernel says of it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use kube::{
    Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_kit::manager::{
    Manager, Setup, free_port,
    measure::{self, Memory},
};
use slipway_testbed::{Cluster, Part, Process, Program, hosts::Hosts, install, wait::until};

use super::{
    Arguments, USER,
    workload::{self, MACHINES, POOL},
};

const NAMESPACE: &str = "default";
const CORE: &str = "cluster.x-k8s.io/v1beta2";
const HOSTS: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const VERSION: &str = "v1.36.3";
/// More machines of a kind than any number of pods here needs.
const MOST: &str = "1000";

pub enum Side {
    Slipway(PathBuf),
    Karpenter { program: PathBuf, module: PathBuf },
}

impl Side {
    pub fn of(arguments: &Arguments) -> Result<Vec<Side>> {
        let mut sides: Vec<Side> = arguments.slipway.clone().map(Side::Slipway).into_iter().collect();
        if let Some((program, module)) = arguments
            .karpenter
            .clone()
            .zip(arguments.karpenter_module.clone())
        {
            sides.push(Side::Karpenter { program, module });
        }
        if sides.is_empty() {
            bail!("there is nobody to measure: name --slipway or --karpenter");
        }
        Ok(sides)
    }

    pub fn name(&self) -> &'static str {
        match self {
            Side::Slipway(_) => "slipway",
            Side::Karpenter { .. } => "karpenter_kwok",
        }
    }

    /// Karpenter's kwok provider makes its Nodes by itself.
    pub fn needs_cluster_api(&self) -> bool {
        matches!(self, Side::Slipway(_))
    }

    /// Installs and starts it, and waits until its NodePool is ready. It may do everything: its rights are not what is measured.
    pub async fn start(&self, cluster: &Cluster) -> Result<Autoscaler> {
        let folder = cluster.description().directory.join("autoscaler");
        fs::create_dir_all(&folder)?;
        let client = cluster.client();
        let autoscaler = match self {
            Side::Slipway(program) => {
                let setup = Setup::new(cluster, program, &folder, USER, Some("system:masters"))?
                    .with(["--providers=autoscaler"]);
                setup.install(cluster).await?;
                let hosts = Hosts::start(cluster, NAMESPACE, cluster).await?;
                hosts.give_kubeconfig(POOL).await?;
                workload::apply(&client, &machines()).await?;
                let manager = setup.start("slipway").await?;
                Autoscaler::Slipway {
                    manager,
                    _hosts: hosts,
                }
            }
            Side::Karpenter { program, module } => {
                let definitions = definitions(module)?;
                install::install(&client, &definitions).await?;
                let types = folder.join("instance-types.json");
                fs::write(&types, instance_types().to_string())?;
                let kubeconfig = folder.join("kubeconfig");
                fs::write(&kubeconfig, cluster.kubeconfig_as(USER, Some("system:masters")))?;
                node_class(&client).await?;
                let program = karpenter(program, &kubeconfig, &types)?;
                let launcher = cluster.parts().binary(Part::Launch);
                let process = Process::start(&launcher, &cluster.description().logs, program);
                Autoscaler::Karpenter(process.context("starting Karpenter")?)
            }
        };
        let (group, kind) = match self {
            Side::Slipway(_) => ("karpenter.cluster.x-k8s.io", "ClusterAPINodeClass"),
            Side::Karpenter { .. } => ("karpenter.kwok.sh", "KWOKNodeClass"),
        };
        workload::apply(&client, &[workload::node_pool(group, kind)]).await?;
        let pools = workload::api(&client, "karpenter.sh/v1", "NodePool");
        until(&pools, POOL, "be ready", |pool| {
            let conditions = pool.data["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
        })
        .await?;
        Ok(autoscaler)
    }
}

/// Karpenter's own definitions, and those of its kwok provider.
fn definitions(module: &Path) -> Result<Vec<Value>> {
    let mut definitions = Vec::new();
    for folder in ["pkg/apis/crds", "kwok/apis/crds"] {
        let folder = module.join(folder);
        let listed = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        for entry in listed {
            definitions.extend(install::parse(&fs::read_to_string(entry?.path())?)?);
        }
    }
    Ok(definitions)
}

/// The NodeClass of the kwok provider. Nothing of it says that it is ready, and NodePools wait for that.
async fn node_class(client: &Client) -> Result<()> {
    let (version, kind) = ("karpenter.kwok.sh/v1alpha1", "KWOKNodeClass");
    let class = json!({"apiVersion": version, "kind": kind, "metadata": {"name": POOL}, "spec": {}});
    workload::apply(client, &[class]).await?;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let classes = workload::api(client, version, kind);
    classes
        .patch_status(POOL, &PatchParams::default(), &Patch::Merge(&ready))
        .await
        .context("making the NodeClass ready")?;
    Ok(())
}

fn karpenter(program: &Path, kubeconfig: &Path, types: &Path) -> Result<Program> {
    let variable = |name: &str, value: &dyn std::fmt::Display| (name.to_owned(), value.to_string());
    Ok(Program {
        name: "karpenter".to_owned(),
        path: program.to_owned(),
        arguments: Vec::new(),
        environment: BTreeMap::from([
            variable("KUBECONFIG", &kubeconfig.display()),
            variable("INSTANCE_TYPES_FILE_PATH", &types.display()),
            variable("LEADER_ELECTION_NAMESPACE", &"kube-system"),
            variable("SYSTEM_NAMESPACE", &"kube-system"),
            variable("KARPENTER_SERVICE", &"karpenter"),
            variable("METRICS_PORT", &free_port()?),
            variable("HEALTH_PROBE_PORT", &free_port()?),
        ]),
    })
}

/// The machines as Karpenter's kwok provider reads them.
fn instance_types() -> Value {
    let requirement = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let machine = |(name, cores, memory, price): &(&str, u32, &str, f64)| {
        json!({"name": name, "architecture": "amd64", "operatingSystems": ["linux"],
            "resources": {"cpu": cores.to_string(), "memory": memory, "ephemeral-storage": "100Gi", "pods": "110"},
            "offerings": [{"Price": price, "Available": true, "Requirements": [
                requirement("karpenter.sh/capacity-type", "on-demand"),
                requirement("topology.kubernetes.io/zone", "a")]}]})
    };
    MACHINES.iter().map(machine).collect()
}

/// A Cluster whose control plane is one Machine, and a MachineDeployment for each kind of machine.
fn machines() -> Vec<Value> {
    let metadata = |name: &str| json!({"name": name, "namespace": NAMESPACE});
    let infrastructure = |kind: &str, name: &str| json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": kind, "name": name});
    let machine = |kind: &str, name: &str| {
        json!({"clusterName": POOL, "version": VERSION, "bootstrap": {"dataSecretName": "bootstrap"},
            "infrastructureRef": infrastructure(kind, name)})
    };
    let mut control = metadata("control");
    control["labels"] = json!({"cluster.x-k8s.io/control-plane": ""});
    let mut manifests = vec![
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("bootstrap"), "stringData": {"value": "#!/bin/sh\n"}}),
        json!({"apiVersion": HOSTS, "kind": "TestHostCluster", "metadata": metadata(POOL), "spec": {}}),
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": metadata(POOL),
            "spec": {"infrastructureRef": infrastructure("TestHostCluster", POOL)}}),
        json!({"apiVersion": HOSTS, "kind": "TestHostMachine", "metadata": metadata("control"), "spec": {}}),
        json!({"apiVersion": CORE, "kind": "Machine", "metadata": control, "spec": machine("TestHostMachine", "control")}),
        json!({"apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
            "metadata": {"name": POOL}, "spec": {"clusterName": POOL, "namespace": NAMESPACE}}),
    ];
    for (name, cores, memory, price) in MACHINES {
        let labels = json!({"pool": name});
        let capacity = json!({"cpu": cores.to_string(), "memory": memory, "pods": "110"});
        manifests.push(
            json!({"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "metadata": metadata(name),
            "spec": {"template": {"spec": {"capacity": capacity}}}}),
        );
        let mut named = metadata(name);
        named["annotations"] = json!({
            "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "0",
            "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": MOST,
            "capacity.cluster-autoscaler.kubernetes.io/cpu": cores.to_string(),
            "capacity.cluster-autoscaler.kubernetes.io/memory": memory,
            "capacity.cluster-autoscaler.kubernetes.io/price": price.to_string(),
            "capacity.cluster-autoscaler.kubernetes.io/labels": format!("node.kubernetes.io/instance-type={name}"),
        });
        manifests.push(
            json!({"apiVersion": CORE, "kind": "MachineDeployment", "metadata": named, "spec": {
            "clusterName": POOL, "replicas": 0, "selector": {"matchLabels": {"pool": name}},
            "template": {"metadata": {"labels": labels}, "spec": machine("TestHostMachineTemplate", name)}}}),
        );
    }
    manifests
}

/// The autoscaler that runs. Dropping it kills it.
pub enum Autoscaler {
    Slipway { manager: Manager, _hosts: Hosts },
    Karpenter(Process),
}

impl Autoscaler {
    fn id(&self) -> u32 {
        match self {
            Autoscaler::Slipway { manager, .. } => manager.id(),
            Autoscaler::Karpenter(process) => process.id(),
        }
    }

    /// One that has ended has nothing to measure.
    pub fn check(&self) -> Result<()> {
        match self {
            Autoscaler::Slipway { manager, .. } => manager.check(),
            Autoscaler::Karpenter(process) => match process.ended() {
                Some(status) => bail!("Karpenter ended with {status}:\n{}", process.tail()),
                None => Ok(()),
            },
        }
    }

    pub fn cpu_seconds(&self) -> Result<f64> {
        measure::cpu_seconds(self.id())
    }

    pub fn memory(&self) -> Result<Memory> {
        measure::memory(self.id())
    }
}
