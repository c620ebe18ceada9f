//! The page in a cluster: a Deployment without any right, and the role that people need to see a fleet on it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Bundle, Release};

pub const NAME: &str = "slipway-page";
/// Who has it may look at fleets, by the page or on the command line.
pub const VIEW: &str = "slipway-view";
const PORT: u16 = 8443;
/// Where kube-root-ca.crt stands in place of a token.
const TRUST: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Cluster API's own groups, whoever provides for them.
const GROUPS: [&str; 7] = [
    "addons.cluster.x-k8s.io",
    "bootstrap.cluster.x-k8s.io",
    "cluster.x-k8s.io",
    "controlplane.cluster.x-k8s.io",
    "infrastructure.cluster.x-k8s.io",
    "ipam.cluster.x-k8s.io",
    "runtime.cluster.x-k8s.io",
];

/// What the page reads, for those who look at it: the kinds of fleets and events. No Secret, and nothing is written.
pub fn role(bundles: &[Bundle]) -> Value {
    let ours = bundles
        .iter()
        .flat_map(|bundle| bundle.crds.values())
        .filter_map(|crd| crd["spec"]["group"].as_str());
    let groups: BTreeSet<&str> = GROUPS.into_iter().chain(ours).collect();
    let verbs = json!(["get", "list", "watch"]);
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": VIEW},
        "rules": [
            {"apiGroups": groups, "resources": ["*"], "verbs": verbs},
            {"apiGroups": [""], "resources": ["events"], "verbs": verbs},
        ],
    })
}

/// Its service account has no token: the page asks with those of its visitors.
pub fn objects(release: &Release, namespace: &str) -> Vec<Value> {
    let labels = json!({"app.kubernetes.io/name": NAME});
    let metadata = json!({"name": NAME, "namespace": namespace, "labels": labels});
    let probe = json!({"httpGet": {"path": "/", "port": "page", "scheme": "HTTPS"}});
    let container = json!({
        "name": "page",
        "image": release.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/slipway"],
        "args": ["ui", "--sign-in", format!("--bind-address=0.0.0.0:{PORT}")],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "ports": [{"name": "page", "containerPort": PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsGroup": 65532,
            "runAsUser": 65532,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "trust", "mountPath": TRUST, "readOnly": true}],
    });
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata,
            "automountServiceAccountToken": false,
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": labels, "ports": [{"name": "https", "port": 443, "targetPort": "page"}]},
        }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "automountServiceAccountToken": false,
                        "containers": [container],
                        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                        "serviceAccountName": NAME,
                        "tolerations": [],
                        "volumes": [{"name": "trust", "configMap": {"name": "kube-root-ca.crt"}}],
                    },
                },
            },
        }),
    ]
}
