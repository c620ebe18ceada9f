//! A world in which the controllers live, and short ways to act in it.

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use azure_core::http::{
    AsyncRawResponse, Body, HttpClient, Request, Transport,
    headers::{HeaderName, HeaderValue, Headers},
};
use http::Method;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Secret, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use serde_json::{Value, json};
use slipway_aks::{access::Access, nodes::Nodes, provider};
use slipway_azure::{Azure, Cloud, Clouds, Tuning};
use slipway_azure_sim::{Settings, Simulator, Speed, State};
use slipway_memory::{
    Apiserver, Kinds,
    faults::{Fate, Faults},
};
use slipway_runtime::{
    Clock,
    controller::{Context, Registration},
};

pub const NAMESPACE: &str = "default";
pub const SUBSCRIPTION: &str = "00000000-0000-0000-0000-00000000000a";
pub const TENANT: &str = "11111111-1111-1111-1111-111111111111";
pub const CLIENT: &str = "22222222-2222-2222-2222-222222222222";
pub const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
pub const CORE: &str = "cluster.x-k8s.io";
/// Must appear nowhere but in the Secret it stands in.
pub const CLIENT_SECRET: &str = "hunter2-client-secret";

/// The engine's transport, answered by the simulator in this process; each call may meet a fault.
pub struct Wire {
    pub simulator: Arc<Simulator>,
    pub faults: Faults,
    pub guard: Guard,
}

/// Told method and path of every request that Azure has answered.
pub type Guard = Arc<dyn Fn(&str, &str) + Send + Sync>;

impl fmt::Debug for Wire {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Wire")
    }
}

fn broken() -> azure_core::Error {
    azure_core::Error::with_message(azure_core::error::ErrorKind::Io, "the connection broke")
}

impl Wire {
    fn answer(&self, request: &Request) -> AsyncRawResponse {
        let method = request.method().to_string().parse().expect("a method");
        let mut asked = slipway_azure_sim::Request::new(method, request.url().as_str());
        for (name, value) in request.headers().iter() {
            asked.headers.insert(
                name.as_str().parse::<http::HeaderName>().expect("a header"),
                value.as_str().parse().expect("a value"),
            );
        }
        if let Body::Bytes(bytes) = request.body() {
            asked.body = bytes.clone();
        }
        let answer = self.simulator.handle(&asked);
        (self.guard)(request.method().as_ref(), request.url().path());
        let mut headers = Headers::new();
        for (name, value) in &answer.headers {
            headers.insert(
                HeaderName::from(name.as_str().to_owned()),
                HeaderValue::from(value.to_str().expect("text").to_owned()),
            );
        }
        AsyncRawResponse::from_bytes(answer.status.into(), headers, answer.body)
    }
}

#[async_trait::async_trait]
impl HttpClient for Wire {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let writes = !matches!(request.method(), azure_core::http::Method::Get);
        // The opaque part of an operation's address differs from run to run.
        let line = format!("{} {}", request.method(), request.url().path());
        match self.faults.external(&line, writes).await {
            Fate::Pass => Ok(self.answer(request)),
            Fate::Refuse(failure) => {
                let mut headers = Headers::new();
                headers.insert("retry-after", HeaderValue::from("7"));
                let body = json!({"error": {"code": failure.reason, "message": failure.message}});
                Ok(AsyncRawResponse::from_bytes(
                    failure.code.as_u16().into(),
                    headers,
                    body.to_string(),
                ))
            }
            Fate::Lose => Err(broken()),
            Fate::LoseAnswer => {
                self.answer(request);
                Err(broken())
            }
            Fate::Hang => std::future::pending().await,
            Fate::HangAnswer => {
                self.answer(request);
                tokio::time::sleep(Duration::from_mins(1)).await;
                Err(broken())
            }
        }
    }
}

/// A state whose directory already has its signing key: making one takes longer than a cluster's whole life.
fn signed() -> State {
    static STATE: LazyLock<State> = LazyLock::new(|| {
        let simulator = Simulator::new(Settings::default());
        let address = format!("https://login.microsoftonline.com/{TENANT}/oauth2/v2.0/token");
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", CLIENT),
            ("client_secret", "right"),
            ("scope", "https://management.azure.com/.default"),
        ];
        let request = slipway_azure_sim::Request::new(Method::POST, &address).form(&form);
        assert_eq!(simulator.handle(&request).status, 200);
        let azure = simulator.azure();
        State {
            directory: azure.state().directory.clone(),
            ..State::default()
        }
    });
    STATE.clone()
}

