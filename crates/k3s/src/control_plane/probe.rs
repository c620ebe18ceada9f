//! Asks a server's own API whether it is ready, its etcd included, at an address of its machine, and its kubelet through the
//! cluster's endpoint. Only when a decision needs it. At its address a server must show a certificate of the cluster for the
//! cluster's endpoint: whatever else is there is no answer.

use std::{net::IpAddr, time::Duration};

use kube::{Client, client::Body};
use slipway_runtime::{
    ObjectKey,
    workload::{Access, Clients},
};

use super::{liveness::Kubelet, observed::Node};

/// Long enough for a server nearby; one that takes longer is not counted on.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Ready,
    NotReady(String),
    /// No server of this cluster answers.
    Silence,
}

/// Asks the servers of one cluster, with the cluster's own credentials.
pub struct Prober {
    pub clients: Clients,
    pub key: ObjectKey,
    pub access: Access,
}

impl Prober {
    pub async fn ask(&self, address: IpAddr, port: u16) -> Answer {
        let at = match address {
            IpAddr::V4(address) => format!("{address}:{port}"),
            IpAddr::V6(address) => format!("[{address}]:{port}"),
        };
        // Every server's certificate is for the endpoint too (`tls-san`), and not always for its address.
        let endpoint = self.access.url().host().unwrap_or_default().to_owned();
        let Ok(access) = self.access.clone().at(&at) else {
            return Answer::Silence;
        };
        let access = match &self.access.config().tls_server_name {
            Some(_) => access,
            None => access.server_name(&endpoint),
        };
        let asked = async {
            let client = self.clients.connect(&self.key, &access)?;
            let request = http::Request::get("/readyz")
                .body(Body::empty())
                .map_err(kube::Error::HttpError)?;
            let answer = client.send(request).await?;
            let status = answer.status();
            if status.is_success() {
                return Ok(Answer::Ready);
            }
            let text = answer.into_body().collect_bytes().await?;
            Ok::<_, kube::Error>(Answer::NotReady(
                failing(&String::from_utf8_lossy(&text)).unwrap_or_else(|| format!("it answers {status}")),
            ))
        };
        // Whatever is there and is no server of this cluster (nobody, a proxy, another cluster) is no evidence of anything.
        match tokio::time::timeout(PROBE_TIMEOUT, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Answer::Silence,
        }
    }
}

/// Asks the kubelets of nodes through the cluster's endpoint. Where none answers, the way is closed and nothing is said of any.
pub async fn ask_kubelets(client: &Client, nodes: &mut [Node]) {
    let asked = nodes.iter().map(|node| async {
        if node.placeholder {
            Kubelet::NotAsked
        } else {
            ask_kubelet(client, &node.name).await
        }
    });
    let answers = futures::future::join_all(asked).await;
    if !answers.contains(&Kubelet::Answers) {
        return;
    }
    for (node, answer) in nodes.iter_mut().zip(answers) {
        node.kubelet = answer;
    }
}

async fn ask_kubelet(client: &Client, node: &str) -> Kubelet {
    let Ok(request) = http::Request::get(format!("/api/v1/nodes/{node}/proxy/healthz")).body(Body::empty())
    else {
        return Kubelet::NotAsked;
    };
    match tokio::time::timeout(PROBE_TIMEOUT, client.send(request)).await {
        Ok(Ok(answer)) if answer.status().is_success() => Kubelet::Answers,
        Ok(Ok(answer)) if answer.status().is_server_error() => Kubelet::Silent,
        // The endpoint does not answer, or does not let us through: that is nothing about the node.
        Ok(Ok(_) | Err(_)) => Kubelet::NotAsked,
        Err(_) => Kubelet::Silent,
    }
}

/// The checks that failed, as the apiserver lists them.
fn failing(text: &str) -> Option<String> {
    let checks: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("[-]")?.split_whitespace().next())
        .take(5)
        .collect();
    (!checks.is_empty()).then(|| format!("{} failed", checks.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_named() {
        let text = "[+]ping ok\n[-]etcd failed: reason withheld\n[-]etcd-readiness failed: reason withheld\n";
        assert_eq!(failing(text).as_deref(), Some("etcd, etcd-readiness failed"));
        assert_eq!(failing("apiserver not ready"), None);
    }
}
