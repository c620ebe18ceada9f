//! The lease of an address: a Lease of the cluster that runs on this host, asked of this host's own apiserver and no other. Who holds the
//! address is therefore a server that works.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slipway_agent_api::channel::{Channel, connect};
use tokio::time::timeout;
use tonic::body::Body;

use super::turn::{LEASE, LeaseState, Write, Wrote};

/// Every certificate of an apiserver has it.
const SERVER_NAME: &str = "kubernetes";
/// A call is given up after this time: what came of a write is not known then.
const CALL_WITHIN: Duration = Duration::from_millis(1500);
const LARGEST: usize = 1 << 20;

/// Which lease, and how this host's apiserver is had at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeasePlace {
    pub namespace: String,
    pub name: String,
    /// Of an administrator, on this host: the first that is there. Whatever server it names, this host's is asked.
    pub kubeconfigs: Vec<PathBuf>,
    pub port: u16,
}

/// Where leases are.
#[async_trait]
pub trait Leases: Send + Sync {
    /// `None`: there is none. An error: nobody answers.
    async fn read(&self) -> Result<Option<LeaseState>, String>;

    async fn write(&self, own: &str, write: &Write) -> Wrote;
}

/// The lease in the cluster of this host.
pub struct OwnCluster {
    place: LeasePlace,
    /// What the last read has of it, to write over.
    last: parking_lot::Mutex<Option<Value>>,
    channel: tokio::sync::Mutex<Option<Channel>>,
}

#[derive(Deserialize)]
struct Kubeconfig {
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedCluster {
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    certificate_authority_data: String,
}

#[derive(Deserialize)]
struct NamedUser {
    user: User,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate_data: String,
    client_key_data: String,
}

/// How the kubeconfig says who we are. Errors never repeat it.
fn tls(path: &Path) -> io::Result<Arc<ClientConfig>> {
    let wrong =
        |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()));
    let text = fs::read_to_string(path)?;
    let config: Kubeconfig =
        serde_saphyr::from_str(&text).map_err(|_| wrong("is not a kubeconfig with certificates in it"))?;
    let (Some(cluster), Some(user)) = (config.clusters.first(), config.users.first()) else {
        return Err(wrong("has no cluster or no user"));
    };
    let pem = |text: &str| {
        BASE64_STANDARD
            .decode(text)
            .map_err(|_| wrong("is not in base64"))
    };
    let certificates = |text: &str| -> io::Result<Vec<CertificateDer<'static>>> {
        CertificateDer::pem_slice_iter(&pem(text)?)
            .collect::<Result<_, _>>()
            .map_err(|_| wrong("has a certificate that cannot be read"))
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&cluster.cluster.certificate_authority_data)? {
        roots
            .add(certificate)
            .map_err(|_| wrong("has a CA that cannot be used"))?;
    }
    let chain = certificates(&user.user.client_certificate_data)?;
    let key = PrivateKeyDer::from_pem_slice(&pem(&user.user.client_key_data)?)
        .map_err(|_| wrong("has a key that cannot be read"))?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|_| wrong("has a certificate and a key that do not belong together"))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

impl OwnCluster {
    pub fn new(place: LeasePlace) -> Self {
        Self {
            place,
            last: parking_lot::Mutex::default(),
            channel: tokio::sync::Mutex::default(),
        }
    }