/// A kind of Cluster API's core, as far as a provider looks at it.
fn core_crd(kind: &str) -> CustomResourceDefinition {
    let plural = format!("{}s", kind.to_lowercase());
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{CORE}")},
        "spec": {
            "group": CORE, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{"name": "v1beta2", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}}}],
        },
    }))
    .expect("a definition")
}

/// Installs every kind and webhook.
pub fn install(server: &Apiserver) {
    // Read once: schemas take long to make.
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| {
        let core = Kinds::read(&[core_crd("Cluster"), core_crd("MachinePool")], &[], &[]);
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

pub fn simulator(settings: Settings, clock: Clock) -> Arc<Simulator> {
    resumed(settings, clock, signed())
}

/// One that goes on from a state.
pub fn resumed(settings: Settings, clock: Clock, state: State) -> Arc<Simulator> {
    let azure = slipway_azure_sim::Azure::with_state(settings, state);
    Arc::new(Simulator::around(azure, move || clock.now()))
}

/// The controllers of one process.
pub fn controllers(
    simulator: &Arc<Simulator>,
    clock: Clock,
    faults: &Faults,
    nodes: &Nodes,
) -> Vec<Registration> {
    guarded_controllers(simulator, clock, faults, nodes, Arc::new(|_, _| ()))
}

/// The same, with somebody who looks at every request.
pub fn guarded_controllers(
    simulator: &Arc<Simulator>,
    clock: Clock,
    faults: &Faults,
    nodes: &Nodes,
    guard: Guard,
) -> Vec<Registration> {
    let transport = Transport::new(Arc::new(Wire {
        simulator: Arc::clone(simulator),
        faults: faults.clone(),
        guard,
    }));
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

pub fn api_of(server: &Apiserver, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(server.client(), NAMESPACE, &resource)
}

/// The APIs of the kinds that a user's manifests hold.
pub fn api(server: &Apiserver, kind: &str) -> Api<DynamicObject> {
    if kind.starts_with("Azure") {
        api_of(server, INFRASTRUCTURE, "v1beta1", kind)
    } else {
        api_of(server, CORE, "v1beta2", kind)
    }
}

pub async fn create(server: &Apiserver, manifest: &Value) -> DynamicObject {
    let kind = manifest["kind"].as_str().expect("a kind");
    let object: DynamicObject = serde_json::from_value(manifest.clone()).expect("an object");
    api(server, kind)
        .create(&PostParams::default(), &object)
        .await
        .unwrap_or_else(|error| panic!("creating {kind}: {error}"))
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
    objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
        .cloned()
}

/// Whether an object has a condition in the old form.
pub fn holds(object: &Value, condition: &str) -> bool {
    object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|one| one["type"] == condition && one["status"] == "True")
}

pub fn condition<'a>(object: &'a Value, type_: &str) -> &'a Value {
    object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|one| one["type"] == type_)
        .unwrap_or(&Value::Null)
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

