//! `kube-public/cluster-info` of a workload cluster, where kubeadm looks for its address and CA. It is read once for each
//! connection; an action of a plan writes it where it differs. Nothing in it signs in.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_runtime::{Class, Classified};

use super::joining::cluster_of;
use crate::reconcile::Error;

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
const KUBECONFIG: &str = "kubeconfig";

/// How `cluster-info` differs from what it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClusterInfo {
    /// Not read: the cluster does not answer or refuses, another object sees to it, or the kubeconfig names no CA.
    #[default]
    Unknown,
    Missing,
    /// A field that differs: its path, what is there, what should be.
    Differs {
        path: &'static str,
        from: String,
        to: String,
    },
    Good,
}

/// What is known of it over one connection. Clones share it.
#[derive(Clone)]
pub struct Publication {
    client: Client,
    state: Arc<Mutex<State>>,
}

impl std::fmt::Debug for Publication {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_tuple("Publication")
            .field(&self.state.lock())
            .finish()
    }
}

#[derive(Debug)]
enum State {
    /// It should hold this text.
    Unread(String),
    /// It should hold this text, and does not.
    Read(String, ClusterInfo),
    /// The cluster does not let us. Asked again when the cluster comes back.
    Refused(String),
    /// It is as it should be, or there is nothing to publish.
    Settled(ClusterInfo),
}

impl Publication {
    pub(super) fn over(client: Client, kubeconfig: &str) -> Self {
        let state = document(kubeconfig).map_or(State::Settled(ClusterInfo::Unknown), State::Unread);
        Self {
            client,
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The cluster was away, or has come back: what was read or refused is asked for again.
    pub(super) fn ask_again(&self) {
        let mut state = self.state.lock();
        if let State::Read(text, _) | State::Refused(text) = &mut *state {
            *state = State::Unread(std::mem::take(text));
        }
    }

    /// Reads it, if that has not been done over this connection.
    pub(super) async fn read(&self) -> ClusterInfo {
        let text = match &*self.state.lock() {
            State::Unread(text) => text.clone(),
            State::Read(_, found) | State::Settled(found) => return found.clone(),
            State::Refused(_) => return ClusterInfo::Unknown,
        };
        match self.api().get_opt(NAME).await {
            Ok(found) => {
                let found = judge(found.as_ref(), &text);
                *self.state.lock() = match &found {
                    ClusterInfo::Good => State::Settled(ClusterInfo::Good),
                    other => State::Read(text, other.clone()),
                };
                found
            }
            Err(error) => {
                tracing::debug!(%error, "cluster-info cannot be read");
                self.note(&error, text);
                ClusterInfo::Unknown
            }
        }
    }

    /// Writes what was found to be missing or another.
    pub async fn write(&self) -> Result<(), Error> {
        let (text, found) = match &*self.state.lock() {
            State::Read(text, found) => (text.clone(), found.clone()),
            State::Unread(_) | State::Refused(_) | State::Settled(_) => return Ok(()),
        };
        let api = self.api();
        let written = if found == ClusterInfo::Missing {
            api.create(&PostParams::default(), &made(&text)).await
        } else {
            // Signatures that bootstrap tokens left beside it are made again by whoever made them.
            let patch = json!({"data": {(KUBECONFIG): text}});
            api.patch(NAME, &PatchParams::default(), &Patch::Merge(&patch))
                .await
        };
        match written {
            Ok(_) => {
                *self.state.lock() = State::Settled(ClusterInfo::Good);
                Ok(())
            }
            Err(error) => {
                self.note(&error, text);
                Err(Error::api(format!("writing ConfigMap {NAMESPACE}/{NAME}"))(error))
            }
        }
    }

    /// What only somebody in the cluster can mend is not asked for again over and over.
    fn note(&self, error: &kube::Error, text: String) {
        *self.state.lock() = match error.class() {
            Class::Terminal | Class::Denied => State::Refused(text),
            Class::Transient | Class::Conflict | Class::Throttled(_) => State::Unread(text),
        };
    }
}

fn made(text: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([(KUBECONFIG.to_owned(), text.to_owned())].into()),
        ..ConfigMap::default()
    }
}

/// What it should hold for the cluster of a kubeconfig: its address and CA.
fn document(kubeconfig: &str) -> Option<String> {
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

fn judge(found: Option<&ConfigMap>, text: &str) -> ClusterInfo {
    let Some(found) = found else {
        return ClusterInfo::Missing;
    };
    let held = found.data.as_ref().and_then(|data| data.get(KUBECONFIG));
    if held.is_some_and(|held| held == text) {
        return ClusterInfo::Good;
    }
    let server = |text: &str| {
        let read: Option<Value> = serde_saphyr::from_str(text).ok();
        let server =
            read.and_then(|read| Some(read["clusters"][0]["cluster"]["server"].as_str()?.to_owned()));
        server.unwrap_or_else(|| "none".to_owned())
    };
    let (from, to) = (
        held.map_or_else(|| "none".to_owned(), |held| server(held)),
        server(text),
    );
    if from == to {
        ClusterInfo::Differs {
            path: "data.kubeconfig",
            from: "another CA or form".to_owned(),
            to: "the API server's CA".to_owned(),
        }
    } else {
        ClusterInfo::Differs {
            path: "data.kubeconfig clusters[0].cluster.server",
            from,
            to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: 'https://a:443', certificate-authority-data: Q0E=}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\nusers:\n- name: u\n  user: {token: hidden}\n";

    #[test]
    fn it_says_where_and_whom_to_trust_and_no_secret() {
        let text = document(TEXT).unwrap();
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        let cluster = &read["clusters"][0]["cluster"];
        assert_eq!(cluster["server"], "https://a:443");
        assert_eq!(cluster["certificate-authority-data"], "Q0E=");
        assert!(!text.contains("hidden"));
        assert_eq!(document("nonsense: ["), None);
    }

    #[test]
    fn what_is_there_is_told_from_what_should_be() {
        let text = document(TEXT).unwrap();
        assert_eq!(judge(None, &text), ClusterInfo::Missing);
        assert_eq!(judge(Some(&made(&text)), &text), ClusterInfo::Good);
        let moved = document(&TEXT.replace("https://a:443", "https://b:443")).unwrap();
        let ClusterInfo::Differs { from, to, .. } = judge(Some(&made(&moved)), &text) else {
            panic!("it differs");
        };
        assert_eq!((from.as_str(), to.as_str()), ("https://b:443", "https://a:443"));
        let another = document(&TEXT.replace("Q0E=", "Q0I=")).unwrap();
        for held in [another.as_str(), "nonsense: ["] {
            assert!(matches!(
                judge(Some(&made(held)), &text),
                ClusterInfo::Differs { .. }
            ));
        }
    }
}
