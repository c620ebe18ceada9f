//! Whose identity a credential Secret may name where it proves nothing. A workload identity, a managed identity and a file of
//! the manager are named by ids that are no secret: what signs in must belong to the namespace that asks, or somebody who
//! may write in any namespace could use every identity that the manager can. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::ByteString;

use super::identity::SecretName;

/// The ServiceAccount that a namespace signs in with, as Azure Service Operator's decision record names it.
pub const NAMESPACE_ACCOUNT: &str = "aso-workload";
/// The ServiceAccount that Azure Service Operator signed in with: identities are federated with it.
pub const OPERATOR_ACCOUNT: &str = "azureserviceoperator-default";

/// What a namespace signs in with where its Secret proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A ServiceAccount of its own.
    #[default]
    Strict,
    /// The manager's.
    Relaxed,
}

impl Mode {
    pub const NAMES: [&'static str; 2] = ["strict", "relaxed"];

    pub fn by_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "strict" => Some(Self::Strict),
            "relaxed" => Some(Self::Relaxed),
            _ => None,
        }
    }
}

/// Identities that a namespace signed in with before namespaces were told apart: namespace and client id.
pub type Borrowed = BTreeSet<(String, String)>;

/// Who answers for an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lender {
    /// A ServiceAccount of the namespace.
    Namespace,
    /// The manager, whose Secret it is.
    Manager,
    /// The manager, for a namespace that could name any identity.
    ManagerOnTrust,
}

/// The rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenancy {
    pub mode: Mode,
    /// Whoever writes Secrets here is trusted with the manager's identity.
    pub operator_namespace: String,
    pub borrowed: Arc<Borrowed>,
}

impl Tenancy {
    /// Who answers for the identity that a Secret names.
    pub fn lender(&self, secret: &SecretName, client_id: &str) -> Lender {
        let known = || (secret.namespace.clone(), client_id.to_owned());
        if secret.namespace == self.operator_namespace {
            Lender::Manager
        } else if self.mode == Mode::Relaxed || self.borrowed.contains(&known()) {
            Lender::ManagerOnTrust
        } else {
            Lender::Namespace
        }
    }
}

/// The client id of a credential Secret that proves nothing: it has neither a client secret nor a certificate.
pub fn unproven(data: &BTreeMap<String, ByteString>) -> Option<String> {
    let text = |key: &str| {
        let value = data.get(key)?;
        let text = String::from_utf8_lossy(&value.0).trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let proof = ["AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE"];
    if proof.into_iter().any(|key| text(key).is_some()) {
        return None;
    }
    text("AZURE_CLIENT_ID")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(namespace: &str) -> SecretName {
        SecretName {
            namespace: namespace.to_owned(),
            name: "aso-credential".to_owned(),
        }
    }

    #[test]
    fn a_namespace_signs_in_as_itself_unless_it_was_trusted_before() {
        let mut tenancy = Tenancy {
            mode: Mode::Strict,
            operator_namespace: "capz-system".to_owned(),
            borrowed: Arc::new([("team-a".to_owned(), "one".to_owned())].into()),
        };
        let table = [
            ("capz-system", "one", Lender::Manager),
            ("team-a", "one", Lender::ManagerOnTrust),
            // What it used before is all it may go on using.
            ("team-a", "two", Lender::Namespace),
            ("team-b", "one", Lender::Namespace),
        ];
        for (namespace, client, expected) in table {
            assert_eq!(
                tenancy.lender(&secret(namespace), client),
                expected,
                "{namespace} {client}"
            );
        }
        tenancy.mode = Mode::Relaxed;
        assert_eq!(tenancy.lender(&secret("team-b"), "one"), Lender::ManagerOnTrust);
        assert_eq!(tenancy.lender(&secret("capz-system"), "one"), Lender::Manager);
        assert_eq!(Mode::by_name("Relaxed"), Some(Mode::Relaxed));
        assert_eq!(Mode::by_name("loose"), None);
        assert_eq!(Tenancy::default().mode, Mode::Strict);
    }

    #[test]
    fn only_a_secret_without_proof_is_unproven() {
        let of = |pairs: &[(&str, &str)]| {
            let data = pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
                .collect();
            unproven(&data)
        };
        let client = ("AZURE_CLIENT_ID", " id\n");
        assert_eq!(of(&[client]), Some("id".to_owned()));
        assert_eq!(of(&[client, ("AUTH_MODE", "podidentity")]), Some("id".to_owned()));
        assert_eq!(of(&[client, ("AZURE_CLIENT_SECRET", "")]), Some("id".to_owned()));
        assert_eq!(of(&[client, ("AZURE_CLIENT_SECRET", "x")]), None);
        assert_eq!(of(&[client, ("AZURE_CLIENT_CERTIFICATE", "x")]), None);
        assert_eq!(of(&[]), None);
    }
}
