//! The Secrets of a cluster: kubeconfig, certificate authorities and bootstrap data, with the names, type, label and owner that
//! Cluster API and its tools look for. Nothing here prints what is inside.

pub mod certificate;
pub mod kubeconfig;
pub mod store;

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use secrecy::{ExposeSecret, SecretString};

use crate::{Error, names::label};

/// The type of every Secret of a cluster. Cluster API's cache holds only Secrets that carry the label.
pub const SECRET_TYPE: &str = "cluster.x-k8s.io/secret";

/// What a Secret of a cluster is for; its name is `<cluster>-<purpose>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    Kubeconfig,
    /// Signs the apiserver's certificate.
    ClusterCa,
    /// Signs client certificates, where that is a CA of its own (K3s).
    ClientCa,
    EtcdCa,
    /// Signs the certificates of etcd's members among themselves, where that is a CA of its own.
    EtcdPeerCa,
    ServiceAccount,
    FrontProxyCa,
    ApiserverEtcdClient,
}

impl Purpose {
    pub const ALL: &'static [Self] = &[
        Self::Kubeconfig,
        Self::ClusterCa,
        Self::ClientCa,
        Self::EtcdPeerCa,
        Self::EtcdCa,
        Self::ServiceAccount,
        Self::FrontProxyCa,
        Self::ApiserverEtcdClient,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubeconfig => "kubeconfig",
            Self::ClusterCa => "ca",
            Self::ClientCa => "cca",
            Self::EtcdCa => "etcd",
            Self::EtcdPeerCa => "peer-etcd",
            Self::ServiceAccount => "sa",
            Self::FrontProxyCa => "proxy",
            Self::ApiserverEtcdClient => "apiserver-etcd-client",
        }
    }

    pub fn secret_name(self, cluster: &str) -> String {
        format!("{cluster}-{}", self.as_str())
    }

    /// The cluster and purpose a Secret's name stands for. The longest suffix counts.
    pub fn parse(secret_name: &str) -> Option<(&str, Self)> {
        Self::ALL
            .iter()
            .filter_map(|purpose| {
                let cluster = secret_name.strip_suffix(purpose.as_str())?.strip_suffix('-')?;
                (!cluster.is_empty()).then_some((cluster, *purpose))
            })
            .min_by_key(|(cluster, _)| cluster.len())
    }
}

/// A certificate and its key, in PEM. For service accounts it is a public key and its private key.
#[derive(Clone)]
pub struct KeyPair {
    pub certificate: String,
    /// Absent where only the certificate is known, as with a CA that somebody else keeps.
    pub key: Option<SecretString>,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("KeyPair")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// The key under which a kubeconfig or bootstrap data is stored.
pub const VALUE_KEY: &str = "value";
pub const TLS_CERTIFICATE_KEY: &str = "tls.crt";
pub const TLS_PRIVATE_KEY_KEY: &str = "tls.key";

/// A Secret of a cluster. With an owner it is deleted with it; a Secret without one is the user's.
pub fn cluster_secret(
    namespace: &str,
    cluster: &str,
    name: &str,
    owner: Option<OwnerReference>,
    data: impl IntoIterator<Item = (&'static str, Vec<u8>)>,
) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some([(label::CLUSTER_NAME.to_owned(), cluster.to_owned())].into()),
            owner_references: owner.map(|owner| vec![owner]),
            ..Default::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some(
            data.into_iter()
                .map(|(key, value)| (key.to_owned(), ByteString(value)))
                .collect::<BTreeMap<_, _>>(),
        ),
        ..Default::default()
    }
}

/// The Secret of a key pair.
pub fn key_pair_secret(
    namespace: &str,
    cluster: &str,
    purpose: Purpose,
    owner: Option<OwnerReference>,
    pair: &KeyPair,
) -> Secret {
    let key = pair
        .key
        .as_ref()
        .map(ExposeSecret::expose_secret)
        .unwrap_or_default();
    cluster_secret(
        namespace,
        cluster,
        &purpose.secret_name(cluster),
        owner,
        [
            (TLS_CERTIFICATE_KEY, pair.certificate.clone().into_bytes()),
            (TLS_PRIVATE_KEY_KEY, key.as_bytes().to_vec()),
        ],
    )
}

