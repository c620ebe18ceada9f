//! Hosts as Nodes of a real workload cluster, which kwok makes ready.

use async_trait::async_trait;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Node, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    api::Endpoint,
    backend::{Backend, BackendError, Booting},
    node::{self, SYSTEM},
};
use crate::{certificates::Ca, cluster::Cluster};

pub(super) struct KwokNodes {
    client: Client,
    endpoint: Endpoint,
    pub ca: Ca,
    pub kubeconfig: String,
}

impl KwokNodes {
    pub fn of(workload: &Cluster) -> Self {
        Self {
            client: workload.client_as("testbed-hosts", &["system:masters"]),
            endpoint: Endpoint {
                host: "127.0.0.1".to_owned(),
                port: i32::from(workload.port()),
            },
            ca: workload.ca().clone(),
            kubeconfig: workload.kubeconfig_as("testbed-hosts-user", Some("system:masters")),
        }
    }
}

#[async_trait]
impl Backend for KwokNodes {
    async fn endpoint(&self, _cluster: &str) -> Result<Endpoint, BackendError> {
        Ok(self.endpoint.clone())
    }

    async fn boot(&self, host: &Booting) -> Result<(), BackendError> {
        create(&Api::<Node>::all(self.client.clone()), node::node(host)).await?;
        if host.is_control_plane && host.bootstrap_kind == "KubeadmConfig" {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM);
            for pod in node::control_plane_pods(host) {
                create(&pods, pod).await?;
            }
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), SYSTEM);
            create(&maps, node::kubeadm_config(host)).await?;
        }
        Ok(())
    }

    async fn destroy(&self, _cluster: &str, host: &str) -> Result<(), BackendError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM);
        for pod in node::control_plane_pod_names(host) {
            ignore_missing(pods.delete(&pod, &DeleteParams::default().grace_period(0)).await)?;
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        ignore_missing(nodes.delete(host, &DeleteParams::default()).await)?;
        Ok(())
    }

    async fn set_alive(&self, _cluster: &str, host: &str, alive: bool) -> Result<(), BackendError> {
        let (kwok, ready, reason) = if alive {
            (Some("fake"), "True", "HostRevived")
        } else {
            (None, "Unknown", "HostKilled")
        };
        let nodes: Api<Node> = Api::all(self.client.clone());
        let owned = json!({"metadata": {"annotations": {"kwok.x-k8s.io/node": kwok}}});
        let parameters = PatchParams::default();
        nodes.patch(host, &parameters, &Patch::Merge(&owned)).await?;
        let now = Time::from(Timestamp::now());
        let status = json!({"status": {"conditions": [{
            "type": "Ready",
            "status": ready,
            "reason": reason,
            "message": "as the test asked",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }]}});
        nodes
            .patch_status(host, &parameters, &Patch::Strategic(&status))
            .await?;
        Ok(())
    }
}

/// Creates an object of the workload cluster; one that is there already is what was asked for.
async fn create<K>(api: &Api<K>, object: Value) -> Result<(), kube::Error>
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object: K = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn ignore_missing<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}
