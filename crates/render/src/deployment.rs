//! The manager in a cluster: Deployment, Service and certificate, hardened as far as a manager can be.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slipway_runtime::{logs::DEFAULT_VERBOSITY, provider::NamedPort};

use super::{Bundle, Release};

pub const WEBHOOK_PORT: u16 = 9443;
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";

/// Where a manager is asked how it is.
struct Ports {
    health: NamedPort,
    metrics: NamedPort,
}

impl Ports {
    fn of(bundle: &Bundle) -> Self {
        match bundle.names {
            Some(names) => Ports {
                health: names.health,
                metrics: names.metrics,
            },
            None => Ports {
                health: NamedPort {
                    name: "healthz",
                    number: 9440,
                },
                metrics: NamedPort {
                    name: "metrics",
                    number: 8443,
                },
            },
        }
    }
}

pub fn deployment(bundle: &Bundle, release: &Release) -> Vec<Value> {
    let variable = bundle.prefix.to_uppercase().replace('-', "_");
    let (ports, is_plain) = (Ports::of(bundle), bundle.names.is_some());
    let mut arguments = vec![
        "manager".to_owned(),
        format!("--providers={}", bundle.identity),
        "--leader-elect".to_owned(),
        format!(
            "--diagnostics-address=${{{variable}_DIAGNOSTICS_ADDRESS:=:{}}}",
            ports.metrics.number
        ),
        format!("--insecure-diagnostics=${{{variable}_INSECURE_DIAGNOSTICS:={is_plain}}}"),
        format!("--v=${{{variable}_LOG_LEVEL:={DEFAULT_VERBOSITY}}}"),
    ];
    if is_plain {
        arguments.push(format!("--health-addr=:{}", ports.health.number));
    }
    arguments.extend(bundle.arguments.iter().cloned());
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mut environment = vec![
        field("POD_NAMESPACE", "metadata.namespace"),
        field("POD_NAME", "metadata.name"),
        field("POD_UID", "metadata.uid"),
    ];
    environment.extend(bundle.environment.iter().map(|variable| json!(variable)));
    let port = |port: NamedPort| json!({"name": port.name, "containerPort": port.number, "protocol": "TCP"});
    let mut open = vec![port(ports.health), port(ports.metrics)];
    let mut container = json!({
        "name": bundle.names.map_or("manager", |names| names.container),
        "image": release.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/slipway"],
        "args": arguments,
        "env": environment,
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": ports.health.name}},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": ports.health.name}},
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
    });
    let mut pod = json!({
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "serviceAccountName": bundle.service_account(),
        // Reconciles in work get twenty seconds, and then the lease is given back.
        "terminationGracePeriodSeconds": 40,
        "tolerations": [
            {"effect": "NoSchedule", "key": "node-role.kubernetes.io/master"},
            {"effect": "NoSchedule", "key": "node-role.kubernetes.io/control-plane"},
        ],
    });
    let mut volumes = bundle.volumes.clone();
    let mut mounts = bundle.volume_mounts.clone();
    if bundle.is_called() {
        open.push(json!({"name": "webhook-server", "containerPort": WEBHOOK_PORT, "protocol": "TCP"}));
        mounts.push(json!({"name": "cert", "mountPath": CERTIFICATES, "readOnly": true}));
        volumes.push(json!({"name": "cert", "secret": {"secretName": certificate_secret(bundle)}}));
    }
    if !volumes.is_empty() {
        container["volumeMounts"] = json!(mounts);
        pod["volumes"] = json!(volumes);
    }
    container["ports"] = json!(open);
    pod["containers"] = json!([container]);
    let selector = selector(bundle);
    let mut labels = selector.clone();
    for (name, value) in &bundle.pod_labels {
        labels[*name] = json!(value);
    }
    let mut objects = vec![json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": bundle.workload("controller-manager"),
            "namespace": bundle.namespace(),
            "labels": {"control-plane": "controller-manager"},
        },
        "spec": {
            "replicas": replicas(bundle),
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    })];
    if bundle.has_hooks {
        objects.push(disruption_budget(bundle));
    }
    objects
}

/// A runtime extension that does not answer stops Cluster API itself when that starts: two replicas.
pub fn replicas(bundle: &Bundle) -> u32 {
    if bundle.has_hooks { 2 } else { 1 }
}

/// Keeps one manager when nodes are drained.
pub fn disruption_budget(bundle: &Bundle) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": bundle.workload("controller-manager"), "namespace": bundle.namespace()},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": selector(bundle)}},
    })
}

/// Where metrics are scraped.
pub fn metrics_service(bundle: &Bundle) -> Value {
    let metrics = Ports::of(bundle).metrics;
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": bundle.workload("metrics"),
            "namespace": bundle.namespace(),
            "labels": {METRICS_LABEL: bundle.prefix},
        },
        "spec": {"ports": [{"name": metrics.name, "port": metrics.number, "targetPort": metrics.name}]},
    });
    service["spec"]["selector"] = selector(bundle);
    service
}

const METRICS_LABEL: &str = "slipway.dev/metrics";

/// Tells the Prometheus operator to scrape it. The certificate is self-signed; whoever scrapes shows a token.
pub fn service_monitor(bundle: &Bundle) -> Value {
    let port = Ports::of(bundle).metrics.name;
    let endpoint = if bundle.names.is_some() {
        json!({"port": port, "scheme": "http"})
    } else {
        json!({
            "port": port,
            "scheme": "https",
            "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
            "tlsConfig": {"insecureSkipVerify": true},
        })
    };
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {"name": bundle.workload("metrics"), "namespace": bundle.namespace(), "labels": {}},
        "spec": {
            "selector": {"matchLabels": {METRICS_LABEL: bundle.prefix}},
            "endpoints": [endpoint],
        },
    })
}

/// What all pods of the package carry, and nobody else's.
fn selector(bundle: &Bundle) -> Value {
    if let Some(names) = bundle.names {
        let labels: BTreeMap<&str, &str> = names.labels.iter().copied().collect();
        return json!(labels);
    }
    json!({super::PROVIDER_LABEL: bundle.identity, "control-plane": "controller-manager"})
}

pub fn service(bundle: &Bundle) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": bundle.named("webhook-service"), "namespace": bundle.namespace()},
        "spec": {"ports": [{"port": 443, "targetPort": "webhook-server"}], "selector": selector(bundle)},
    })
}

pub fn certificate_secret(bundle: &Bundle) -> String {
    bundle.named("webhook-service-cert")
}

/// A certificate that cert-manager makes and renews.
pub fn certificate(bundle: &Bundle) -> Vec<Value> {
    let namespace = bundle.namespace();
    let service = bundle.named("webhook-service");
    vec![
        json!({
            "apiVersion": "cert-manager.io/v1",
            "kind": "Issuer",
            "metadata": {"name": bundle.named("selfsigned-issuer"), "namespace": namespace},
            "spec": {"selfSigned": {}},
        }),
        json!({
            "apiVersion": "cert-manager.io/v1",
            "kind": "Certificate",
            "metadata": {"name": bundle.named("serving-cert"), "namespace": namespace},
            "spec": {
                "dnsNames": [
                    format!("{service}.{namespace}.svc"),
                    format!("{service}.{namespace}.svc.cluster.local"),
                ],
                "issuerRef": {"kind": "Issuer", "name": bundle.named("selfsigned-issuer")},
                "secretName": certificate_secret(bundle),
                "subject": {"organizations": ["slipway"]},
            },
        }),
    ]
}