    /// The kubeconfig is read for every connection: it is made and changed by whoever installs Kubernetes.
    async fn call(&self, method: Method, body: Option<&Value>) -> Result<(StatusCode, Value), String> {
        let mut kept = self.channel.lock().await;
        let open = kept.clone().filter(|channel| !channel.is_closed());
        let mut channel = match open {
            Some(channel) => channel,
            None => {
                let mut paths = self.place.kubeconfigs.iter();
                let path = paths
                    .find(|path| path.exists())
                    .ok_or("there is no kubeconfig on this host yet")?;
                let tls = tls(path).map_err(|error| error.to_string())?;
                let address = format!("127.0.0.1:{}", self.place.port);
                let stream = connect(&address, SERVER_NAME, tls)
                    .await
                    .map_err(|error| error.to_string())?;
                let (channel, ended) = Channel::over(stream, SERVER_NAME)
                    .await
                    .map_err(|error| error.to_string())?;
                tokio::spawn(ended);
                *kept = Some(channel.clone());
                channel
            }
        };
        drop(kept);
        let LeasePlace { namespace, name, .. } = &self.place;
        let mut path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        if method != Method::POST {
            path.push('/');
            path.push_str(name);
        }
        let text = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(format!("https://{SERVER_NAME}{path}"))
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .body(Body::new(text))
            .map_err(|error| error.to_string())?;
        let response = channel.send(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST)
            .collect()
            .await
            .map_err(|error| error.to_string())?
            .to_bytes();
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    async fn called(&self, method: Method, body: Option<&Value>) -> Result<(StatusCode, Value), String> {
        let called = timeout(CALL_WITHIN, self.call(method, body)).await;
        let called = called.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        if called.is_err() {
            *self.channel.lock().await = None;
        }
        called
    }

    fn seen(&self, lease: Value) -> LeaseState {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let seen = LeaseState {
            holder: text(&lease["spec"]["holderIdentity"]),
            version: text(&lease["metadata"]["resourceVersion"]),
        };
        *self.last.lock() = Some(lease);
        seen
    }
}

/// The lease as it is written.
fn written(place: &LeasePlace, own: &str, before: Option<&Value>, now: Timestamp) -> Value {
    let time = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let mut lease = before.cloned().unwrap_or_else(|| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": place.namespace, "name": place.name},
            "spec": {"leaseTransitions": 0, "acquireTime": time},
        })
    });
    let spec = &mut lease["spec"];
    if before.is_some() && spec["holderIdentity"] != own {
        spec["leaseTransitions"] = json!(spec["leaseTransitions"].as_i64().unwrap_or(0) + 1);
        spec["acquireTime"] = json!(time);
    }
    spec["holderIdentity"] = json!(own);
    spec["leaseDurationSeconds"] = json!(LEASE / 1000);
    spec["renewTime"] = json!(time);
    lease
}

#[async_trait]
impl Leases for OwnCluster {
    async fn read(&self) -> Result<Option<LeaseState>, String> {
        match self.called(Method::GET, None).await? {
            (StatusCode::OK, lease) => Ok(Some(self.seen(lease))),
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, said) => Err(format!(
                "reading the lease: {status} {}",
                said["message"].as_str().unwrap_or_default()
            )),
        }
    }

    async fn write(&self, own: &str, write: &Write) -> Wrote {
        let before = self.last.lock().clone();
        let (method, lease) = match &write.over {
            None => (Method::POST, written(&self.place, own, None, Timestamp::now())),
            Some(version) => {
                let before = before.filter(|lease| lease["metadata"]["resourceVersion"] == version.as_str());
                let Some(before) = before else {
                    return Wrote::Refused;
                };
                (
                    Method::PUT,
                    written(&self.place, own, Some(&before), Timestamp::now()),
                )
            }
        };
        match self.called(method, Some(&lease)).await {
            Ok((status, _)) if status.is_success() => Wrote::Done,
            Ok((status, _)) if status.is_client_error() => Wrote::Refused,
            Ok(_) | Err(_) => Wrote::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_who_took_it_and_keeps_what_others_wrote() {
        let place = LeasePlace {
            namespace: "kube-system".to_owned(),
            name: "address".to_owned(),
            kubeconfigs: Vec::new(),
            port: 6443,
        };
        let now: Timestamp = "2026-11-18T02:00:00.5Z".parse().expect("a time");
        let made = written(&place, "a", None, now);
        assert_eq!(made["spec"]["renewTime"], "2026-11-18T02:00:00.500000Z");
        assert_eq!(made["spec"]["leaseTransitions"], 0);
        let mut read = made.clone();
        read["metadata"]["labels"] = json!({"owner": "ada"});
        let later = now + jiff::SignedDuration::from_secs(3);
        let renewed = written(&place, "a", Some(&read), later);
        assert_eq!(renewed["metadata"]["labels"]["owner"], "ada");
        assert_eq!(renewed["spec"]["acquireTime"], made["spec"]["acquireTime"]);
        let taken = written(&place, "b", Some(&read), later);
        assert_eq!(
            (
                &taken["spec"]["leaseTransitions"],
                &taken["spec"]["holderIdentity"]
            ),
            (&json!(1), &json!("b"))
        );
        assert_ne!(taken["spec"]["acquireTime"], made["spec"]["acquireTime"]);
    }

    #[test]
    fn a_kubeconfig_that_cannot_be_used_is_not_repeated() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("k3s.yaml");
        for text in [
            "canary",
            "clusters: []\nusers: []\n",
            "clusters: [{name: a, cluster: {certificate-authority-data: canary}}]\nusers: [{name: a, user: {client-certificate-data: canary, client-key-data: canary}}]\n",
        ] {
            fs::write(&path, text).expect("written");
            let said = tls(&path).expect_err("it cannot be used").to_string();
            assert!(said.contains("k3s.yaml") && !said.contains("canary"), "{said}");
        }
    }
}
