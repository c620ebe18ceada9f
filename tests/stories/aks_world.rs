//! What the AKS stories share: a management cluster with Cluster API, the manager, the simulated Azure, and an API server
//! behind the clusters that need nodes. Each scenario has a namespace, a resource group and a cluster of its own name.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_azure_sim::{Ca, Options, Server, Settings, Simulator, Speed};
use slipway_kit::manager::Manager;
use slipway_testbed::{
    Cluster, ManagementCluster, WorkloadCluster, install,
    wait::{until, until_gone},
};

use crate::{
    aks_manager::{self, USER},
    support::{apply, objects},
};

pub const CORE: &str = "cluster.x-k8s.io/v1beta2";
pub const AZURE: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
pub const SUBSCRIPTION: &str = "00000000-0000-0000-0000-00000000000a";
pub const TENANT: &str = "11111111-1111-1111-1111-111111111111";
pub const CLIENT: &str = "22222222-2222-2222-2222-222222222222";
pub const VERSION: &str = "v1.33.3";
pub const NEXT: &str = "v1.34.1";
/// Asks for a fresh look at Azure, for stories about what others do there.
pub const READ_OFTEN: &str = "slipway.dev/azure-max-read-age";
const GROUP: &str = "infrastructure.cluster.x-k8s.io";

pub struct World {
    pub management: Cluster,
    pub workload: Cluster,
    pub azure: Server,
    pub manager: Manager,
    /// What every identity signs in with.
    pub secret: String,
}

/// A management cluster as the stories need it.
pub async fn management(name: &str, kubeadm: bool) -> Result<Cluster> {
    let builder = ManagementCluster::builder()
        .name(name)
        .cluster_api()
        .scheduler(false)
        .audit_everything_of(USER);
    let builder = if kubeadm { builder.kubeadm() } else { builder };
    Ok(builder.start().await?)
}

impl World {
    pub async fn start(secret: String) -> Result<Self> {
        Self::with(secret, &[]).await
    }

    /// The same, with arguments for the manager.
    pub async fn with(secret: String, arguments: &[&str]) -> Result<Self> {
        let start = async |management: &Cluster, azure: &Server| {
            aks_manager::start_with(management, azure, arguments).await
        };
        Self::managed_by(secret, "aks", start).await
    }

    /// The same with a manager of its own.
    pub async fn managed_by(
        secret: String,
        name: &str,
        start: impl AsyncFnOnce(&Cluster, &Server) -> Result<Manager>,
    ) -> Result<Self> {
        let simulator = Simulator::new(Settings {
            tenant: TENANT.to_owned(),
            subscriptions: vec![SUBSCRIPTION.to_owned()],
            speed: Speed::Times(60.0),
            // Its limits are those of an Azure that takes sixty times as long.
            throttling: false,
            ..Settings::default()
        });
        let azure = Server::start(simulator, Ca::new()?, Options::default()).await?;
        let (management, workload) = tokio::try_join!(
            // Classes name a bootstrap template of kubeadm's.
            management(name, true),
            async {
                Ok(WorkloadCluster::builder()
                    .name(format!("{name}-workload"))
                    .kwok()
                    .start()
                    .await?)
            },
        )?;
        let manager = start(&management, &azure).await?;
        Ok(Self {
            management,
            workload,
            azure,
            manager,
            secret,
        })
    }

    pub fn simulator(&self) -> &Simulator {
        self.azure.simulator()
    }

