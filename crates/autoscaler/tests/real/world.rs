//! One real cluster that is its own management cluster, with Cluster API, kube-scheduler and kwok; and in it, for each story, a
//! namespace with a Cluster, its hosts, a NodePool and a NodeClass.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_kit::manager::roles;
use slipway_runtime::{Context, Metrics, Settings, settings::Flags};
use slipway_testbed::{
    Cluster, ManagementCluster,
    hosts::Hosts,
    install,
    rights::{self, Unused},
    wait::until,
};
use tokio_util::sync::CancellationToken;

pub const CORE: &str = "cluster.x-k8s.io/v1beta2";
pub const HOSTS: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
pub const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io/v1beta1";
pub const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta1";
pub const CLASS: &str = "karpenter.cluster.x-k8s.io/v1alpha1";
pub const KARPENTER: &str = "karpenter.sh/v1";
const USER: &str = "slipway-autoscaler";
/// Nothing here takes as long, unless it never comes.
const HANG_GUARD: Duration = Duration::from_mins(5);
pub const VERSION: &str = "v1.36.3";
/// On a Machine: the uid of its claim.
const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim";

/// What the package may do and these stories do not make it do.
const UNUSED: &[Unused] = &[
    unused(
        "authentication.k8s.io",
        "tokenreviews",
        &["create"],
        "the manager's diagnostics",
    ),
    unused(
        "authorization.k8s.io",
        "subjectaccessreviews",
        &["create"],
        "the manager's diagnostics",
    ),
    unused(
        "coordination.k8s.io",
        "leases",
        &["create", "get", "update"],
        "the manager's lease",
    ),
    unused(
        "infrastructure.cluster.x-k8s.io",
        "*",
        &["create", "delete", "get", "list", "watch"],
        "used by the name of each kind, which depends on the providers",
    ),
    unused(
        "bootstrap.cluster.x-k8s.io",
        "*",
        &["create", "delete", "get", "list", "watch"],
        "used by the name of each kind, which depends on the providers",
    ),
    unused(
        "",
        "configmaps",
        &["list", "watch"],
        "price lists, which no story has",
    ),
    unused(
        "cluster.x-k8s.io",
        "machinesets/scale",
        &["patch"],
        "no story scales a MachineSet of its own",
    ),
    unused(
        "cluster.x-k8s.io",
        "machinesets",
        &["get"],
        "no story scales a MachineSet of its own",
    ),
    rarely(
        "",
        "pods/eviction",
        &["create"],
        "pods are gone before claims are deleted",
    ),
    rarely(
        "events.k8s.io",
        "events",
        &["patch"],
        "events that are told again",
    ),
    rarely(
        "karpenter.sh",
        "nodeclaims",
        &["delete"],
        "claims that come to nothing, which no story asks for",
    ),
    unused(
        "",
        "pods",
        &["delete"],
        "only past a grace period, which no story has",
    ),
];

