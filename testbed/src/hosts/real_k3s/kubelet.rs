//! What the agent of k3s does towards its servers, without running a container: it fetches its certificate with the
//! token, registers its Node and keeps it alive. A server runs with its agent off, so this stands in there too.

use std::{io, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node},
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Config as ClientConfig,
    api::{Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use rand::Rng;
use serde_json::{Value, json};
use slipway_k3s_sim::{Config, Registration};

use super::machine::Machine;

/// How often a kubelet renews its lease.
const BEAT: Duration = Duration::from_secs(10);
/// After a failed call it tries again.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// How often and how long an agent tries to join before its service counts as failed.
const ATTEMPTS: u32 = 60;

const AGENT: &str = "/var/lib/rancher/k3s/agent";
const TLS: &str = "/var/lib/rancher/k3s/server/tls";

/// Who a client is to a server.
pub struct Identity {
    server: String,
    ca: String,
    certificate: String,
    key: String,
}

impl Identity {
    async fn client(&self) -> Result<Client, String> {
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        let config = json!({
            "clusters": [{"name": "k3s", "cluster": {
                "server": self.server,
                "certificate-authority-data": encoded(&self.ca),
            }}],
            "users": [{"name": "k3s", "user": {
                "client-certificate-data": encoded(&self.certificate),
                "client-key-data": encoded(&self.key),
            }}],
            "contexts": [{"name": "k3s", "context": {"cluster": "k3s", "user": "k3s"}}],
            "current-context": "k3s",
        });
        let config: Kubeconfig = serde_json::from_value(config).map_err(|error| error.to_string())?;
        let config = ClientConfig::from_custom_kubeconfig(config, &KubeConfigOptions::default())
            .await
            .map_err(|error| error.to_string())?;
        Client::try_from(config).map_err(|error| error.to_string())
    }
}

/// The kubelet of a server, and its administrator: k3s has put both on the disk.
pub fn of_server(machine: &Machine, endpoint: &str) -> io::Result<(Identity, Identity)> {
    let ca = machine.read(&format!("{AGENT}/server-ca.crt"))?;
    let identity = |certificate: String, key: String| -> io::Result<Identity> {
        Ok(Identity {
            server: endpoint.to_owned(),
            ca: ca.clone(),
            certificate: machine.read(&certificate)?,
            key: machine.read(&key)?,
        })
    };
    Ok((
        identity(
            format!("{AGENT}/client-kubelet.crt"),
            format!("{AGENT}/client-kubelet.key"),
        )?,
        identity(
            format!("{TLS}/client-admin.crt"),
            format!("{TLS}/client-admin.key"),
        )?,
    ))
}

/// The kubelet of an agent, by the token it was given; asks until a server answers.
pub async fn of_agent(config: &Config, name: &str) -> io::Result<Identity> {
    let server = config.server.clone().unwrap_or_default();
    let password = hex::encode(rand::rng().random::<[u8; 16]>());
    let mut refusal = String::new();
    for _ in 0..ATTEMPTS {
        match ask(&server, &config.token, name, &password).await {
            Ok(identity) => return Ok(identity),
            Err(error) => refusal = error,
        }
        tokio::time::sleep(AFTER_ERROR).await;
    }
    Err(io::Error::other(refusal))
}

async fn ask(server: &str, token: &str, name: &str, password: &str) -> Result<Identity, String> {
    let uri: http::Uri = server.parse().map_err(|_| "the server is no URL".to_owned())?;
    let mut config = ClientConfig::new(uri);
    // Whom to trust is what is asked for first, as k3s does with a token that does not say.
    config.accept_invalid_certs = true;
    let client = Client::try_from(config).map_err(|error| error.to_string())?;
    let get = |path: &str, credentials: Option<String>| {
        let mut request = http::Request::get(path);
        if let Some(credentials) = credentials {
            request = request
                .header(
                    "authorization",
                    format!("Basic {}", BASE64_STANDARD.encode(credentials)),
                )
                .header("k3s-node-name", name)
                .header("k3s-node-password", password);
        }
        let client = client.clone();
        async move {
            let request = request.body(Vec::new()).map_err(|error| error.to_string())?;
            client
                .request_text(request)
                .await
                .map_err(|error| error.to_string())
        }
    };
    let ca = get("/cacerts", None).await?;
    let secret = token.rsplit(':').next().unwrap_or_default();
    let answer = get("/v1-k3s/client-kubelet.crt", Some(format!("node:{secret}"))).await?;
    // Certificates come first, and the key after them.
    let at = answer
        .find("-----BEGIN EC PRIVATE KEY")
        .or_else(|| answer.find("-----BEGIN PRIVATE KEY"))
        .or_else(|| answer.find("-----BEGIN RSA PRIVATE KEY"))
        .ok_or("the server sent no key")?;
    Ok(Identity {
        server: server.to_owned(),
        ca,
        certificate: answer[..at].to_owned(),
        key: answer[at..].to_owned(),
    })
}

/// One node.
pub struct Kubelet {
    pub name: String,
    pub version: String,
    pub with: Registration,
}

impl Kubelet {
    /// Registers and keeps alive, until it is dropped. With the administrator's identity it also labels a server's
    /// node, as k3s itself does where its agent is on.
    pub async fn run(self, own: Identity, administrator: Option<Identity>) {
        let client = until_done("its client", || own.client()).await;
        until_done("its node", || self.register(&client)).await;
        if let Some(administrator) = administrator {
            let client = until_done("its client", || administrator.client()).await;
            until_done("its role", || self.label(&client)).await;
        }
        let mut beat = tokio::time::interval(BEAT);
        loop {
            beat.tick().await;
            until_done("its lease", || self.renew(&client)).await;
        }
    }

    async fn register(&self, client: &Client) -> Result<(), String> {
        let nodes: Api<Node> = Api::all(client.clone());
        let node = serde_json::from_value(self.node()).map_err(|error| error.to_string())?;
        match nodes.create(&PostParams::default(), &node).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => self.post_ready(&nodes).await,
            Err(error) => Err(error.to_string()),
        }
    }

    fn node(&self) -> Value {
        let mut labels = json!({
            "beta.kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": "k3s",
        });
        for (key, value) in &self.with.labels {
            labels[key] = json!(value);
        }
        let mut spec = json!({"taints": self.with.taints});
        if let Some(id) = &self.with.provider_id {
            spec["providerID"] = json!(id);
        }
        let capacity = if self.with.capacity.is_empty() {
            json!({"cpu": "4", "memory": "8Gi", "pods": "110"})
        } else {
            json!(self.with.capacity)
        };
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": labels,
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "spec": spec,
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": self.with.address},
                    {"type": "Hostname", "address": self.name},
                ],
                "capacity": capacity.clone(),
                "allocatable": capacity,
                "conditions": conditions(),
                "nodeInfo": {
                    "architecture": "amd64",
                    "bootID": "",
                    "containerRuntimeVersion": "none",
                    "kernelVersion": "",
                    "kubeProxyVersion": "",
                    "kubeletVersion": self.version,
                    "machineID": "",
                    "operatingSystem": "linux",
                    "osImage": "a folder",
                    "systemUUID": "",
                },
            },
        })
    }

    async fn label(&self, client: &Client) -> Result<(), String> {
        let mut labels = json!({"node-role.kubernetes.io/control-plane": "true"});
        let minor = self
            .version
            .split('.')
            .nth(1)
            .and_then(|minor| minor.parse().ok());
        if minor.is_some_and(|minor: u32| minor < 34) {
            labels["node-role.kubernetes.io/master"] = json!("true");
        }
        let nodes: Api<Node> = Api::all(client.clone());
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        let patched = nodes.patch(&self.name, &PatchParams::default(), &patch).await;
        patched.map(|_| ()).map_err(|error| error.to_string())
    }

    async fn renew(&self, client: &Client) -> Result<(), String> {
        let nodes: Api<Node> = Api::all(client.clone());
        let node = nodes
            .get_opt(&self.name)
            .await
            .map_err(|error| error.to_string())?;
        // A kubelet whose node somebody deleted does not make it again before it is started again.
        let Some(node) = node else {
            return Ok(());
        };
        let conditions = node
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        if !conditions
            .iter()
            .any(|one| one.type_ == "Ready" && one.status == "True")
        {
            self.post_ready(&nodes).await?;
        }
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
        let spec = json!({
            "holderIdentity": self.name,
            "leaseDurationSeconds": 40,
            "renewTime": MicroTime(Timestamp::now()),
        });
        let patch = Patch::Merge(json!({ "spec": spec }));
        match leases.patch(&self.name, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let lease = json!({"metadata": {"name": self.name}, "spec": spec});
                let lease = serde_json::from_value(lease).map_err(|error| error.to_string())?;
                let created = leases.create(&PostParams::default(), &lease).await;
                created.map(|_| ()).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    async fn post_ready(&self, nodes: &Api<Node>) -> Result<(), String> {
        let patch = Patch::Strategic(json!({"status": {
            "conditions": conditions(),
            "nodeInfo": {"kubeletVersion": self.version},
        }}));
        let patched = nodes
            .patch_status(&self.name, &PatchParams::default(), &patch)
            .await;
        patched.map(|_| ()).map_err(|error| error.to_string())
    }
}

/// What a kubelet says of a node that lacks nothing.
fn conditions() -> Value {
    let now = Time(Timestamp::now());
    let condition = |type_: &str, status: &str, reason: &str, message: &str| {
        json!({"type": type_, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    json!([
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available"
        ),
        condition(
            "DiskPressure",
            "False",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure"
        ),
        condition(
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available"
        ),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ])
}

/// Tries until it is done, as a kubelet does.
async fn until_done<T, F: Future<Output = Result<T, String>>>(what: &str, attempt: impl Fn() -> F) -> T {
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => tracing::debug!(error, what, "A kubelet tries again"),
        }
        tokio::time::sleep(AFTER_ERROR).await;
    }
}