    /// A namespace, and the cluster of the same name that will be in it.
    pub async fn fleet(&self, name: &str) -> Result<Fleet<'_>> {
        let client = self.management.client();
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        install::install(&client, &[namespace]).await?;
        Ok(Fleet {
            world: self,
            client,
            name: name.to_owned(),
        })
    }

    /// Asks ARM as somebody else.
    pub fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let login = format!("https://login.microsoftonline.com/{TENANT}/oauth2/v2.0/token");
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", "99999999-9999-9999-9999-999999999999"),
            ("client_secret", "somebody else's"),
            ("scope", "https://management.azure.com/.default"),
        ];
        let answer = self
            .simulator()
            .handle(&slipway_azure_sim::Request::new(Method::POST, &login).form(&form));
        let token = answer.body_json()["access_token"].clone();
        let token = token.as_str().context("a token")?;
        let address =
            format!("https://management.azure.com/subscriptions/{SUBSCRIPTION}{path}?api-version=2024-09-01");
        let mut request = slipway_azure_sim::Request::new(method, &address);
        request
            .headers
            .insert(http::header::AUTHORIZATION, format!("Bearer {token}").parse()?);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = self.simulator().handle(&request);
        ensure!(
            answer.is_success(),
            "{path}: {} {}",
            answer.status,
            answer.body_json()
        );
        Ok(answer.body_json())
    }

    /// Writes in Azure so far whose path has this part.
    pub fn writes(&self, part: &str) -> Vec<String> {
        let part = part.to_lowercase();
        let azure = self.simulator().azure();
        azure
            .requests()
            .filter(|request| matches!(request.method.as_str(), "PUT" | "PATCH" | "DELETE"))
            .filter(|request| request.path.to_lowercase().contains(&part))
            .map(|request| format!("{} {}", request.method, request.path))
            .collect()
    }

    /// Ids in Azure with this part, in lower case.
    pub fn in_azure(&self, part: &str) -> Vec<String> {
        let part = part.to_lowercase();
        let azure = self.simulator().azure();
        azure
            .state()
            .resources
            .iter()
            .map(|resource| resource.id.to_lowercase())
            .filter(|id| id.contains(&part))
            .collect()
    }
}

/// The pinned module of CAPZ.
pub fn capz() -> Result<PathBuf> {
    const MODULE: &str = "sigs.k8s.io/cluster-api-provider-azure";
    let output = Command::new("go")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../parts/capz"))
        .args(["mod", "download", "-json", MODULE])
        .output()
        .context("running go mod download")?;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let Some(directory) = answer["Dir"].as_str() else {
        bail!(
            "{MODULE} cannot be had; run `go mod download {MODULE}` in parts/capz: {}",
            answer["Error"]
        );
    };
    Ok(directory.into())
}

/// A condition of an object, in the form it has in both contracts.
pub fn condition<'a>(object: &'a DynamicObject, type_: &str) -> &'a Value {
    static NONE: Value = Value::Null;
    object.data["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|one| one["type"] == type_)
        .unwrap_or(&NONE)
}

/// Ready for what the user asks for now.
pub fn is_ready(object: &DynamicObject) -> bool {
    object.data["status"]["ready"] == true
        && condition(object, "Ready")["status"] == "True"
        && object.data["status"]["observedGeneration"] == json!(object.metadata.generation)
}

/// A node pool to ask for. Names are short and differ from scenario to scenario: one API server has all nodes.
pub struct Pool {
    pub name: &'static str,
    pub mode: &'static str,
    pub replicas: i32,
    pub spec: Value,
}

pub fn pool(name: &'static str, mode: &'static str, replicas: i32, spec: Value) -> Pool {
    Pool {
        name,
        mode,
        replicas,
        spec,
    }
}

pub fn system(name: &'static str) -> Pool {
    pool(name, "System", 1, json!({}))
}

fn merged(mut into: Value, from: &Value) -> Value {
    if let (Value::Object(into), Value::Object(from)) = (&mut into, from) {
        for (key, value) in from {
            let before = into.remove(key).unwrap_or(Value::Null);
            let both = before.is_object() && value.is_object();
            let value = if both {
                merged(before, value)
            } else {
                value.clone()
            };
            into.insert(key.clone(), value);
        }
    }
    into
}

/// One cluster, in a namespace and a resource group of its own name.
#[derive(Clone)]
pub struct Fleet<'w> {
    pub world: &'w World,
    pub client: Client,
    pub name: String,
}

