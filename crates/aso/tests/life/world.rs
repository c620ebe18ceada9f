//! A world in which the controllers live, and short ways to act in it.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::{Apiserver, Kinds, faults::Faults};
use slipway_aso::{access::Access, provider};
use slipway_azure::{Azure, Cloud, Clouds, Tuning, workload::nodes::Nodes};
use slipway_azure_sim::{Settings, Simulator, Speed};
pub use slipway_kit::objects::{condition, create, holds};
use slipway_kit::{
    azure::{self as kit, CLIENT, Guard, SUBSCRIPTION, TENANT, faulty_transport, simulator},
    core::{
        FakeCore,
        kinds::{CORE, INFRASTRUCTURE, of_core},
    },
    objects,
};
use slipway_runtime::{
    Clock,
    controller::{Context, Registration},
};

pub const NAMESPACE: &str = "default";
/// Must appear nowhere but in the Secret it stands in.
pub const CLIENT_SECRET: &str = "hunter2-client-secret";
pub const OLD: &str = "v1.33.3";
pub const NEW: &str = "v1.34.1";

/// Installs every kind.
pub fn install(server: &Apiserver) {
    // Read once: schemas take long to make.
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| {
        let core = Kinds::read(&of_core(), &[], &[]);
        provider::provider()
            .packages
            .iter()
            .map(|package| Kinds::read(&package.crds, &package.conversion, &package.admission))
            .fold(core, Kinds::and)
    });
    server.install_kinds(&KINDS);
}

/// Azure as it was recorded, only faster.
pub fn quick() -> Settings {
    Settings {
        speed: Speed::Times(20.0),
        require_token: false,
        ..Settings::default()
    }
}

/// The controllers of one process, with somebody who looks at every request.
pub fn controllers(
    simulator: &Arc<Simulator>,
    clock: Clock,
    faults: &Faults,
    nodes: &Nodes,
    guard: Guard,
) -> Vec<Registration> {
    let transport = faulty_transport(simulator, faults, guard);
    let azure = Azure::over(Cloud::public(), Tuning::default(), clock, transport);
    let access = Access::new(Clouds::only(azure));
    provider::controllers(&access, nodes)
}

/// Workload clusters that nobody reaches.
pub fn unreachable() -> Nodes {
    Nodes::connecting_by(Arc::new(|_, _| {
        Err(kube::Error::Service(Box::new(std::io::Error::other(
            "no route to host",
        ))))
    }))
}

/// The APIs of the kinds that a user's manifests hold.
pub fn api(server: &Apiserver, kind: &str) -> Api<DynamicObject> {
    let version = match kind {
        "Secret" | "ConfigMap" => "v1".to_owned(),
        _ if kind.starts_with("Azure") => format!("{INFRASTRUCTURE}/v1beta1"),
        _ => format!("{CORE}/v1beta2"),
    };
    objects::api(server, NAMESPACE, &version, kind)
}

pub async fn merge(server: &Apiserver, kind: &str, name: &str, patch: Value) {
    api(server, kind)
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap_or_else(|error| panic!("patching {kind} {name}: {error}"));
}

pub async fn remove(server: &Apiserver, kind: &str, name: &str) {
    let _ = api(server, kind).delete(name, &DeleteParams::default()).await;
}

pub fn find(objects: &[Value], kind: &str, name: &str) -> Option<Value> {
    objects::find(objects, kind, name).cloned()
}

/// A credential in the form of Azure Service Operator.
pub fn credential(name: &str) -> Value {
    let data: serde_json::Map<String, Value> = [
        ("AZURE_SUBSCRIPTION_ID", SUBSCRIPTION),
        ("AZURE_TENANT_ID", TENANT),
        ("AZURE_CLIENT_ID", CLIENT),
        ("AZURE_CLIENT_SECRET", CLIENT_SECRET),
    ]
    .map(|(key, value)| (key.to_owned(), json!(ByteString(value.as_bytes().to_vec()))))
    .into_iter()
    .collect();
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data})
}

/// A resource in the form of Azure Service Operator, which signs in with `sign-in`.
pub fn resource(api_version: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "annotations": {"serviceoperator.azure.com/credential-from": "sign-in"}},
        "spec": spec,
    })
}

pub fn group() -> Value {
    resource(
        "resources.azure.com/v1api20200601",
        "ResourceGroup",
        "fleet",
        &json!({"location": "westus3"}),
    )
}

pub const AKS: &str = "containerservice.azure.com/v1api20240901";

