//! A simulated Azure behind the client's own transport, in paused time, and short ways to drive it.

use std::{
    cell::Cell,
    sync::{Arc, LazyLock},
    time::Duration,
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
use slipway_azure_sim::{Settings, Simulator};
use slipway_kit::azure as kit;
pub use slipway_kit::azure::{CLIENT, SUBSCRIPTION, TENANT};
use slipway_runtime::{Class, Classified, Clock, Outcome};
use tracing_subscriber::{Layer, filter::dynamic_filter_fn, layer::SubscriberExt, util::SubscriberInitExt};

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
        let simulator = kit::simulator(settings, clock);
        Self {
            azure: Azure::over(cloud, tuning, clock, kit::transport(&simulator)),
            simulator,
            clock,
        }
    }

    /// Another process: nothing remembered, the same Azure.
    pub fn restarted(&self) -> Self {
        let transport = kit::transport(&self.simulator);
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
        match arm.delete(&put.id, &put.mapping.api_version, None).await {
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
