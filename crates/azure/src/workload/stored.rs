//! What is known of a stored kubeconfig or CA Secret once it was read: enough to judge it, and nothing that signs in. Pure.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use slipway_capi::{
    owner,
    secret::{SECRET_TYPE, TLS_CERTIFICATE_KEY, VALUE_KEY, kubeconfig},
};

use super::joining;

/// What is to be done about one Secret, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be; until then, if it holds a token.
    Good(Option<Timestamp>),
    /// Somebody else's: it stays as it is.
    Foreign,
    /// To be written.
    Write(&'static str),
    /// Its type cannot be changed: it is deleted and created.
    Replace(&'static str),
}

/// A Secret as it is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredSecret {
    /// Whose it is: uid, owners, labels, annotations.
    pub metadata: ObjectMeta,
    pub type_: Option<String>,
    /// Whether it holds a kubeconfig that can be read.
    pub is_readable: bool,
    /// When the first client certificate in it ends. One that cannot be read is AKS's own business: what it hands out is
    /// not better a second time.
    pub ends: Option<Timestamp>,
    /// The CA certificate in it, as PEM.
    pub ca: Option<Vec<u8>>,
}

impl StoredSecret {
    /// A Secret with a kubeconfig.
    pub fn kubeconfig(secret: &Secret) -> Self {
        let text = value(secret, VALUE_KEY).and_then(|bytes| std::str::from_utf8(bytes).ok());
        Self {
            is_readable: kubeconfig::read(secret).is_ok(),
            ends: kubeconfig::ends(secret).ok().flatten(),
            ca: text.and_then(joining::ca),
            ..Self::about(secret)
        }
    }

    /// A Secret with a kubeconfig under a key of the user's choice.
    pub fn kubeconfig_under(secret: &Secret, key: &str) -> Self {
        let mut plain = secret.clone();
        let found = secret.data.as_ref().and_then(|data| data.get(key)).cloned();
        plain.data = found.map(|value| [(VALUE_KEY.to_owned(), value)].into());
        Self::kubeconfig(&plain)
    }

    /// A Secret with a CA.
    pub fn ca(secret: &Secret) -> Self {
        Self {
            ca: value(secret, TLS_CERTIFICATE_KEY).map(<[u8]>::to_vec),
            ..Self::about(secret)
        }
    }

    fn about(secret: &Secret) -> Self {
        let found = secret.metadata.clone();
        Self {
            metadata: ObjectMeta {
                managed_fields: None,
                ..found
            },
            type_: secret.type_.clone(),
            ..Self::default()
        }
    }

    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(name).map(String::as_str)
    }

    pub(super) fn is_labelled(&self, cluster: &str) -> bool {
        owner::labelled_cluster_name(&self.metadata) == Some(cluster)
    }

    /// What is to be done whatever the Secret holds.
    pub(super) fn judge_owner(&self, plane: &ObjectMeta) -> Option<Verdict> {
        if !owner::is_controlled_by(&self.metadata, plane) {
            return Some(Verdict::Foreign);
        }
        let of_type = self.type_.as_deref() == Some(SECRET_TYPE);
        (!of_type).then_some(Verdict::Replace(
            "it is not of Cluster API's type, and a Secret's type cannot be changed",
        ))
    }
}

fn value<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    Some(&secret.data.as_ref()?.get(key)?.0)
}

/// Why a Secret is written that does not exist.
pub(super) const MISSING: &str = "there is no such Secret";
/// Why a Secret is written that the Cluster's tools do not find.
pub(super) const UNLABELLED: &str = "it lacks the label of its Cluster";
