//! For each story a namespace with a Cluster, its hosts, a NodePool and a NodeClass.

use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_testbed::{hosts::Hosts, wait::until};

use super::world::{
    CLASS, CORE, HOSTS, KARPENTER, VERSION, World, apply, eventually, is_cluster_apis, objects,
};

/// On a Machine: the uid of its claim.
const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim";

/// One story's part of the cluster. Its Cluster, NodePool and NodeClass have the namespace's name.
pub struct Fleet {
    /// To the cluster that is scaled.
    pub client: Client,
    management: Client,
    pub name: String,
    pub hosts: Hosts,
}

impl Fleet {
    /// A Cluster with a control plane, and no NodePool yet.
    pub async fn found(world: &Arc<World>, prefix: &str) -> Result<Fleet> {
        Self::founded_by(world, prefix, cluster).await
    }

    /// A Cluster that these manifests make, given its name.
    pub async fn founded_by(
        world: &Arc<World>,
        prefix: &str,
        cluster: impl FnOnce(&str) -> Vec<Value>,
    ) -> Result<Fleet> {
        let name = world.cluster.namespace(prefix).await?;
        let hosts = Hosts::start(&world.cluster, &name, world.scaled()).await?;
        hosts.give_kubeconfig(&name).await?;
        if let Some(workload) = &world.workload {
            let mut namespace = Namespace::default();
            namespace.metadata.name = Some(name.clone());
            let namespaces: Api<Namespace> = Api::all(workload.client());
            namespaces.create(&PostParams::default(), &namespace).await?;
        }
        let fleet = Fleet {
            client: world.scaled().client(),
            management: world.cluster.client(),
            hosts,
            name,
        };
        fleet
            .apply(&[
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bootstrap"},
                    "stringData": {"value": "#!/bin/sh\n"}}),
                json!({"apiVersion": HOSTS, "kind": "TestHostMachineTemplate", "metadata": {"name": "workers"}, "spec":
                    {"template": {"spec": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}}}),
            ])
            .await?;
        fleet.apply(&cluster(&fleet.name)).await?;
        Ok(fleet)
    }

    /// Each to its cluster; Secrets are bootstrap data.
    pub async fn apply(&self, manifests: &[Value]) -> Result<()> {
        for manifest in manifests {
            let version = manifest["apiVersion"].as_str().unwrap_or_default();
            let group = version.split('/').next().unwrap_or_default();
            let is_there = is_cluster_apis(group) || manifest["kind"] == "Secret";
            let client = if is_there { &self.management } else { &self.client };
            apply(client, &self.name, std::slice::from_ref(manifest)).await?;
        }
        Ok(())
    }

    pub fn core(&self, kind: &str) -> Api<DynamicObject> {
        self.there(CORE, kind)
    }

    /// Objects of a kind in the management cluster.
    pub fn there(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        objects(&self.management, Some(&self.name), api_version, kind)
    }

    /// A MachineDeployment of four-core workers, scaled between none and five.
    pub fn machine_deployment(&self) -> Value {
        self.machine_deployment_at("workers", "0.2")
    }

    /// One of this name whose machines cost so much.
    pub fn machine_deployment_at(&self, name: &str, price: &str) -> Value {
        let mut annotations = sizes();
        annotations["capacity.cluster-autoscaler.kubernetes.io/price"] = json!(price);
        json!({"apiVersion": CORE, "kind": "MachineDeployment", "metadata": {"name": name, "annotations": annotations},
            "spec": {"clusterName": self.name, "replicas": 0, "selector": {"matchLabels": {"pool": name}},
            "template": {"metadata": {"labels": {"pool": name}}, "spec": {"clusterName": self.name, "version": VERSION,
                "bootstrap": {"dataSecretName": "bootstrap"},
                "infrastructureRef": infrastructure("TestHostMachineTemplate", "workers")}}}})
    }

    /// A NodePool whose nodes nobody gives up, and its NodeClass; `class` is what the NodeClass says beside its scope.
    pub fn node_pool(&self, class: Value) -> Vec<Value> {
        self.disrupted_pool(class, &json!({"consolidateAfter": "Never"}))
    }

    /// The same with nodes that are given up as this says.
    pub fn disrupted_pool(&self, mut class: Value, disruption: &Value) -> Vec<Value> {
        let name = &self.name;
        class["clusterName"] = json!(name);
        class["namespace"] = json!(name);
        vec![
            json!({"apiVersion": CLASS, "kind": "ClusterAPINodeClass", "metadata": {"name": name}, "spec": class}),
            json!({"apiVersion": KARPENTER, "kind": "NodePool", "metadata": {"name": name}, "spec": {"limits": {"cpu": "40"},
                "disruption": disruption, "template": {"spec": {"requirements": [], "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io",
                    "kind": "ClusterAPINodeClass", "name": name}}}}}),
        ]
    }

    /// Pods of which two share a node, on nodes of this story's NodePool.
    pub async fn deploy(&self, name: &str, replicas: u32) -> Result<()> {
        let requests = json!({"cpu": "1500m", "memory": "1Gi"});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec":
            {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"nodeSelector": {"karpenter.sh/nodepool": self.name},
            "containers": [{"name": "main", "image": "web", "resources": {"requests": requests}}]}}}});
        self.apply(&[deployment]).await
    }

    /// The Deployment has so many pods from now on.
    pub async fn scale(&self, name: &str, replicas: u32) -> Result<()> {
        let deployments = objects(&self.client, Some(&self.name), "apps/v1", "Deployment");
        let scaled = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments.patch(name, &PatchParams::default(), &scaled).await?;
        Ok(())
    }

    /// Changes the NodePool.
    pub async fn merge_pool(&self, patch: Value) -> Result<()> {
        let pools = objects(&self.client, None, KARPENTER, "NodePool");
        let patch = Patch::Merge(patch);
        pools.patch(&self.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The Nodes of this story's NodePool.
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let mine = ListParams::default().labels(&format!("karpenter.sh/nodepool={}", self.name));
        Ok(nodes.list(&mine).await?.items)
    }

    pub async fn until_running(&self, name: &str, pods: u32) -> Result<()> {
        let deployments = objects(&self.client, Some(&self.name), "apps/v1", "Deployment");
        until(&deployments, name, "run its pods", |deployment| {
            deployment.data["status"]["readyReplicas"] == pods
        })
        .await?;
        Ok(())
    }

    /// How many pods of a Deployment run.
    pub async fn running(&self, name: &str) -> Result<u64> {
        let deployments = objects(&self.client, Some(&self.name), "apps/v1", "Deployment");
        let deployment = deployments.get(name).await?;
        Ok(deployment.data["status"]["readyReplicas"].as_u64().unwrap_or(0))
    }

    /// Waits until an event of this reason is on an object.
    pub async fn until_told(&self, kind: &str, name: &str, reason: &str) -> Result<()> {
        let client = if kind == "Pod" {
            &self.client
        } else {
            &self.management
        };
        let events = objects(client, Some(&self.name), "events.k8s.io/v1", "Event");
        eventually(&format!("{kind} {name} is told {reason}"), || async {
            let all = events.list(&ListParams::default()).await?.items;
            Ok(all.iter().any(|event| {
                let regarding = &event.data["regarding"];
                event.data["reason"] == reason && regarding["kind"] == kind && regarding["name"] == name
            }))
        })
        .await
    }

    /// The claims of this story's NodePool.
    pub async fn claims(&self) -> Result<Vec<DynamicObject>> {
        let mine = ListParams::default().labels(&format!("karpenter.sh/nodepool={}", self.name));
        let all = objects(&self.client, None, KARPENTER, "NodeClaim");
        Ok(all.list(&mine).await?.items)
    }

    /// Its Machines but for the control plane.
    pub async fn machines(&self) -> Result<Vec<DynamicObject>> {
        let workers = ListParams::default().labels("!cluster.x-k8s.io/control-plane");
        Ok(self.core("Machine").list(&workers).await?.items)
    }

    /// Waits until so many claims are ready, each with a Machine of its own that has a Node, and there are no other Machines.
    pub async fn until_one_to_one(&self, expected: usize) -> Result<()> {
        eventually("claims and Machines are one to one", || async {
            Ok(self
                .settled()
                .await?
                .is_some_and(|claims| claims.len() == expected))
        })
        .await
    }

    /// The same, whatever their number; answers with the claims' names.
    pub async fn until_settled(&self) -> Result<Vec<String>> {
        eventually("claims and Machines are one to one", || async {
            Ok(self.settled().await?.is_some())
        })
        .await?;
        let claims = self.claims().await?;
        Ok(claims.iter().map(ResourceExt::name_any).collect())
    }

    /// The claims, if they are ready and one to one with Machines.
    async fn settled(&self) -> Result<Option<Vec<DynamicObject>>> {
        let (claims, machines) = (self.claims().await?, self.machines().await?);
        let is_ready = claims.iter().all(|claim| holds(claim, "Ready"));
        let mut of_claims: Vec<Option<String>> = claims.iter().map(ResourceExt::uid).collect();
        let claim_of = |machine: &DynamicObject| machine.labels().get(CLAIM).cloned();
        let mut of_machines: Vec<Option<String>> = machines.iter().map(claim_of).collect();
        of_claims.sort();
        of_machines.sort();
        Ok((is_ready && of_claims == of_machines).then_some(claims))
    }

    /// Everything goes: pods, claims, Machines and Nodes.
    pub async fn to_zero(&self, deployment: &str) -> Result<()> {
        let deployments = objects(&self.client, Some(&self.name), "apps/v1", "Deployment");
        let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
        deployments
            .patch(deployment, &PatchParams::default(), &none)
            .await?;
        until(&deployments, deployment, "have no pods", |deployment| {
            deployment.data["status"]["replicas"].as_i64().unwrap_or(0) == 0
        })
        .await?;
        let claims = objects(&self.client, None, KARPENTER, "NodeClaim");
        for claim in self.claims().await? {
            claims.delete(&claim.name_any(), &DeleteParams::default()).await?;
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let mine = ListParams::default().labels(&format!("karpenter.sh/nodepool={}", self.name));
        eventually("nothing is left", || async {
            let machines = self.machines().await?.len();
            let claims = self.claims().await?.len();
            Ok(machines + claims + nodes.list(&mine).await?.items.len() == 0)
        })
        .await
    }
}

/// A Cluster whose control plane is one Machine.
fn cluster(name: &str) -> Vec<Value> {
    let control = format!("{name}-control");
    vec![
        json!({"apiVersion": HOSTS, "kind": "TestHostCluster", "metadata": {"name": name}, "spec": {}}),
        json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": name}, "spec": {"infrastructureRef":
            {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "TestHostCluster", "name": name}}}),
        // Without a control plane provider, a Machine with this label makes the control plane initialized.
        json!({"apiVersion": HOSTS, "kind": "TestHostMachine", "metadata": {"name": control}, "spec": {}}),
        json!({"apiVersion": CORE, "kind": "Machine", "metadata": {"name": control,
            "labels": {"cluster.x-k8s.io/control-plane": ""}}, "spec": {"clusterName": name, "version": VERSION,
            "bootstrap": {"dataSecretName": "bootstrap"}, "infrastructureRef": infrastructure("TestHostMachine", &control)}}),
    ]
}

pub fn infrastructure(kind: &str, name: &str) -> Value {
    json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": kind, "name": name})
}

/// Cluster Autoscaler's annotations: none to five machines of four cores.
pub fn sizes() -> Value {
    json!({
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "0",
        "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "5",
        "capacity.cluster-autoscaler.kubernetes.io/cpu": "4",
        "capacity.cluster-autoscaler.kubernetes.io/memory": "8Gi",
        "capacity.cluster-autoscaler.kubernetes.io/price": "0.2",
    })
}

pub fn holds(object: &DynamicObject, condition: &str) -> bool {
    let conditions = object.data["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == condition && one["status"] == "True")
}
