//! Who the apiserver calls, and for what: webhook configurations and the conversion of CRDs.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use slipway_runtime::{
    admission::{Operation, Phase},
    server::CONVERSION_PATH,
};

use super::{Bundle, deployment};

/// How the apiserver reaches the manager.
#[derive(Clone, Copy)]
pub enum Caller<'a> {
    /// By the package's Service; cert-manager fills in whom to trust.
    Service(&'a Bundle),
    /// By URL, for a manager outside the cluster.
    Url { base: &'a str, ca: &'a str },
}

impl Caller<'_> {
    fn client_config(self, path: &str) -> Value {
        match self {
            Self::Service(bundle) => json!({
                "service": {
                    "name": bundle.named("webhook-service"),
                    "namespace": bundle.namespace(),
                    "path": path,
                },
            }),
            Self::Url { base, ca } => json!({
                "url": format!("{}{path}", base.trim_end_matches('/')),
                "caBundle": STANDARD.encode(ca),
            }),
        }
    }

    pub fn conversion(self) -> Value {
        json!({
            "strategy": "Webhook",
            "webhook": {
                "clientConfig": self.client_config(CONVERSION_PATH),
                "conversionReviewVersions": ["v1"],
            },
        })
    }

    /// What tells cert-manager where the CA is.
    pub fn annotations(self) -> Option<Vec<(&'static str, String)>> {
        match self {
            Self::Service(bundle) => Some(vec![(
                "cert-manager.io/inject-ca-from",
                format!("{}/{}", bundle.namespace(), bundle.named("serving-cert")),
            )]),
            Self::Url { .. } => None,
        }
    }
}

/// Tells Cluster API's core where the hooks of a package are. A manager outside the cluster has none: nobody's core is
/// sent to a developer's machine unasked.
pub fn extension_config(bundle: &Bundle, caller: Caller<'_>) -> Option<Value> {
    let Caller::Service(_) = caller else { return None };
    bundle.has_hooks.then(|| {
        json!({
            "apiVersion": "runtime.cluster.x-k8s.io/v1beta2",
            "kind": "ExtensionConfig",
            "metadata": {
                "name": bundle.prefix,
                "annotations": {
                    // Core reads the CA out of the certificate's Secret, as it does for every extension.
                    "runtime.cluster.x-k8s.io/inject-ca-from-secret":
                        format!("{}/{}", bundle.namespace(), deployment::certificate_secret(bundle)),
                },
            },
            "spec": {
                "clientConfig": {
                    "service": {
                        "name": bundle.named("webhook-service"),
                        "namespace": bundle.namespace(),
                        "port": 443,
                    },
                },
            },
        })
    })
}

/// The mutating and the validating configuration, each if there is a webhook for it.
pub fn configurations(bundle: &Bundle, caller: Caller<'_>) -> Vec<Value> {
    [
        (
            Phase::Mutating,
            "MutatingWebhookConfiguration",
            "mutating-webhook-configuration",
        ),
        (
            Phase::Validating,
            "ValidatingWebhookConfiguration",
            "validating-webhook-configuration",
        ),
    ]
    .into_iter()
    .filter_map(|(phase, kind, name)| {
        let mut admission: Vec<_> = bundle
            .admission
            .iter()
            .filter(|admission| admission.phase == phase)
            .collect();
        admission.sort_by_key(|admission| admission.name());
        let webhooks: Vec<Value> = admission
            .into_iter()
            .map(|admission| {
                let operations: Vec<&str> = admission
                    .operations
                    .iter()
                    .map(|operation| match operation {
                        Operation::Create => "CREATE",
                        Operation::Update => "UPDATE",
                        Operation::Delete => "DELETE",
                    })
                    .collect();
                json!({
                    "name": admission.name(),
                    "admissionReviewVersions": ["v1"],
                    "clientConfig": caller.client_config(&admission.path()),
                    "failurePolicy": "Fail",
                    "matchPolicy": "Equivalent",
                    "rules": [{
                        "apiGroups": [admission.group],
                        "apiVersions": [admission.version],
                        "operations": operations,
                        "resources": [admission.plural],
                    }],
                    "sideEffects": "None",
                })
            })
            .collect();
        if webhooks.is_empty() {
            return None;
        }
        let mut configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": bundle.named(name)},
            "webhooks": webhooks,
        });
        for (key, value) in caller.annotations().into_iter().flatten() {
            configuration["metadata"]["annotations"][key] = json!(value);
        }
        Some(configuration)
    })
    .collect()
}