/// The key pair in a Secret.
pub fn read_key_pair(secret: &Secret) -> Result<KeyPair, Error> {
    let certificate = text(secret, TLS_CERTIFICATE_KEY)?
        .filter(|certificate| !certificate.is_empty())
        .ok_or_else(|| {
            unusable(
                secret,
                &format!("it has no data under the key {TLS_CERTIFICATE_KEY:?}"),
            )
        })?;
    Ok(KeyPair {
        certificate: certificate.to_owned(),
        key: text(secret, TLS_PRIVATE_KEY_KEY)?
            .filter(|key| !key.is_empty())
            .map(|key| key.to_owned().into()),
    })
}

/// Whether we made this Secret (it is owned by this object), or the user gave it to us.
pub fn is_generated(secret: &Secret, owner_uid: &str) -> bool {
    secret
        .metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.uid == owner_uid)
}

fn text<'a>(secret: &'a Secret, key: &str) -> Result<Option<&'a str>, Error> {
    secret
        .data
        .as_ref()
        .and_then(|data| data.get(key))
        .map(|bytes| std::str::from_utf8(&bytes.0))
        .transpose()
        .map_err(|_| unusable(secret, &format!("the data under the key {key:?} is not text")))
}

fn unusable(secret: &Secret, problem: &str) -> Error {
    Error::Secret {
        secret: crate::owner::key(
            secret.metadata.namespace.as_deref(),
            secret.metadata.name.as_deref().unwrap_or_default(),
        ),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_as_they_were_put_together() {
        for purpose in Purpose::ALL {
            for cluster in ["edge", "my-ca", "a-etcd", "x-apiserver-etcd-client"] {
                let name = purpose.secret_name(cluster);
                assert_eq!(Purpose::parse(&name), Some((cluster, *purpose)), "{name}");
            }
        }
        assert_eq!(Purpose::parse("edge"), None);
        assert_eq!(Purpose::parse("-ca"), None);
    }

    #[test]
    fn a_secret_has_the_type_label_and_owner_cluster_api_looks_for() {
        let owner = OwnerReference {
            uid: "u".into(),
            ..Default::default()
        };
        let pair = KeyPair {
            certificate: "cert".into(),
            key: Some("key".to_owned().into()),
        };
        let secret = key_pair_secret("fleet", "edge", Purpose::ClusterCa, Some(owner), &pair);
        assert_eq!(secret.metadata.name.as_deref(), Some("edge-ca"));
        assert_eq!(secret.type_.as_deref(), Some("cluster.x-k8s.io/secret"));
        assert_eq!(
            secret.metadata.labels.as_ref().unwrap()["cluster.x-k8s.io/cluster-name"],
            "edge"
        );
        assert!(is_generated(&secret, "u"));
        let supplied = key_pair_secret("fleet", "edge", Purpose::ClusterCa, None, &pair);
        assert!(!is_generated(&supplied, "u"));
        assert_eq!(read_key_pair(&secret).unwrap().certificate, "cert");
    }

    #[test]
    fn what_is_wrong_with_a_secret_is_said_without_what_is_in_it() {
        let mut secret = cluster_secret(
            "fleet",
            "edge",
            "edge-ca",
            None,
            [(TLS_PRIVATE_KEY_KEY, b"hidden".to_vec())],
        );
        assert_eq!(
            read_key_pair(&secret).unwrap_err().to_string(),
            "Secret fleet/edge-ca cannot be used: it has no data under the key \"tls.crt\""
        );
        secret.data = Some([(TLS_CERTIFICATE_KEY.to_owned(), ByteString(vec![0xff]))].into());
        assert!(
            read_key_pair(&secret)
                .unwrap_err()
                .to_string()
                .contains("is not text")
        );
        let pair = KeyPair {
            certificate: "cert".into(),
            key: Some("hidden".to_owned().into()),
        };
        assert!(!format!("{pair:?}").contains("hidden"));
    }
}
