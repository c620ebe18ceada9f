//! Manifests of K3s clusters that are refused when they are applied.

use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_kit::{
    core::kinds::{beside, of_core},
    mistakes::Mistake,
};
use slipway_runtime::Clock;

use crate::refused::{Refused, see_all, spec};

const CONTROL_PLANES: &str = "K3s: the control plane's manifest";
const CONFIGS: &str = "K3s: a machine's configuration";
const NAMESPACE: &str = "default";

fn base(kind: &str) -> Value {
    let (version, spec) = match kind {
        "KThreesControlPlane" => (
            "controlplane.cluster.x-k8s.io/v1beta2",
            json!({"replicas": 3, "version": "v1.35.2+k3s1", "machineTemplate": {"infrastructureRef": {
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "HostTemplate", "name": "hosts"}}}),
        ),
        _ => (
            "bootstrap.cluster.x-k8s.io/v1beta2",
            json!({"template": {"spec": {}}}),
        ),
    };
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": "edge", "namespace": NAMESPACE}, "spec": spec})
}

fn plane(what: &'static str, wrong: &Value, right: &Value, undo: &'static str) -> Refused {
    Refused {
        what,
        kind: "KThreesControlPlane",
        wrong: spec(wrong),
        right: spec(right),
        undo,
    }
}

fn config(what: &'static str, wrong: &Value, right: &Value, undo: &'static str) -> Refused {
    let template = |inner: &Value| spec(&json!({"template": {"spec": inner}}));
    Refused {
        what,
        kind: "KThreesConfigTemplate",
        wrong: template(wrong),
        right: template(right),
        undo,
    }
}

fn control_planes() -> Vec<Refused> {
    let reference = |namespace: &str| {
        json!({"machineTemplate": {"infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
            "kind": "HostTemplate", "name": "hosts", "namespace": namespace}}})
    };
    vec![
        plane(
            "two servers",
            &json!({"replicas": 2}),
            &json!({"replicas": 3}),
            "ask for an odd number: three survive the loss of one, two do not",
        ),
        plane(
            "no servers",
            &json!({"replicas": 0}),
            &json!({"replicas": 1}),
            "ask for at least one; to stop paying, delete the Cluster",
        ),
        plane(
            "a version without its patch number",
            &json!({"version": "v1.35"}),
            &json!({"version": "v1.35.2+k3s1"}),
            "write a release of k3s: `v1.35.2+k3s1`",
        ),
        plane(
            "one version for servers and another in their configuration",
            &json!({"kthreesConfigSpec": {"version": "v1.34.1+k3s1"}}),
            &json!({"kthreesConfigSpec": {"version": "v1.35.2+k3s1"}}),
            "leave the version of the configuration out",
        ),
        plane(
            "a rollout that surges by two",
            &json!({"rolloutStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2}}}),
            &json!({"rolloutStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}),
            "servers change one at a time: 0 or 1",
        ),
        plane(
            "a single server that is replaced without a spare",
            &json!({"replicas": 1, "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}}}),
            &json!({"replicas": 1, "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}),
            "use `maxSurge: 1`, or the type `InPlace`",
        ),
        plane(
            "certificates that are renewed on their last days",
            &json!({"rolloutBefore": {"certificatesExpiryDays": 1}}),
            &json!({"rolloutBefore": {"certificatesExpiryDays": 30}}),
            "leave the rollout time: the smallest number is in the message",
        ),
        plane(
            "a retry period in words",
            &json!({"remediationStrategy": {"retryPeriod": "soon"}}),
            &json!({"remediationStrategy": {"retryPeriod": "10m"}}),
            "write a duration",
        ),
        plane(
            "a machine template without a name",
            &json!({"machineTemplate": {"infrastructureRef": {"name": ""}}}),
            &json!({}),
            "name the infrastructure template of the servers",
        ),
        plane(
            "a machine template of another namespace",
            &reference("elsewhere"),
            &reference(NAMESPACE),
            "put the template beside the control plane",
        ),
    ]
}

fn configs() -> Vec<Refused> {
    vec![
        config(
            "a file with a relative path",
            &json!({"files": [{"path": "etc/motd", "content": "hello"}]}),
            &json!({"files": [{"path": "/etc/motd", "content": "hello"}]}),
            "begin the path with `/`",
        ),
        config(
            "permissions in letters",
            &json!({"files": [{"path": "/etc/motd", "content": "hello", "permissions": "rw-r--r--"}]}),
            &json!({"files": [{"path": "/etc/motd", "content": "hello", "permissions": "0644"}]}),
            "write them in octal digits",
        ),
        config(
            "an owner with a space",
            &json!({"files": [{"path": "/etc/motd", "content": "hello", "owner": "root root"}]}),
            &json!({"files": [{"path": "/etc/motd", "content": "hello", "owner": "root:root"}]}),
            "write `user` or `user:group`",
        ),
        config(
            "a file with two contents",
            &json!({"files": [{"path": "/etc/motd", "content": "hello", "contentFrom": {"secret": {"name": "s", "key": "k"}}}]}),
            &json!({"files": [{"path": "/etc/motd", "contentFrom": {"secret": {"name": "s", "key": "k"}}}]}),
            "keep one of the two",
        ),
        config(
            "a node label without a value",
            &json!({"agentConfig": {"nodeLabels": ["pool"]}}),
            &json!({"agentConfig": {"nodeLabels": ["pool=workers"]}}),
            "write `key=value`",
        ),
        config(
            "a taint without an effect",
            &json!({"agentConfig": {"nodeTaints": ["gpu=yes"]}}),
            &json!({"agentConfig": {"nodeTaints": ["gpu=yes:NoSchedule"]}}),
            "write `key=value:Effect`",
        ),
    ]
}

pub async fn see() -> Vec<Mistake> {
    let server = Apiserver::new(Clock::starting_at(jiff::Timestamp::UNIX_EPOCH));
    server.install_kinds(&beside(&of_core(), &slipway_k3s::provider()));
    see_all(
        &server,
        vec![(CONTROL_PLANES, control_planes()), (CONFIGS, configs())],
        base,
    )
    .await
}