impl Fleet<'_> {
    pub fn of(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        objects(&self.client, &self.name, version, kind)
    }

    pub fn planes(&self) -> Api<DynamicObject> {
        self.of(AZURE, "AzureManagedControlPlane")
    }

    pub fn pools(&self) -> Api<DynamicObject> {
        self.of(AZURE, "AzureManagedMachinePool")
    }

    pub fn machine_pools(&self) -> Api<DynamicObject> {
        self.of(CORE, "MachinePool")
    }

    pub fn clusters(&self) -> Api<DynamicObject> {
        self.of(CORE, "Cluster")
    }

    /// The group's path below the subscription.
    pub fn group(&self) -> String {
        format!("/resourceGroups/{}", self.name)
    }

    /// The AKS cluster's path below the subscription.
    pub fn aks(&self) -> String {
        format!(
            "{}/providers/Microsoft.ContainerService/managedClusters/{}",
            self.group(),
            self.name
        )
    }

    /// Puts the real API server behind this cluster.
    pub fn backed(self) -> Result<Self> {
        self.back(&self.name)?;
        Ok(self)
    }

    /// Puts it behind an AKS cluster of this name in the group.
    pub fn back(&self, name: &str) -> Result<()> {
        let below = "providers/Microsoft.ContainerService/managedClusters";
        let id = format!("/subscriptions/{SUBSCRIPTION}{}/{below}/{name}", self.group());
        let kubeconfig = std::fs::read_to_string(self.world.workload.kubeconfig())?;
        self.world.simulator().azure().back_cluster(&id, &kubeconfig);
        Ok(())
    }

    /// What ARM shows of the cluster, or of one of its pools.
    pub fn shown(&self, below: &str) -> Result<Value> {
        self.world
            .ask(Method::GET, &format!("{}{below}", self.aks()), None)
    }

    pub fn pool_shown(&self, pool: &str) -> Result<Value> {
        Ok(self.shown(&format!("/agentPools/{pool}"))?["properties"].clone())
    }

    pub fn writes(&self) -> Vec<String> {
        let mut writes = self.world.writes(&format!("{}/", self.group()));
        let group = self.group().to_lowercase();
        writes.extend(
            self.world
                .writes(&group)
                .into_iter()
                .filter(|write| write.to_lowercase().ends_with(&group)),
        );
        writes
    }

    pub fn identity(&self) -> Vec<Value> {
        let labels = json!({"clusterctl.cluster.x-k8s.io/move-hierarchy": "true"});
        vec![
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "identity", "labels": labels},
                "stringData": {"clientSecret": self.world.secret}}),
            json!({"apiVersion": AZURE, "kind": "AzureClusterIdentity", "metadata": {"name": "identity", "labels": labels},
                "spec": {"type": "ServicePrincipal", "allowedNamespaces": {}, "tenantID": TENANT, "clientID": CLIENT,
                    "clientSecret": {"name": "identity", "namespace": self.name}}}),
        ]
    }

    pub fn manifests(&self, plane: &Value, pools: &[Pool]) -> Vec<Value> {
        let reference = |kind: &str| json!({"apiGroup": GROUP, "kind": kind, "name": self.name});
        let spec = json!({"version": VERSION, "location": "westus3", "resourceGroupName": self.name,
            "subscriptionID": SUBSCRIPTION,
            "identityRef": {"kind": "AzureClusterIdentity", "name": "identity", "namespace": self.name}});
        let mut all = vec![
            json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": self.name},
                "spec": {"clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
                    "controlPlaneRef": reference("AzureManagedControlPlane"),
                    "infrastructureRef": reference("AzureManagedCluster")}}),
            json!({"apiVersion": AZURE, "kind": "AzureManagedCluster", "metadata": {"name": self.name}, "spec": {}}),
            json!({"apiVersion": AZURE, "kind": "AzureManagedControlPlane", "metadata": {"name": self.name},
                "spec": merged(spec, plane)}),
        ];
        all.extend(pools.iter().flat_map(|pool| self.pool_manifests(pool)));
        all
    }

    pub fn pool_manifests(&self, pool: &Pool) -> Vec<Value> {
        let spec = json!({"mode": pool.mode, "sku": "Standard_D2s_v3", "name": pool.name});
        vec![
            json!({"apiVersion": CORE, "kind": "MachinePool", "metadata": {"name": pool.name},
                "spec": {"clusterName": self.name, "replicas": pool.replicas, "template": {"spec": {
                    "clusterName": self.name, "version": VERSION, "bootstrap": {"dataSecretName": ""},
                    "infrastructureRef": {"apiGroup": GROUP, "kind": "AzureManagedMachinePool", "name": pool.name}}}}}),
            json!({"apiVersion": AZURE, "kind": "AzureManagedMachinePool", "metadata": {"name": pool.name},
                "spec": merged(spec, &pool.spec)}),
        ]
    }

    pub async fn apply(&self, manifests: &[Value]) -> Result<()> {
        apply(&self.client, &self.name, manifests).await
    }

    /// Applies a cluster and waits until it and its pools are ready.
    pub async fn create(&self, plane: &Value, pools: &[Pool]) -> Result<()> {
        self.apply(&self.identity()).await?;
        self.apply(&self.manifests(plane, pools)).await?;
        let names: Vec<&str> = pools.iter().map(|pool| pool.name).collect();
        self.until_ready(&names).await
    }

    pub async fn add(&self, pool: &Pool) -> Result<()> {
        self.apply(&self.pool_manifests(pool)).await
    }

    pub async fn until_ready(&self, pools: &[&str]) -> Result<()> {
        until(&self.planes(), &self.name, "be ready", is_ready).await?;
        for pool in pools {
            until(&self.pools(), pool, "be ready", is_ready).await?;
        }
        Ok(())
    }

    /// The nodes of a pool are there, as core sees them.
    pub async fn until_nodes(&self, pool: &str, nodes: usize) -> Result<()> {
        until(&self.machine_pools(), pool, "have its nodes", move |pool| {
            let of = |field: &Value| field.as_array().map_or(0, Vec::len);
            pool.data["status"]["readyReplicas"].as_u64().unwrap_or_default() == nodes as u64
                && of(&pool.data["status"]["nodeRefs"]) == nodes
                && of(&pool.data["spec"]["providerIDList"]) == nodes
        })
        .await?;
        Ok(())
    }

    pub async fn merge(&self, api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<()> {
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("changing {name}"))?;
        Ok(())
    }

    pub async fn change_plane(&self, spec: Value) -> Result<()> {
        self.merge(&self.planes(), &self.name, json!({ "spec": spec }))
            .await
    }

    pub async fn change_pool(&self, pool: &str, spec: Value) -> Result<()> {
        self.merge(&self.pools(), pool, json!({ "spec": spec })).await
    }

    pub async fn scale(&self, pool: &str, replicas: usize) -> Result<()> {
        let spec = json!({"spec": {"replicas": replicas}});
        self.merge(&self.machine_pools(), pool, spec).await
    }

    /// Waits until Azure shows a pool as it should; the wait is for the object that says so.
    pub async fn until_pool(&self, pool: &str, so: impl Fn(&Value) -> bool) -> Result<()> {
        until(&self.pools(), pool, "be in Azure as asked for", |object| {
            is_ready(object) && self.pool_shown(pool).is_ok_and(|shown| so(&shown))
        })
        .await
        .with_context(|| format!("{:?}", self.pool_shown(pool)))?;
        Ok(())
    }

    pub async fn kubeconfig(&self, name: &str) -> Result<Value> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.name);
        let secret = until(&secrets, name, "hold a kubeconfig", |secret| {
            secret
                .data
                .as_ref()
                .is_some_and(|data| data.contains_key("value"))
        })
        .await?;
        ensure!(secret.type_.as_deref() == Some("cluster.x-k8s.io/secret"));
        let text = String::from_utf8(secret.data.context("data")?["value"].0.clone())?;
        install::parse(&text)?.pop().context("a kubeconfig")
    }

    /// Deletes the Cluster, and nothing is left.
    pub async fn delete(&self) -> Result<()> {
        self.clusters()
            .delete(&self.name, &DeleteParams::default())
            .await?;
        self.until_nothing_is_left().await
    }

    pub async fn until_nothing_is_left(&self) -> Result<()> {
        until_gone(&self.clusters(), &self.name).await?;
        let group = self.group().to_lowercase();
        let mut left = self.world.in_azure(&group);
        left.retain(|id| id.ends_with(&group) || id.contains(&format!("{group}/")));
        ensure!(left.is_empty(), "left in Azure: {left:?}");
        Ok(())
    }
}
