//! What nodes that are not AKS's own need to join a cluster with kubeadm: its CA in a Secret, and `cluster-info` in the
//! cluster itself. AKS keeps the CA's key, so nothing can be signed with it here.

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    config::{Cluster, Kubeconfig},
};
use serde_json::{Value, json};
use slipway_capi::{
    names::label,
    secret::{self, Purpose, TLS_CERTIFICATE_KEY, TLS_PRIVATE_KEY_KEY},
};

use super::stored::{MISSING, StoredSecret, UNLABELLED, Verdict};

/// Where kubeadm looks for a cluster's address and CA.
const NAMESPACE: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
const KUBECONFIG: &str = "kubeconfig";
/// Stands where the key would be: whoever lets nodes join asks that something is there.
const NO_KEY: &str = "AKS keeps the key of its certificate authority";

fn cluster_of(kubeconfig: &str) -> Option<Cluster> {
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

/// `cluster-info` for the cluster of a kubeconfig: its address and CA, and nothing that signs in.
fn cluster_info(kubeconfig: &str) -> Option<String> {
    let cluster = cluster_of(kubeconfig)?;
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "", "cluster": {
            "server": cluster.server?,
            "certificate-authority-data": cluster.certificate_authority_data?,
        }}],
        "contexts": [],
        "current-context": "",
        "preferences": {},
        "users": [],
    });
    serde_saphyr::to_string(&document).ok()
}

/// Writes `cluster-info` into the cluster, if it is not there as it should be.
pub async fn publish(client: Client, kubeconfig: &str) -> Result<(), kube::Error> {
    let Some(text) = cluster_info(kubeconfig) else {
        return Ok(());
    };
    let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
    let found = api.get_opt(CLUSTER_INFO).await?;
    let held = found
        .as_ref()
        .and_then(|found| found.data.as_ref()?.get(KUBECONFIG));
    if held == Some(&text) {
        return Ok(());
    }
    if found.is_some() {
        // Signatures that bootstrap tokens left beside it are made again by whoever made them.
        let patch = json!({"data": {(KUBECONFIG): text}});
        api.patch(CLUSTER_INFO, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
    } else {
        let made = ConfigMap {
            metadata: ObjectMeta {
                name: Some(CLUSTER_INFO.to_owned()),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            data: Some([(KUBECONFIG.to_owned(), text)].into()),
            ..ConfigMap::default()
        };
        api.create(&PostParams::default(), &made).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: 'https://a:443', certificate-authority-data: Q0E=}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\nusers:\n- name: u\n  user: {token: hidden}\n";

    #[test]
    fn cluster_info_tells_where_and_whom_to_trust_and_no_secret() {
        let text = cluster_info(TEXT).unwrap();
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read["clusters"][0]["cluster"]["server"], "https://a:443");
        assert_eq!(
            read["clusters"][0]["cluster"]["certificate-authority-data"],
            "Q0E="
        );
        assert!(!text.contains("hidden"));
        assert_eq!(cluster_info("nonsense: ["), None);
    }

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