pub fn managed_cluster(patch: &Value) -> Value {
    let mut spec = json!({
        "owner": {"name": "fleet"}, "location": "westus3", "dnsPrefix": "fleet",
        "identity": {"type": "SystemAssigned"}, "networkProfile": {"networkPlugin": "azure"},
        "servicePrincipalProfile": {"clientId": "msi"},
    });
    json_patch::merge(&mut spec, patch);
    resource(AKS, "ManagedCluster", "fleet", &spec)
}

pub fn network() -> Value {
    resource(
        "network.azure.com/v1api20240301",
        "VirtualNetwork",
        "fleet",
        &json!({"owner": {"name": "fleet"}, "location": "westus3",
            "addressSpace": {"addressPrefixes": ["10.0.0.0/8"]}}),
    )
}

/// The infrastructure and control plane of a Cluster, with these resources.
pub fn cluster(infrastructure: &[Value], plane: &[Value]) -> Vec<Value> {
    let reference = |kind: &str| json!({"apiGroup": INFRASTRUCTURE, "kind": kind, "name": "fleet"});
    let ours = |kind: &str, spec: Value| {
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": kind,
            "metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": spec})
    };
    vec![
        credential("sign-in"),
        json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "Cluster",
            "metadata": {"name": "fleet", "namespace": NAMESPACE},
            "spec": {"clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
                "controlPlaneRef": reference("AzureASOManagedControlPlane"),
                "infrastructureRef": reference("AzureASOManagedCluster")}}),
        ours("AzureASOManagedCluster", json!({"resources": infrastructure})),
        ours(
            "AzureASOManagedControlPlane",
            json!({"version": OLD, "resources": plane}),
        ),
    ]
}

/// What a user applies: a cluster with its pools.
pub fn manifests(pools: &[(&str, &str, i32)]) -> Vec<Value> {
    let mut all = cluster(&[group()], &[managed_cluster(&json!({}))]);
    for (name, mode, replicas) in pools {
        all.extend(pool_manifests(name, mode, *replicas, &json!({})));
    }
    all
}

pub fn pool_manifests(name: &str, mode: &str, replicas: i32, patch: &Value) -> Vec<Value> {
    let mut spec = json!({
        "azureName": name, "owner": {"name": "fleet"}, "mode": mode, "type": "VirtualMachineScaleSets",
        "vmSize": "Standard_D2s_v3",
    });
    json_patch::merge(&mut spec, patch);
    let pool = resource(AKS, "ManagedClustersAgentPool", &format!("fleet-{name}"), &spec);
    vec![
        json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "MachinePool",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"clusterName": "fleet", "replicas": replicas, "template": {"spec": {
                "version": OLD, "clusterName": "fleet", "bootstrap": {"dataSecretName": ""},
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "AzureASOManagedMachinePool", "name": name}}}}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureASOManagedMachinePool",
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"resources": [pool]}}),
    ]
}

/// Applies what a user applies.
pub async fn apply(server: &Apiserver, manifests: &[Value]) {
    for manifest in manifests {
        create(server, manifest).await;
    }
}

/// Whether an object is ready for what is asked for now.
pub fn is_settled(object: &Value) -> bool {
    holds(object, "Ready")
        && condition(object, "Ready")["observedGeneration"] == object["metadata"]["generation"]
}

pub struct World {
    pub server: Apiserver,
    pub simulator: Arc<Simulator>,
    pub clock: Clock,
    pub nodes: Nodes,
    tasks: tokio::task::JoinSet<anyhow::Result<()>>,
    context: Option<Context>,
    core: tokio::task::JoinHandle<()>,
}

impl World {
    pub fn new() -> Self {
        Self::with(quick(), unreachable())
    }