const fn unused(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Unused {
    Unused {
        group,
        resource,
        verbs,
        reason,
        rare: false,
    }
}

const fn rarely(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Unused {
    Unused {
        group,
        resource,
        verbs,
        reason,
        rare: true,
    }
}

pub fn objects(
    client: &Client,
    namespace: Option<&str>,
    api_version: &str,
    kind: &str,
) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

pub async fn apply(client: &Client, namespace: &str, manifests: &[Value]) -> Result<()> {
    for manifest in manifests {
        let text = |pointer: &str| {
            manifest
                .pointer(pointer)
                .and_then(Value::as_str)
                .context("a name")
        };
        let (version, kind, name) = (text("/apiVersion")?, text("/kind")?, text("/metadata/name")?);
        let is_global = version == CLASS || version == KARPENTER;
        objects(client, (!is_global).then_some(namespace), version, kind)
            .patch(name, &PatchParams::apply("a-user"), &Patch::Apply(manifest))
            .await
            .with_context(|| format!("applying {kind} {name}"))?;
    }
    Ok(())
}

/// Waits until a question is answered with yes; looks again and again, because the answer spans kinds.
pub async fn eventually<F, Answer>(what: &str, mut ask: F) -> Result<()>
where
    F: FnMut() -> Answer,
    Answer: Future<Output = Result<bool>>,
{
    let asked = async {
        while !ask().await? {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(HANG_GUARD, asked).await {
        Ok(answer) => answer,
        Err(_) => bail!("never: {what}"),
    }
}

pub struct World {
    pub cluster: Cluster,
    pub client: Client,
    stop: CancellationToken,
}

impl World {
    pub async fn start() -> Result<Arc<World>> {
        let cluster = ManagementCluster::builder()
            .name("autoscaler")
            .cluster_api()
            .kwok()
            .audit_everything_of(USER)
            .start()
            .await?;
        let packages = slipway_autoscaler::provider().packages;
        let crds = packages[0].crds.iter().map(serde_json::to_value);
        install::install(&cluster.client(), &crds.collect::<Result<Vec<_>, _>>()?).await?;
        roles::install(&cluster, &packages, USER).await?;
        Hosts::install(&cluster).await?;
        let world = World {
            client: cluster.client(),
            cluster,
            stop: CancellationToken::new(),
        };
        // Cluster API's objects are reached by another client, as where they are in another cluster.
        let kubeconfig = world.kubeconfig();
        std::fs::write(&kubeconfig, world.cluster.kubeconfig_as(USER, None))?;
        let flags = Flags::default().with("cluster-api-kubeconfig", kubeconfig.to_string_lossy());
        let settings = Settings {
            flags,
            ..Settings::default()
        };
        world.run(None, settings, &world.stop);
        Ok(Arc::new(world))
    }

    /// How the autoscaler reaches the cluster.
    pub fn kubeconfig(&self) -> PathBuf {
        let directory = &self.cluster.description().directory;
        directory.join("management.kubeconfig")
    }

    /// Runs the controllers as a manager of this identity would.
    pub fn run(&self, identity: Option<&str>, settings: Settings, stop: &CancellationToken) {
        let mut context = Context::new(
            self.cluster.client_as(USER, &[]),
            settings,
            Metrics::new(),
            stop.clone(),
        );
        context.identity = identity.map(Into::into);
        for registration in slipway_autoscaler::provider().packages.remove(0).controllers {
            tokio::spawn((registration.run)(context.clone()));
        }
    }

    /// The roles were enough, and nothing was asked for beyond them.
    pub fn end(&self) -> Result<()> {
        self.stop.cancel();
        let requests = self
            .cluster
            .audit()
            .requests(None, |request| request.username() == USER)?;
        let packages = slipway_autoscaler::provider().packages;
        let declared = rights::declared(&roles::declared(&packages)?);
        let findings = rights::compare(&declared, &requests, UNUSED);
        anyhow::ensure!(findings.is_empty(), "{findings}");
        Ok(())
    }
}

/// One story's part of the cluster. Its Cluster, NodePool and NodeClass have the namespace's name.
pub struct Fleet {
    pub client: Client,
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
        let hosts = Hosts::start(&world.cluster, &name, &world.cluster).await?;
        hosts.give_kubeconfig(&name).await?;
        let fleet = Fleet {
            client: world.client.clone(),
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

    pub async fn apply(&self, manifests: &[Value]) -> Result<()> {
        apply(&self.client, &self.name, manifests).await
    }

    pub fn core(&self, kind: &str) -> Api<DynamicObject> {
        objects(&self.client, Some(&self.name), CORE, kind)
    }

    /// A MachineDeployment of four-core workers, scaled between none and five.
    pub fn machine_deployment(&self) -> Value {
        json!({"apiVersion": CORE, "kind": "MachineDeployment", "metadata": {"name": "workers", "annotations": sizes()},
            "spec": {"clusterName": self.name, "replicas": 0, "selector": {"matchLabels": {"pool": "workers"}},
            "template": {"metadata": {"labels": {"pool": "workers"}}, "spec": {"clusterName": self.name, "version": VERSION,
                "bootstrap": {"dataSecretName": "bootstrap"},
                "infrastructureRef": infrastructure("TestHostMachineTemplate", "workers")}}}})
    }

    /// A NodePool and its NodeClass; `class` is what the NodeClass says beside its scope.
    pub fn node_pool(&self, mut class: Value) -> Vec<Value> {
        let name = &self.name;
        class["clusterName"] = json!(name);
        class["namespace"] = json!(name);
        vec![
            json!({"apiVersion": CLASS, "kind": "ClusterAPINodeClass", "metadata": {"name": name}, "spec": class}),
            json!({"apiVersion": KARPENTER, "kind": "NodePool", "metadata": {"name": name}, "spec": {"limits": {"cpu": "40"},
                "template": {"spec": {"requirements": [], "nodeClassRef": {"group": "karpenter.cluster.x-k8s.io",
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
