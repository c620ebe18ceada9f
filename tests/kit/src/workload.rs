//! A workload cluster in this process, which every kubeconfig leads to: its nodes, and what it forbids.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    client::{Body, Client},
};
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_runtime::{Clock, workload::Connector};

/// Names a node's pool in AKS.
pub const AKS_POOL: &str = "kubernetes.azure.com/agentpool";

#[derive(Clone)]
pub struct Workload {
    pub server: Apiserver,
}

impl fmt::Debug for Workload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Workload")
    }
}

/// Something that a cluster forbids.
#[derive(Debug, Default)]
pub struct Forbidden {
    asked: AtomicUsize,
    is_lifted: AtomicBool,
}

impl Forbidden {
    /// How often somebody asked for it in vain.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// From now on it is allowed.
    pub fn lift(&self) {
        self.is_lifted.store(true, Ordering::Relaxed);
    }
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            server: Apiserver::new(Clock::starting_at(jiff::Timestamp::UNIX_EPOCH)),
        }
    }
}

impl Workload {
    /// Leads every kubeconfig to this cluster.
    pub fn connector(&self) -> Connector {
        let server = self.server.clone();
        Arc::new(move |_, _| Ok(server.client()))
    }

    /// The same, but who asks for this gets 403.
    pub fn forbidding(&self, method: &Method, path: &'static str) -> (Connector, Arc<Forbidden>) {
        let (inner, method) = (self.server.client(), method.clone());
        let forbidden = Arc::new(Forbidden::default());
        let shared = Arc::clone(&forbidden);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (inner, forbidden) = (inner.clone(), Arc::clone(&shared));
            let is_it = *request.method() == method && request.uri().path().ends_with(path);
            async move {
                if !is_it || forbidden.is_lifted.load(Ordering::Relaxed) {
                    return inner.send(request).await;
                }
                forbidden.asked.fetch_add(1, Ordering::Relaxed);
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden",
                    "message": format!("{path} is forbidden"), "code": 403});
                let answer = Response::builder().status(403);
                Ok(answer
                    .body(Body::from(status.to_string().into_bytes()))
                    .expect("an answer"))
            }
        });
        let client = Client::new(service, "default");
        (Arc::new(move |_, _| Ok(client.clone())), forbidden)
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.server.client())
    }

    /// A node of an AKS pool joins.
    pub async fn join(&self, name: &str, pool: &str) {
        self.join_labelled(name, &json!({(AKS_POOL): pool})).await;
    }

    /// A node joins with these labels.
    pub async fn join_labelled(&self, name: &str, labels: &Value) {
        let node = json!({"metadata": {"name": name, "labels": labels},
            "spec": {"providerID": format!("azure:///{name}")}});
        let node: Node = serde_json::from_value(node).expect("a node");
        let created = self.nodes().create(&PostParams::default(), &node).await;
        created.expect("created");
    }

    /// A node of this provider id joins, and says of itself what a kubelet does.
    pub async fn join_with(&self, name: &str, provider_id: &str, labels: &Value) {
        let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"providerID": provider_id}});
        let node: Node = serde_json::from_value(node).expect("a node");
        let created = self.nodes().create(&PostParams::default(), &node).await;
        created.expect("created");
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.224.0.4"}],
            "nodeInfo": {"kubeletVersion": "v1.33.3", "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "",
                "systemUUID": ""}}});
        let parameters = PatchParams::default();
        let told = self
            .nodes()
            .patch_status(name, &parameters, &Patch::Merge(&status))
            .await;
        told.expect("told");
    }

    pub async fn leave(&self, name: &str) {
        let deleted = self.nodes().delete(name, &DeleteParams::default()).await;
        deleted.expect("deleted");
    }
}
