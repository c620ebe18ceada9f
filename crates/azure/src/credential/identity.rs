//! The facts of an AzureClusterIdentity and who may use it. Pure.

use std::{collections::BTreeMap, path::PathBuf};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

use super::error::CredentialError;

/// How an identity logs in; the names are those of `spec.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IdentityKind {
    ServicePrincipal,
    /// The deprecated name of the same thing.
    ManualServicePrincipal,
    ServicePrincipalCertificate,
    #[serde(rename = "UserAssignedMSI")]
    UserAssignedManagedIdentity,
    WorkloadIdentity,
    UserAssignedIdentityCredential,
}

impl IdentityKind {
    pub fn by_name(identity: &str, name: &str) -> Result<Self, CredentialError> {
        Ok(match name {
            "ServicePrincipal" => Self::ServicePrincipal,
            "ManualServicePrincipal" => Self::ManualServicePrincipal,
            "ServicePrincipalCertificate" => Self::ServicePrincipalCertificate,
            "UserAssignedMSI" => Self::UserAssignedManagedIdentity,
            "WorkloadIdentity" => Self::WorkloadIdentity,
            "UserAssignedIdentityCredential" => Self::UserAssignedIdentityCredential,
            _ => {
                return Err(CredentialError::UnknownType {
                    identity: identity.to_owned(),
                    kind: name.to_owned(),
                });
            }
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for SecretName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// `spec.allowedNamespaces`: by name, or by the namespace's labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllowedNamespaces {
    #[serde(default)]
    pub list: Option<Vec<String>>,
    #[serde(default)]
    pub selector: Option<LabelSelector>,
}

/// The narrow facts of an AzureClusterIdentity.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    pub namespace: String,
    pub name: String,
    pub kind: IdentityKind,
    pub client_id: String,
    pub tenant_id: String,
    pub client_secret: Option<SecretName>,
    pub certificate_path: Option<PathBuf>,
    pub credentials_path: Option<PathBuf>,
    /// For workload identity: a ServiceAccount in the identity's namespace whose tokens Entra trusts. Without it the
    /// manager's own projected token is used.
    pub service_account: Option<String>,
    /// `None` is nobody; empty is everybody.
    pub allowed_namespaces: Option<AllowedNamespaces>,
}

/// A namespace that wants to use an identity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Namespace {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

/// Proof that a namespace may use an identity. No token is obtained without one, and only the checks in this file
/// make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    pub(super) identity: String,
}

impl Identity {
    /// How the identity is called in errors.
    pub fn display(&self) -> String {
        format!("AzureClusterIdentity {}/{}", self.namespace, self.name)
    }

    /// Whether `namespace` may use this identity.
    pub fn may_use(&self, namespace: &Namespace) -> Result<Permission, CredentialError> {
        let allowed = match &self.allowed_namespaces {
            None => false,
            Some(AllowedNamespaces {
                list: None,
                selector: None,
            }) => true,
            Some(AllowedNamespaces { list, selector }) => {
                list.iter().flatten().any(|name| *name == namespace.name)
                    || match selector {
                        None => false,
                        Some(selector) => matches(selector, &namespace.labels).map_err(|reason| {
                            CredentialError::BadSelector {
                                identity: self.display(),
                                reason,
                            }
                        })?,
                    }
            }
        };
        if allowed {
            Ok(Permission {
                identity: self.display(),
            })
        } else {
            Err(CredentialError::NamespaceNotAllowed {
                identity: self.display(),
                namespace: namespace.name.clone(),
            })
        }
    }
}

impl Permission {
    /// A credential secret serves the namespace it stands in, and the operator's own secret serves all.
    pub fn for_secret(
        secret: &SecretName,
        namespace: &str,
        operator_namespace: &str,
    ) -> Result<Self, CredentialError> {
        let identity = format!("Secret {secret}");
        if secret.namespace == namespace || secret.namespace == operator_namespace {
            Ok(Self { identity })
        } else {
            Err(CredentialError::NamespaceNotAllowed {
                identity,
                namespace: namespace.to_owned(),
            })
        }
    }
}

/// An empty selector matches nothing here: it would otherwise open the identity to everybody by mistake.
fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> Result<bool, String> {
    let exact = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    let mut any = false;
    let mut all = true;
    for (key, value) in exact {
        any = true;
        all &= labels.get(key) == Some(value);
    }
    for expression in expressions {
        any = true;
        let found = labels.get(&expression.key);
        let values = expression.values.clone().unwrap_or_default();
        let listed = found.is_some_and(|value| values.contains(value));
        all &= match expression.operator.as_str() {
            "In" if values.is_empty() => return Err("In needs values".to_owned()),
            "NotIn" if values.is_empty() => return Err("NotIn needs values".to_owned()),
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            other => return Err(format!("the operator {other:?} is not known")),
        };
    }
    Ok(any && all)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn identity(kind: IdentityKind) -> Identity {
        Identity {
            namespace: "default".into(),
            name: "fleet".into(),
            kind,
            client_id: "client".into(),
            tenant_id: "tenant".into(),
            client_secret: Some(SecretName {
                namespace: "default".into(),
                name: "fleet-secret".into(),
            }),
            certificate_path: None,
            credentials_path: None,
            service_account: None,
            allowed_namespaces: Some(AllowedNamespaces::default()),
        }
    }

    #[test]
    fn a_namespace_is_allowed_by_name_by_label_or_not_at_all() {
        let namespace = Namespace {
            name: "team-a".into(),
            labels: BTreeMap::from([("tier".into(), "prod".into())]),
        };
        let table = [
            (json!(null), false),
            (json!({}), true),
            (json!({"list": []}), false),
            (json!({"list": ["team-a"]}), true),
            (json!({"list": ["team-b"]}), false),
            (json!({"selector": {}}), false),
            (json!({"selector": {"matchLabels": {"tier": "prod"}}}), true),
            (json!({"selector": {"matchLabels": {"tier": "test"}}}), false),
            (
                json!({"list": ["team-b"], "selector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["prod", "test"]}]}}),
                true,
            ),
            (
                json!({"selector": {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}}),
                false,
            ),
            (
                json!({"selector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["x"]}]}}),
                true,
            ),
        ];
        for (allowed, expected) in table {
            let mut identity = identity(IdentityKind::WorkloadIdentity);
            identity.allowed_namespaces = serde_json::from_value(allowed.clone()).unwrap();
            assert_eq!(identity.may_use(&namespace).is_ok(), expected, "{allowed}");
        }
        let mut broken = identity(IdentityKind::WorkloadIdentity);
        broken.allowed_namespaces = serde_json::from_value(
            json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}),
        )
        .unwrap();
        assert!(matches!(
            broken.may_use(&namespace),
            Err(CredentialError::BadSelector { .. })
        ));
    }

    #[test]
    fn a_credential_secret_serves_its_own_namespace() {
        let secret = SecretName {
            namespace: "team-a".into(),
            name: "aso-credential".into(),
        };
        assert!(Permission::for_secret(&secret, "team-a", "slipway").is_ok());
        assert!(Permission::for_secret(&secret, "team-b", "slipway").is_err());
        assert!(Permission::for_secret(&secret, "team-b", "team-a").is_ok());
    }
}