/// What core does by itself, over and over: owners, labels, what the contract lets it copy, and deletion in order.
pub async fn core(server: Apiserver) {
    let mut seen = 0;
    loop {
        // What nobody changed needs nothing done.
        if server.version() != seen {
            seen = server.version();
            core_once(&server).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn own(server: &Apiserver, kind: &str, object: &DynamicObject, owner: &Value, controller: bool) {
    let name = object.metadata.name.clone().unwrap_or_default();
    if object.metadata.owner_references.is_some() || object.metadata.deletion_timestamp.is_some() {
        return;
    }
    let patch = json!({"metadata": {
        "labels": {"cluster.x-k8s.io/cluster-name": "fleet"},
        "ownerReferences": [{"apiVersion": format!("{CORE}/v1beta2"), "kind": owner["kind"],
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "controller": controller}],
    }});
    let _ = api(server, kind)
        .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
}

async fn core_once(server: &Apiserver) {
    let list = |kind: &'static str| async move {
        api(server, kind)
            .list(&ListParams::default())
            .await
            .expect("a list")
            .items
    };
    let Some(cluster) = list("Cluster").await.into_iter().next() else {
        return;
    };
    let cluster = serde_json::to_value(&cluster).expect("json");
    let deleting = !cluster["metadata"]["deletionTimestamp"].is_null();
    if cluster["spec"]["paused"] == true {
        return;
    }
    if !deleting && cluster["metadata"]["finalizers"].is_null() {
        merge(
            server,
            "Cluster",
            "fleet",
            json!({"metadata": {"finalizers": ["cluster.cluster.x-k8s.io"]}}),
        )
        .await;
    }
    for kind in ["AzureManagedCluster", "AzureManagedControlPlane"] {
        for object in list(kind).await {
            own(
                server,
                kind,
                &object,
                &cluster,
                kind == "AzureManagedControlPlane",
            )
            .await;
        }
    }
    let pools = list("AzureManagedMachinePool").await;
    for machine_pool in list("MachinePool").await {
        let value = serde_json::to_value(&machine_pool).expect("json");
        let name = machine_pool.metadata.name.clone().unwrap_or_default();
        let pool = pools
            .iter()
            .find(|pool| pool.metadata.name.as_deref() == Some(name.as_str()));
        if deleting || machine_pool.metadata.deletion_timestamp.is_some() {
            if machine_pool.metadata.deletion_timestamp.is_none() {
                remove(server, "MachinePool", &name).await;
            }
            match pool {
                Some(pool) if pool.metadata.deletion_timestamp.is_none() => {
                    remove(server, "AzureManagedMachinePool", &name).await;
                }
                Some(_) => {}
                None => {
                    merge(
                        server,
                        "MachinePool",
                        &name,
                        json!({"metadata": {"finalizers": null}}),
                    )
                    .await;
                }
            }
            continue;
        }
        if machine_pool.metadata.finalizers.is_none() {
            merge(
                server,
                "MachinePool",
                &name,
                json!({"metadata": {"finalizers": ["machinepool.cluster.x-k8s.io"]}}),
            )
            .await;
        }
        if let Some(pool) = pool {
            own(server, "AzureManagedMachinePool", pool, &value, true).await;
        }
    }
    if deleting && list("MachinePool").await.is_empty() {
        for kind in ["AzureManagedControlPlane", "AzureManagedCluster"] {
            let found = list(kind).await;
            if let Some(object) = found.first() {
                if object.metadata.deletion_timestamp.is_none() {
                    remove(server, kind, "fleet").await;
                }
                return;
            }
        }
        merge(
            server,
            "Cluster",
            "fleet",
            json!({"metadata": {"finalizers": null}}),
        )
        .await;
    }
}

pub struct World {
    pub server: Apiserver,
    pub simulator: Arc<Simulator>,
    pub clock: Clock,
    pub nodes: Nodes,
    tasks: tokio::task::JoinSet<anyhow::Result<()>>,
    shutdown: Option<tokio_util::sync::CancellationToken>,
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
        let core = tokio::spawn(core(server.clone()));
        let mut world = Self {
            simulator: simulator(settings, clock),
            server,
            clock,
            nodes,
            tasks: tokio::task::JoinSet::new(),
            shutdown: None,
            core,
        };
        world.start();
        world
    }

    /// Starts a process of the manager.
    pub fn start(&mut self) {
        let mut context = Context::for_tests(self.server.client(), 7);
        context.clock = self.clock;
        self.shutdown = Some(context.shutdown.clone());
        for registration in controllers(&self.simulator, self.clock, &Faults::none(), &self.nodes) {
            self.tasks.spawn((registration.run)(context.clone()));
        }
    }

    /// Kills the manager, wherever it is.
    pub async fn kill(&mut self) {
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
        if let Some(shutdown) = self.shutdown.take() {
            shutdown.cancel();
        }
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
        in_azure(&self.simulator)
    }

    pub fn count(&self, method: &str, part: &str) -> usize {
        self.simulator.azure().count(method, part)
    }

    /// Asks the simulated Azure as somebody else.
    pub fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let address =
            format!("https://management.azure.com/subscriptions/{SUBSCRIPTION}{path}?api-version=2024-09-01");
        let mut request = slipway_azure_sim::Request::new(method, &address);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = self.simulator.handle(&request);
        assert!(
            answer.is_success(),
            "{path}: {} {}",
            answer.status,
            answer.body_json()
        );
        answer.body_json()
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

pub fn in_azure(simulator: &Simulator) -> Vec<String> {
    simulator
        .azure()
        .state()
        .resources
        .iter()
        .map(|resource| resource.id.to_ascii_lowercase())
        .filter(|id| id.contains("/resourcegroups/"))
        .collect()
}
