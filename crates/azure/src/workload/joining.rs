//! What nodes that are not AKS's own need to join a cluster with kubeadm: its CA in a Secret, beside `cluster-info` in the
//! cluster itself. AKS keeps the CA's key, so nothing can be signed with it here.

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::{
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::config::{Cluster, Kubeconfig};
use serde_json::{Value, json};
use slipway_capi::{
    names::label,
    secret::{self, Purpose, TLS_CERTIFICATE_KEY, TLS_PRIVATE_KEY_KEY},
};

use super::stored::{MISSING, StoredSecret, UNLABELLED, Verdict};

/// Stands where the key would be: whoever lets nodes join asks that something is there.
const NO_KEY: &str = "AKS keeps the key of its certificate authority";

/// The cluster of a kubeconfig's current context.
pub(super) fn cluster_of(kubeconfig: &str) -> Option<Cluster> {
    let read = Kubeconfig::from_yaml(kubeconfig).ok()?;
    let context = read.current_context.as_deref()?;
    let named = read.contexts.iter().find(|one| one.name == context)?;
    let name = &named.context.as_ref()?.cluster;
    read.clusters
        .iter()
        .find(|one| one.name == *name)?
        .cluster
        .clone()
}

/// The CA certificate of a kubeconfig's cluster, as PEM.
pub fn ca(kubeconfig: &str) -> Option<Vec<u8>> {
    STANDARD
        .decode(cluster_of(kubeconfig)?.certificate_authority_data?)
        .ok()
}

/// The Secret of the CA.
pub fn make(namespace: &str, cluster: &str, controller: OwnerReference, ca: &[u8]) -> Secret {
    secret::cluster_secret(
        namespace,
        cluster,
        &Purpose::ClusterCa.secret_name(cluster),
        Some(controller),
        [
            (TLS_CERTIFICATE_KEY, ca.to_vec()),
            (TLS_PRIVATE_KEY_KEY, NO_KEY.as_bytes().to_vec()),
        ],
    )
}

/// What is to be done about the Secret that was found.
pub fn judge(found: Option<&StoredSecret>, plane: &ObjectMeta, cluster: &str, ca: &[u8]) -> Verdict {
    let Some(stored) = found else {
        return Verdict::Write(MISSING);
    };
    if let Some(verdict) = stored.judge_owner(plane) {
        return verdict;
    }
    if !stored.is_labelled(cluster) {
        Verdict::Write(UNLABELLED)
    } else if stored.ca.as_deref() != Some(ca) {
        Verdict::Write("it holds another CA than the kubeconfig")
    } else {
        Verdict::Good(None)
    }
}

/// The patch that makes a stored Secret what was made.
pub fn patch(made: &Secret, cluster: &str) -> Value {
    json!({"metadata": {"labels": {(label::CLUSTER_NAME): cluster}}, "data": made.data})
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: 'https://a:443', certificate-authority-data: Q0E=}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\nusers:\n- name: u\n  user: {token: hidden}\n";

    #[test]
    fn the_ca_is_written_when_it_is_missing_or_another() {
        let plane = ObjectMeta {
            uid: Some("plane".into()),
            ..ObjectMeta::default()
        };
        let controller = OwnerReference {
            uid: "plane".into(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        let ca = ca(TEXT).unwrap();
        assert_eq!(ca, b"CA");
        let made = make("team", "fleet", controller, &ca);
        assert_eq!(made.metadata.name.as_deref(), Some("fleet-ca"));
        let judged = |found: Option<&Secret>, ca: &[u8]| {
            judge(found.map(StoredSecret::ca).as_ref(), &plane, "fleet", ca)
        };
        assert_eq!(judged(None, &ca), Verdict::Write(MISSING));
        assert_eq!(judged(Some(&made), &ca), Verdict::Good(None));
        let another = Verdict::Write("it holds another CA than the kubeconfig");
        assert_eq!(judged(Some(&made), b"other"), another);
        let mut brought = made.clone();
        brought.metadata.owner_references = None;
        assert_eq!(judged(Some(&brought), b"other"), Verdict::Foreign);
        let mut opaque = made;
        opaque.type_ = Some("Opaque".into());
        assert!(matches!(judged(Some(&opaque), &ca), Verdict::Replace(_)));
    }
}