    pub fn with(settings: Settings, nodes: Nodes) -> Self {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse::<Timestamp>().expect("a time"));
        let server = Apiserver::new(clock);
        install(&server);
        let core = tokio::spawn(FakeCore::new(server.clone(), clock).run());
        let mut world = Self {
            simulator: simulator(settings, clock),
            server,
            clock,
            nodes,
            tasks: tokio::task::JoinSet::new(),
            context: None,
            core,
        };
        world.start();
        world
    }

    /// Starts a process of the manager.
    pub fn start(&mut self) {
        self.start_with(|_| ());
    }

    /// The same with settings of its own.
    pub fn start_with(&mut self, set: impl FnOnce(&mut slipway_runtime::Settings)) {
        let mut context = Context::for_tests(self.server.client(), 7);
        context.clock = self.clock;
        set(Arc::make_mut(&mut context.settings));
        self.context = Some(context.clone());
        let guard: Guard = Arc::new(|_| ());
        let calls = Faults::none();
        for registration in controllers(&self.simulator, self.clock, &calls, &self.nodes, guard) {
            self.tasks.spawn((registration.run)(context.clone()));
        }
    }

    /// Kills the manager, wherever it is.
    pub async fn kill(&mut self) {
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        if let Some(context) = self.context.take() {
            context.shutdown.cancel();
        }
    }

    /// Cluster API's core stops, as if it did not serve what comes.
    pub fn stop_core(&self) {
        self.core.abort();
    }

    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        find(&self.server.objects(), kind, name)
    }

    pub fn plane(&self) -> Value {
        self.object("AzureASOManagedControlPlane", "fleet")
            .expect("a control plane")
    }

    pub fn infrastructure(&self) -> Value {
        self.object("AzureASOManagedCluster", "fleet")
            .expect("infrastructure")
    }

    pub fn pool(&self, name: &str) -> Value {
        self.object("AzureASOManagedMachinePool", name).expect("a pool")
    }

    /// The resources of an object, put in place of those it has.
    pub async fn replace_resources(&self, kind: &str, name: &str, resources: &[Value]) {
        merge(
            &self.server,
            kind,
            name,
            json!({"spec": {"resources": resources}}),
        )
        .await;
    }

    pub async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        for _ in 0..4000 {
            if reached(self) {
                return;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let objects: Vec<Value> = self
            .server
            .objects()
            .into_iter()
            .filter(|object| {
                object["kind"]
                    .as_str()
                    .is_some_and(|kind| kind.starts_with("Azure"))
            })
            .map(|object| {
                json!({"kind": object["kind"], "name": object["metadata"]["name"],
                "deleted": object["metadata"]["deletionTimestamp"],
                "finalizers": object["metadata"]["finalizers"], "status": object["status"]})
            })
            .collect();
        let azure = self.simulator.azure();
        let asked: Vec<String> = azure
            .requests()
            .map(|request| {
                format!(
                    "{} {} {} {}",
                    request.at, request.method, request.path, request.status
                )
            })
            .collect();
        panic!(
            "still not {what}: {}\n{}",
            serde_json::to_string_pretty(&objects).expect("json"),
            asked[asked.len().saturating_sub(12)..].join("\n")
        );
    }

    pub async fn until_ready(&self, pools: &[&str]) {
        self.until("ready", |world| {
            is_settled(&world.plane())
                && is_settled(&world.infrastructure())
                && pools.iter().all(|pool| is_settled(&world.pool(pool)))
        })
        .await;
    }

    pub async fn until_gone(&self) {
        self.until("gone", |world| {
            !world.server.objects().iter().any(|object| {
                let kind = object["kind"].as_str().unwrap_or_default();
                kind == "Cluster" || kind.starts_with("AzureASO")
            })
        })
        .await;
    }

    /// Ids of everything in Azure, in lower case.
    pub fn in_azure(&self) -> Vec<String> {
        kit::in_azure(&self.simulator)
    }

    /// What Azure holds of the resource whose id ends so.
    pub fn document(&self, end: &str) -> Value {
        let azure = self.simulator.azure();
        let found = azure.state().resources.iter().find(|one| one.id.ends_with(end));
        json!(found.expect(end).document)
    }

    pub fn count(&self, method: &str, part: &str) -> usize {
        self.simulator.azure().count(method, part)
    }

    /// Asks the simulated Azure as somebody else.
    pub fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        kit::ask(&self.simulator, method, path, body)
    }

    /// Nothing is written, here or in Azure, in the time of several resyncs.
    pub async fn assert_rests(&self) {
        tokio::time::sleep(Duration::from_mins(5)).await;
        let version = self.server.version();
        self.simulator.azure().forget_requests();
        tokio::time::sleep(Duration::from_mins(40)).await;
        let azure = self.simulator.azure();
        let writes: Vec<String> = azure
            .requests()
            .filter(|request| request.method != "GET" && !request.path.contains("oauth2"))
            .map(|request| format!("{} {}", request.method, request.path))
            .collect();
        assert_eq!(writes, Vec::<String>::new(), "at rest");
        drop(azure);
        assert_eq!(self.server.version(), version, "at rest");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.core.abort();
        self.tasks.abort_all();
    }
}
