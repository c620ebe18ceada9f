//! A simulated Azure behind the client's own transport, in paused time, and short ways to drive it.

use std::{
    cell::Cell,
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use azure_core::http::{
    AsyncRawResponse, Body, HttpClient, Request, Transport,
    headers::{HeaderName, HeaderValue, Headers},
};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_azure::{
    Arm, ArmError, Azure, Cloud, Desired, Tuning,
    credential::{AllowedNamespaces, Identity, IdentityKind, Namespace, SecretName},
    diff::Record,
    resource::{AsoObject, Put, Reference, Resolver, to_arm},
};
use slipway_azure_sim::{Settings, Simulator, State};
use slipway_runtime::{Class, Classified, Clock, Outcome};
use tracing_subscriber::{Layer, filter::dynamic_filter_fn, layer::SubscriberExt, util::SubscriberInitExt};

pub const SUBSCRIPTION: &str = "00000000-0000-0000-0000-00000000000a";
pub const TENANT: &str = "11111111-1111-1111-1111-111111111111";
pub const CLIENT: &str = "22222222-2222-2222-2222-222222222222";

/// The client's transport, answered by the simulator in this process.
pub struct Wire(pub Arc<Simulator>);

impl fmt::Debug for Wire {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Wire")
    }
}

#[async_trait::async_trait]
impl HttpClient for Wire {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
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
        let answer = self.0.handle(&asked);
        tokio::time::sleep(answer.delivery.delay).await;
        if answer.delivery.dropped {
            return Err(azure_core::Error::with_message(
                azure_core::error::ErrorKind::Io,
                "the connection broke",
            ));
        }
        let mut headers = Headers::new();
        for (name, value) in &answer.headers {
            headers.insert(
                HeaderName::from(name.as_str().to_owned()),
                HeaderValue::from(value.to_str().expect("text").to_owned()),
            );
        }
        Ok(AsyncRawResponse::from_bytes(
            answer.status.into(),
            headers,
            answer.body,
        ))
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
        let request = slipway_azure_sim::Request::new(http::Method::POST, &address).form(&form);
        assert_eq!(simulator.handle(&request).status, 200);
        let azure = simulator.azure();
        State {
            directory: azure.state().directory.clone(),
            ..State::default()
        }
    });
    STATE.clone()
}

thread_local! {
    static CAPTURE: Cell<bool> = const { Cell::new(false) };
}

/// What is logged, at every level, while the thread captures. Set up before anything logs, for the whole process.
static LOGS: LazyLock<Arc<Mutex<Vec<u8>>>> = LazyLock::new(|| {
    let logs = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&logs);
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(move || Writer(Arc::clone(&writer)))
        .with_filter(dynamic_filter_fn(|_, _| CAPTURE.get()));
    tracing_subscriber::registry().with(layer).init();
    logs
});

struct Writer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Everything this thread logs while `work` runs.
pub fn captured(work: impl FnOnce()) -> String {
    LazyLock::force(&LOGS);
    CAPTURE.set(true);
    work();
    CAPTURE.set(false);
    String::from_utf8(LOGS.lock().clone()).expect("logs are text")
}

pub struct World {
    pub simulator: Arc<Simulator>,
    pub azure: Azure,
    pub clock: Clock,
}

impl World {
    pub fn new() -> Self {
        Self::with(Settings::default(), Tuning::default())
    }

    pub fn with(settings: Settings, tuning: Tuning) -> Self {
        Self::of(Cloud::public(), settings, tuning)
    }

    pub fn of(cloud: Cloud, settings: Settings, tuning: Tuning) -> Self {
        LazyLock::force(&LOGS);
        let clock = Clock::starting_at(Timestamp::now());
        let azure = slipway_azure_sim::Azure::with_state(settings, signed());
        let simulator = Arc::new(Simulator::around(azure, move || clock.now()));
        let transport = Transport::new(Arc::new(Wire(Arc::clone(&simulator))));
        Self {
            azure: Azure::over(cloud, tuning, clock, transport),
            simulator,
            clock,
        }
    }

    /// Another process: nothing remembered, the same Azure.
    pub fn restarted(&self) -> Self {
        let transport = Transport::new(Arc::new(Wire(Arc::clone(&self.simulator))));
        Self {
            simulator: Arc::clone(&self.simulator),
            azure: Azure::over(Cloud::public(), Tuning::default(), self.clock, transport),
            clock: self.clock,
        }
    }

