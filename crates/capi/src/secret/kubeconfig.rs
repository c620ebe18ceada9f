//! The kubeconfig Secret of a workload cluster: making it, reading it, connecting with it, renewing its certificate.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::config::Kubeconfig;
use secrecy::ExposeSecret;
use serde_json::json;
use slipway_runtime::workload::Access;

use super::{
    KeyPair, Purpose, VALUE_KEY,
    certificate::{self, KeyAlgorithm},
    cluster_secret, text, unusable,
};
use crate::Error;

/// The Secret that Cluster API, clusterctl and users look for: `<cluster>-kubeconfig`.
pub fn secret(namespace: &str, cluster: &str, owner: OwnerReference, kubeconfig: &str) -> Secret {
    cluster_secret(
        namespace,
        cluster,
        &Purpose::Kubeconfig.secret_name(cluster),
        Some(owner),
        [(VALUE_KEY, kubeconfig.as_bytes().to_vec())],
    )
}

/// What an administrator's kubeconfig is made of.
#[derive(Clone, Debug)]
pub struct Administrator<'a> {
    pub cluster: &'a str,
    /// The URL of the apiserver.
    pub server: &'a str,
    /// Signs the apiserver's certificate.
    pub server_ca: &'a str,
    /// Signs the administrator's certificate.
    pub client_ca: &'a KeyPair,
    pub algorithm: KeyAlgorithm,
    pub lifetime: Duration,
}

impl Administrator<'_> {
    /// The kubeconfig, with a new certificate for `kubernetes-admin` of `system:masters`.
    pub fn kubeconfig(&self, now: Timestamp) -> Result<String, Error> {
        let client = certificate::client_certificate(
            self.client_ca,
            "kubernetes-admin",
            &["system:masters"],
            self.algorithm,
            self.lifetime,
            now,
        )?;
        let user = format!("{}-admin", self.cluster);
        let context = format!("{user}@{}", self.cluster);
        let key = client
            .key
            .as_ref()
            .map(ExposeSecret::expose_secret)
            .unwrap_or_default();
        let document = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": self.cluster,
                "cluster": {
                    "server": self.server,
                    "certificate-authority-data": STANDARD.encode(self.server_ca),
                },
            }],
            "contexts": [{ "name": context, "context": { "cluster": self.cluster, "user": user } }],
            "current-context": context,
            "users": [{
                "name": user,
                "user": {
                    "client-certificate-data": STANDARD.encode(&client.certificate),
                    "client-key-data": STANDARD.encode(key),
                },
            }],
            "preferences": {},
        });
        serde_saphyr::to_string(&document)
            .map_err(|_| Error::Certificate("the kubeconfig cannot be written".to_owned()))
    }
}

/// The kubeconfig in a Secret.
pub fn read(secret: &Secret) -> Result<Kubeconfig, Error> {
    let value = text(secret, VALUE_KEY)?
        .ok_or_else(|| unusable(secret, &format!("it has no data under the key {VALUE_KEY:?}")))?;
    // The parser's message can quote the text, which is a secret.
    Kubeconfig::from_yaml(value).map_err(|_| {
        unusable(
            secret,
            &format!("the data under the key {VALUE_KEY:?} is not a kubeconfig"),
        )
    })
}

/// How to reach the workload cluster. What would run a program or read a file of this machine is refused.
pub fn access(secret: &Secret) -> Result<Access, Error> {
    Access::from_kubeconfig(read(secret)?).map_err(|refused| unusable(secret, &refused.to_string()))
}

/// When the first client certificate in it ends; `None` where it has none.
pub fn ends(secret: &Secret) -> Result<Option<Timestamp>, Error> {
    let mut first = None;
    for named in read(secret)?.auth_infos {
        let Some(data) = named.auth_info.and_then(|user| user.client_certificate_data) else {
            continue;
        };
        let pem = STANDARD
            .decode(data.trim())
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .ok_or_else(|| unusable(secret, "its client certificate is not base64"))?;
        let ends =
            certificate::ends(&pem).map_err(|_| unusable(secret, "its client certificate cannot be read"))?;
        first = Some(first.map_or(ends, |earlier: Timestamp| earlier.min(ends)));
    }
    Ok(first)
}

/// Whether any client certificate in the kubeconfig ends within the given time. One without certificates has
/// nothing to renew.
pub fn needs_renewal(secret: &Secret, threshold: Duration, now: Timestamp) -> Result<bool, Error> {
    Ok(ends(secret)?.is_some_and(|ends| certificate::is_within(ends, threshold, now)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::certificate::{CA_LIFETIME, CLIENT_LIFETIME, DAY};

    fn now() -> Timestamp {
        "2026-06-01T12:00:00Z".parse().unwrap()
    }

    fn made() -> Secret {
        let ca = certificate::generate(
            Purpose::ClusterCa,
            "kubernetes",
            KeyAlgorithm::EcdsaP256,
            CA_LIFETIME,
            now(),
        )
        .unwrap();
        let kubeconfig = Administrator {
            cluster: "edge",
            server: "https://10.0.0.1:6443",
            server_ca: &ca.certificate,
            client_ca: &ca,
            algorithm: KeyAlgorithm::EcdsaP256,
            lifetime: CLIENT_LIFETIME,
        }
        .kubeconfig(now())
        .unwrap();
        secret("fleet", "edge", OwnerReference::default(), &kubeconfig)
    }

    fn with(kubeconfig: &str) -> Secret {
        secret("fleet", "edge", OwnerReference::default(), kubeconfig)
    }

    #[tokio::test]
    async fn what_was_made_can_be_connected_with() {
        let secret = made();
        assert_eq!(secret.metadata.name.as_deref(), Some("edge-kubeconfig"));
        let read = read(&secret).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("edge-admin@edge"));
        let access = access(&secret).unwrap();
        assert_eq!(access.url(), "https://10.0.0.1:6443/");
        assert!(access.config().root_cert.is_some());
        kube::Client::try_from(access.into_config()).unwrap();
    }

    #[test]
    fn a_certificate_is_renewed_at_half_its_life() {
        let secret = made();
        let half = CLIENT_LIFETIME / 2;
        assert!(!needs_renewal(&secret, half, now()).unwrap());
        let later = now() + half + DAY;
        assert!(needs_renewal(&secret, half, later).unwrap());
    }

    #[test]
    fn a_kubeconfig_that_would_reach_into_the_manager_is_refused_by_name() {
        let secret = with(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: \
             'https://a:1'}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\nusers:\n- name: u\n  user: \
             {client-key: /etc/passwd}\n",
        );
        assert_eq!(
            access(&secret).unwrap_err().to_string(),
            "Secret fleet/edge-kubeconfig cannot be used: it refers to files (client-key); put the token, certificate or \
             key itself into it"
        );
    }

    #[test]
    fn what_is_wrong_is_said_without_the_content() {
        let message = read(&with("token: hunter2: [")).unwrap_err().to_string();
        assert_eq!(
            message,
            "Secret fleet/edge-kubeconfig cannot be used: the data under the key \"value\" is not a kubeconfig"
        );
    }
}
