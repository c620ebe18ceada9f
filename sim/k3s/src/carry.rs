//! Carries changes between the model and the apiserver: what others wrote to nodes back to the model, and what k3s and
//! its kubelets have to say to the apiserver.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;

use crate::{cluster::State, model::REMOVE_ANNOTATION, node};

const ETCD_PROXY: &str = "/var/lib/rancher/k3s/server/manifests/etcd-proxy.yaml";

/// Takes what others wrote to nodes back to the model.
pub fn take_back(state: &mut State) {
    let nodes: BTreeMap<String, Value> = state
        .apiserver
        .objects()
        .into_iter()
        .filter(|object| object["kind"] == "Node")
        .map(|node| {
            (
                node["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                node,
            )
        })
        .collect();
    let gone: Vec<String> = state
        .shown
        .keys()
        .filter(|name| !nodes.contains_key(*name))
        .cloned()
        .collect();
    for name in gone {
        state.shown.remove(&name);
        state.model.delete_node(&name);
    }
    for (name, node) in &nodes {
        let map = |field: &str| -> BTreeMap<String, String> {
            serde_json::from_value(node["metadata"][field].clone()).unwrap_or_default()
        };
        let annotations = map("annotations");
        match state.model.nodes.get(name) {
            None => {
                state.model.create_node(name, map("labels"), annotations);
                let revision = state.model.nodes.get(name).map_or(0, |node| node.revision);
                // Its metadata is there already, unless a controller has acted on it just now.
                let acted =
                    state.model.nodes.get(name).map(|node| &node.annotations) != Some(&map("annotations"));
                state.shown.insert(name.clone(), if acted { 0 } else { revision });
            }
            Some(known) => {
                let labels = map("labels");
                let shown = state.shown.get(name) == Some(&known.revision);
                let taken_off: Vec<&str> = node::ROLES
                    .into_iter()
                    .filter(|role| shown && known.labels.contains_key(*role) && !labels.contains_key(*role))
                    .collect();
                let withdrawn = shown
                    && known.annotations.contains_key(REMOVE_ANNOTATION)
                    && !annotations.contains_key(REMOVE_ANNOTATION);
                let requested = annotations.get(REMOVE_ANNOTATION);
                let is_news = requested.is_some() && !known.annotations.contains_key(REMOVE_ANNOTATION);
                if is_news && known.annotations.contains_key(crate::model::MEMBER_ANNOTATION) {
                    state
                        .model
                        .annotate(name, REMOVE_ANNOTATION, requested.map(String::as_str));
                    // Shown again even where the request was taken back at once.
                    state.shown.insert(name.clone(), 0);
                }
                if withdrawn {
                    state.model.annotate(name, REMOVE_ANNOTATION, None);
                }
                for role in taken_off {
                    state.model.remove_label(name, role);
                }
            }
        }
    }
}

/// One write to the apiserver.
pub struct Write {
    method: Method,
    path: String,
    content_type: &'static str,
    body: Value,
}

impl Write {
    fn create(path: &str, body: Value) -> Self {
        Self {
            method: Method::POST,
            path: path.to_owned(),
            content_type: "application/json",
            body,
        }
    }

    fn patch(path: String, content_type: &'static str, body: Value) -> Self {
        Self {
            method: Method::PATCH,
            path,
            content_type,
            body,
        }
    }

    /// What cannot be written is told and tried again with the next change.
    pub async fn apply(self, apiserver: &Apiserver) {
        let request = Request::builder()
            .method(self.method)
            .uri(&self.path)
            .header("content-type", self.content_type)
            .header("user-agent", "k3s")
            .body(kube::client::Body::from(self.body.to_string().into_bytes()))
            .expect("the parts of a request are well-formed");
        match apiserver.respond(request).await {
            Ok(answer) if answer.status().is_success() || answer.status() == StatusCode::CONFLICT => {}
            Ok(answer) => {
                let status = answer.status();
                let body = answer
                    .into_body()
                    .collect()
                    .await
                    .map(http_body_util::Collected::to_bytes);
                let body = body.unwrap_or_else(|_| Bytes::new());
                let said = String::from_utf8_lossy(&body);
                tracing::warn!(path = self.path, %status, %said, "A simulated k3s cannot write");
            }
            Err(error) => tracing::warn!(path = self.path, %error, "A simulated k3s cannot write"),
        }
    }
}

const NODES: &str = "/api/v1/nodes";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// What the apiserver does not show yet.
pub fn to_show(state: &mut State) -> Vec<Write> {
    let mut changes = Vec::new();
    if state.shown.is_empty() && !state.model.nodes.is_empty() {
        changes.extend(first_objects());
    }
    for (name, node) in &state.model.nodes {
        let shown = state.shown.insert(name.clone(), node.revision);
        let record = state.hosts.values().find(|record| record.node == *name);
        match (shown, record) {
            (Some(shown), _) if shown == node.revision => {}
            (None, Some(record)) => {
                let with = &record.registration;
                changes.push(Write::create(NODES, node::registered(name, node, with)));
                let status = json!({"status": node::status(name, node, with)});
                changes.push(Write::patch(format!("{NODES}/{name}/status"), STRATEGIC, status));
                let password = format!("{name}.node-password.k3s");
                changes.push(Write::create(
                    "/api/v1/namespaces/kube-system/secrets",
                    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": {"name": password}}),
                ));
            }
            _ => {
                changes.push(Write::patch(
                    format!("{NODES}/{name}"),
                    MERGE,
                    node::changed_metadata(node),
                ));
                let status = json!({"status": node::changed_status(node)});
                changes.push(Write::patch(format!("{NODES}/{name}/status"), STRATEGIC, status));
            }
        }
        let renewed = node.lease.filter(|_| record.is_some());
        if let Some(renewed) = renewed
            && state.leases.insert(name.clone(), renewed) != Some(renewed)
        {
            let body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": format!("{renewed:.6}")}});
            let path = format!("{LEASES}/{name}?fieldManager=kubelet&force=true");
            changes.push(Write::patch(path, APPLY, body));
        }
    }
    changes
}

/// What k3s leaves behind when it starts a cluster.
fn first_objects() -> Vec<Write> {
    let proxy = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "etcd-proxy",
        "namespace": "kube-system", "labels": {"app": "etcd-proxy"}, "annotations": {"objectset.rio.cattle.io/owner-name": ETCD_PROXY}}});
    vec![
        Write::create(
            "/api/v1/namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}}),
        ),
        Write::create(
            "/api/v1/namespaces/kube-system/secrets",
            json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": "k3s-serving"},
                "data": {"tls.crt": "", "tls.key": ""}}),
        ),
        Write::create("/apis/apps/v1/namespaces/kube-system/daemonsets", proxy),
    ]
}
