//! A world in which the controllers live, and short ways to act in it.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_aks::{access::Access, provider};
use slipway_apiserver_sim::{Apiserver, Kinds, faults::Faults};
use slipway_azure::{Azure, Cloud, Clouds, Tuning, workload::nodes::Nodes};
use slipway_azure_sim::{Settings, Simulator, Speed};
use slipway_kit::{
    azure::{self as kit, Guard, faulty_transport, simulator},
    core::{
        FakeCore,
        kinds::{CORE, INFRASTRUCTURE, of_core},
    },
    objects,
};
pub use slipway_kit::{
    azure::{CLIENT, SUBSCRIPTION, TENANT},
    objects::{condition, create, holds},
};
use slipway_runtime::{
    Clock,
    controller::{Context, Registration},
};

pub const NAMESPACE: &str = "default";
/// Must appear nowhere but in the Secret it stands in.
pub const CLIENT_SECRET: &str = "hunter2-client-secret";

/// Installs every kind and webhook.
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

/// The controllers of one process.
pub fn controllers(
    simulator: &Arc<Simulator>,
    clock: Clock,
    faults: &Faults,
    nodes: &Nodes,
) -> Vec<Registration> {
    guarded_controllers(simulator, clock, faults, nodes, Arc::new(|_| ()))
}

/// The same, with somebody who looks at every request.
pub fn guarded_controllers(
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
    let version = if kind.starts_with("Azure") {
        format!("{INFRASTRUCTURE}/v1beta1")
    } else {
        format!("{CORE}/v1beta2")
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

/// An object of the user's; a rival has objects of the same names.
pub fn find(objects: &[Value], kind: &str, name: &str) -> Option<Value> {
    let mut users = objects.iter().filter(|object| !is_rivals(object));
    let found = users.find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.cloned()
}

/// Whether an object is of the Cluster that names the same resources in Azure.
pub fn is_rivals(object: &Value) -> bool {
    object["metadata"]["namespace"] == super::ownership::OTHER
}

/// What a user applies: a cluster with its pools.
pub fn manifests(plane: &Value, pools: &[(&str, &str, i32)]) -> Vec<Value> {
    let mut spec = json!({
        "version": "v1.33.3", "location": "westus3", "resourceGroupName": "fleet", "subscriptionID": SUBSCRIPTION,
        "identityRef": {"kind": "AzureClusterIdentity", "name": "fleet", "namespace": NAMESPACE},
    });
    json_patch::merge(&mut spec, plane);
    let mut all = vec![
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureClusterIdentity",
            "metadata": {"name": "fleet", "namespace": NAMESPACE},
            "spec": {"type": "ServicePrincipal", "clientID": CLIENT, "tenantID": TENANT, "allowedNamespaces": {},
                "clientSecret": {"name": "fleet-secret", "namespace": NAMESPACE}}}),
        json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "Cluster",
            "metadata": {"name": "fleet", "namespace": NAMESPACE},
            "spec": {"clusterNetwork": {"services": {"cidrBlocks": ["192.168.0.0/16"]}},
                "controlPlaneRef": {"apiGroup": INFRASTRUCTURE, "kind": "AzureManagedControlPlane", "name": "fleet"},
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "AzureManagedCluster", "name": "fleet"}}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureManagedCluster",
            "metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": {}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureManagedControlPlane",
            "metadata": {"name": "fleet", "namespace": NAMESPACE}, "spec": spec}),
    ];
    for (name, mode, replicas) in pools {
        all.extend(pool_manifests(name, mode, *replicas, &json!({})));
    }
    all
}

pub fn pool_manifests(name: &str, mode: &str, replicas: i32, spec: &Value) -> Vec<Value> {
    let mut class = json!({"mode": mode, "sku": "Standard_D2s_v3", "name": name});
    json_patch::merge(&mut class, spec);
    vec![
        json!({"apiVersion": format!("{CORE}/v1beta2"), "kind": "MachinePool",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"clusterName": "fleet", "replicas": replicas, "template": {"spec": {
                "version": "v1.33.3", "clusterName": "fleet", "bootstrap": {"dataSecretName": ""},
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "AzureManagedMachinePool", "name": name}}}}}),
        json!({"apiVersion": format!("{INFRASTRUCTURE}/v1beta1"), "kind": "AzureManagedMachinePool",
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": class}),
    ]
}

/// Applies what a user applies.
pub async fn apply(server: &Apiserver, manifests: &[Value]) {
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "fleet-secret", "namespace": NAMESPACE}, "stringData": {},
        "data": {"clientSecret": k8s_openapi::ByteString(CLIENT_SECRET.as_bytes().to_vec())},
    }))
    .expect("a secret");
    let _ = Api::<Secret>::namespaced(server.client(), NAMESPACE)
        .create(&PostParams::default(), &secret)
        .await;
    for manifest in manifests {
        create(server, manifest).await;
    }
}

pub struct World {
    pub server: Apiserver,
    pub simulator: Arc<Simulator>,
    pub clock: Clock,
    pub nodes: Nodes,
    tasks: tokio::task::JoinSet<anyhow::Result<()>>,
    context: Option<Context>,
    calls: Faults,
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
            calls: Faults::none(),
            core,
        };
        world.start();
        world
    }

    /// Starts a process of the manager.
    pub fn start(&mut self) {
        let mut context = Context::for_tests(self.server.client_with(self.calls.clone()), 7);
        context.clock = self.clock;
        self.context = Some(context.clone());
        for registration in controllers(&self.simulator, self.clock, &Faults::none(), &self.nodes) {
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

    /// The injected clients of the process that runs.
    pub fn context(&self) -> &Context {
        self.context.as_ref().expect("a process")
    }

    /// Every call of the manager to the apiserver, as `verb resource place`.
    pub fn asked(&self) -> Vec<String> {
        self.calls.log().into_iter().map(|call| call.line).collect()
    }

    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        find(&self.server.objects(), kind, name)
    }

    pub fn plane(&self) -> Value {
        self.object("AzureManagedControlPlane", "fleet")
            .expect("a control plane")
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
            let generation =
                |object: &Value| object["status"]["observedGeneration"] == object["metadata"]["generation"];
            world
                .object("AzureManagedControlPlane", "fleet")
                .is_some_and(|plane| holds(&plane, "Ready") && generation(&plane))
                && pools.iter().all(|pool| {
                    world
                        .object("AzureManagedMachinePool", pool)
                        .is_some_and(|pool| holds(&pool, "Ready") && generation(&pool))
                })
        })
        .await;
    }

    pub async fn until_gone(&self) {
        self.until("gone", |world| {
            !world.server.objects().iter().any(|object| {
                matches!(
                    object["kind"].as_str(),
                    Some("Cluster" | "AzureManagedControlPlane" | "AzureManagedMachinePool")
                )
            })
        })
        .await;
    }

    /// Ids of everything in Azure, in lower case.
    pub fn in_azure(&self) -> Vec<String> {
        kit::in_azure(&self.simulator)
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