    pub fn arm(&self, cluster: &str) -> Arm {
        let identity = identity(IdentityKind::ServicePrincipal);
        let permission = identity.may_use(&Namespace::default()).unwrap();
        let principal = identity.principal(Some(&secret("right")), None).unwrap();
        self.azure
            .arm(&permission, principal, SUBSCRIPTION, cluster)
            .unwrap()
    }

    pub fn count(&self, method: &str, part: &str) -> usize {
        self.simulator.azure().count(method, part)
    }
}

pub fn secret(value: &str) -> std::collections::BTreeMap<String, k8s_openapi::ByteString> {
    [(
        "clientSecret".to_owned(),
        k8s_openapi::ByteString(value.as_bytes().to_vec()),
    )]
    .into()
}

pub fn identity(kind: IdentityKind) -> Identity {
    Identity {
        namespace: "default".into(),
        name: "fleet".into(),
        kind,
        client_id: CLIENT.into(),
        tenant_id: TENANT.into(),
        client_secret: Some(SecretName {
            namespace: "default".into(),
            name: "fleet-secret".into(),
        }),
        certificate_path: None,
        credentials_path: None,
        service_account: None,
        allowed_namespaces: Some(AllowedNamespaces::default()),
    }
}

/// Names resolve to resources of the same name in group `rg`.
struct Names;

impl Resolver for Names {
    fn subscription(&self) -> &str {
        SUBSCRIPTION
    }

    fn resource(&self, reference: &Reference) -> Option<String> {
        let group = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/rg");
        match reference.kind.as_str() {
            "ResourceGroup" => Some(group),
            "ManagedCluster" => Some(format!(
                "{group}/providers/Microsoft.ContainerService/managedClusters/{}",
                reference.name
            )),
            _ => None,
        }
    }
}

pub fn put(manifest: &Value) -> Put {
    to_arm(&AsoObject::parse(manifest).unwrap(), &Names).unwrap()
}

pub fn group() -> Put {
    put(
        &json!({"apiVersion": "resources.azure.com/v1api20200601", "kind": "ResourceGroup",
        "metadata": {"name": "rg"}, "spec": {"location": "westus3"}}),
    )
}

pub fn cluster(name: &str, tags: &Value) -> Put {
    put(
        &json!({"apiVersion": "containerservice.azure.com/v1api20240901", "kind": "ManagedCluster",
        "metadata": {"name": name}, "spec": {
            "location": "westus3", "owner": {"name": "rg"}, "dnsPrefix": name, "kubernetesVersion": "1.33", "tags": tags,
            "identity": {"type": "SystemAssigned"},
            "agentPoolProfiles": [{"name": "system", "count": 1, "vmSize": "Standard_DS2_v2", "mode": "System", "osType": "Linux"}]}}),
    )
}

pub fn pool(cluster: &str, name: &str, count: u32) -> Put {
    put(
        &json!({"apiVersion": "containerservice.azure.com/v1api20240901", "kind": "ManagedClustersAgentPool",
        "metadata": {"name": name}, "spec": {
            "owner": {"name": cluster}, "count": count, "vmSize": "Standard_DS2_v2", "mode": "User", "osType": "Linux"}}),
    )
}

/// Steps until done, as a controller's queue would.
pub async fn converge(arm: &Arm, put: &Put, record: Option<Record>) -> Result<Option<Record>, ArmError> {
    let mut record = record;
    for _ in 0..400 {
        match arm.ensure(&Desired::new(put, record.as_ref())).await {
            Ok(step) => {
                record = step.record.or(record);
                match step.outcome {
                    Outcome::Done => return Ok(record),
                    Outcome::InProgress(after) | Outcome::Throttled(after) => tokio::time::sleep(after).await,
                }
            }
            Err(error) => match error.class() {
                Class::Terminal | Class::Denied => return Err(error),
                Class::Throttled(after) => tokio::time::sleep(after).await,
                Class::Transient | Class::Conflict => tokio::time::sleep(Duration::from_secs(5)).await,
            },
        }
    }
    panic!("{} does not converge", put.id)
}

/// Steps until gone.
pub async fn remove(arm: &Arm, put: &Put) {
    for _ in 0..400 {
        match arm.delete(&put.id, &put.mapping.api_version).await {
            Ok(step) => match step.outcome {
                Outcome::Done => return,
                Outcome::InProgress(after) | Outcome::Throttled(after) => tokio::time::sleep(after).await,
            },
            Err(error) => {
                assert!(
                    !matches!(error.class(), Class::Terminal | Class::Denied),
                    "{error}"
                );
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
    }
    panic!("{} does not go away", put.id)
}
