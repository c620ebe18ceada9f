//! Credential Secrets in the form of Azure Service Operator (`aso-credential`, `credential-from`, `aso-controller-settings`):
//! who to log in as, and to which subscription. Pure.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use k8s_openapi::ByteString;
use secrecy::SecretString;

use super::{
    error::CredentialError,
    identity::SecretName,
    login::{Login, Principal, projected_token},
    service_account::ServiceAccountTokens,
    tenancy::{Lender, NAMESPACE_ACCOUNT, OPERATOR_ACCOUNT, Tenancy},
};

/// What a credential Secret says.
#[derive(Clone, Debug)]
pub struct AsoCredential {
    pub principal: Principal,
    pub subscription: String,
    /// Whether it signs in as the manager, on trust.
    pub borrowed: bool,
}

/// Reads a credential Secret. `tokens` are those of ServiceAccounts.
pub fn from_aso_secret(
    name: &SecretName,
    data: &BTreeMap<String, ByteString>,
    tenancy: &Tenancy,
    tokens: &Arc<dyn ServiceAccountTokens>,
) -> Result<AsoCredential, CredentialError> {
    let identity = format!("Secret {name}");
    let get = |key: &str| {
        data.get(key)
            .and_then(|value| String::from_utf8(value.0.clone()).ok())
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty())
    };
    let need = |key: &'static str| {
        get(key).ok_or_else(|| CredentialError::KeyNotFound {
            identity: identity.clone(),
            secret: name.to_string(),
            key,
        })
    };
    let subscription = need("AZURE_SUBSCRIPTION_ID")?;
    let tenant_id = need("AZURE_TENANT_ID")?;
    let client_id = need("AZURE_CLIENT_ID")?;
    let additional_tenants = get("AZURE_ADDITIONAL_TENANTS")
        .unwrap_or_default()
        .split(',')
        .map(|tenant| tenant.trim().to_owned())
        .filter(|tenant| !tenant.is_empty() && *tenant != tenant_id)
        .collect();
    let mut borrowed = false;
    let login = if let Some(secret) = get("AZURE_CLIENT_SECRET") {
        Login::Secret(SecretString::from(secret))
    } else if let Some(certificate) = data.get("AZURE_CLIENT_CERTIFICATE") {
        Login::Certificate {
            bytes: certificate.0.clone().into(),
            password: get("AZURE_CLIENT_CERTIFICATE_PASSWORD")
                .map(SecretString::from)
                .unwrap_or_default(),
        }
    } else {
        let lender = tenancy.lender(name, &client_id);
        borrowed = lender == Lender::ManagerOnTrust;
        let file = get("AZURE_USER_ASSIGNED_IDENTITY_CREDENTIALS");
        let mode = get("AUTH_MODE").unwrap_or_default();
        unproven(name, lender, file, &mode, tenancy, tokens)?
    };
    Ok(AsoCredential {
        principal: Principal {
            identity,
            tenant_id,
            client_id,
            login,
            additional_tenants,
        },
        subscription,
        borrowed,
    })
}

/// What to log in with where the Secret itself proves nothing.
fn unproven(
    name: &SecretName,
    lender: Lender,
    file: Option<String>,
    mode: &str,
    tenancy: &Tenancy,
    tokens: &Arc<dyn ServiceAccountTokens>,
) -> Result<Login, CredentialError> {
    let of_manager = |what: &'static str, login: Login| match lender {
        Lender::Namespace => Err(CredentialError::NotOfNamespace {
            identity: format!("Secret {name}"),
            namespace: name.namespace.clone(),
            what,
        }),
        Lender::Manager | Lender::ManagerOnTrust => Ok(login),
    };
    let account = |namespace: &str, name: &str| Login::ServiceAccount {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        tokens: Arc::clone(tokens),
    };
    if let Some(path) = file {
        return of_manager("a file of the manager", Login::IdentityFile(PathBuf::from(path)));
    }
    match (mode.to_ascii_lowercase().as_str(), lender) {
        ("podidentity", _) => of_manager("an identity of the manager's host", Login::ManagedIdentity),
        ("" | "workloadidentity", Lender::Namespace) => Ok(account(&name.namespace, NAMESPACE_ACCOUNT)),
        // Users' identities are federated with the subject of whichever manager signed in before.
        ("" | "workloadidentity", _) => Ok(Login::FirstFederated(vec![
            Login::FederatedFile(projected_token()),
            account(&tenancy.operator_namespace, OPERATOR_ACCOUNT),
        ])),
        (other, _) => Err(CredentialError::UnknownType {
            identity: format!("Secret {name}"),
            kind: format!("AUTH_MODE {other}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tenancy::Mode, *};

    #[derive(Debug)]
    struct NoTokens;

    #[async_trait::async_trait]
    impl ServiceAccountTokens for NoTokens {
        async fn request(&self, _: &str, _: &str, _: &str) -> Result<String, String> {
            Err("none".to_owned())
        }
    }

    const BASE: [(&str, &str); 3] = [
        ("AZURE_SUBSCRIPTION_ID", "s"),
        ("AZURE_TENANT_ID", "t"),
        ("AZURE_CLIENT_ID", "c"),
    ];

    fn read(namespace: &str, mode: Mode, pairs: &[(&str, &str)]) -> Result<AsoCredential, CredentialError> {
        let name = SecretName {
            namespace: namespace.to_owned(),
            name: "aso-credential".to_owned(),
        };
        let data = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
            .collect();
        let tenancy = Tenancy {
            mode,
            operator_namespace: "manager".to_owned(),
            ..Tenancy::default()
        };
        from_aso_secret(&name, &data, &tenancy, &(Arc::new(NoTokens) as _))
    }

    /// How a Secret with these keys logs in, and whether it borrows.
    fn login(namespace: &str, mode: Mode, extra: &[(&str, &str)]) -> Result<String, String> {
        let all: Vec<_> = BASE.iter().chain(extra).copied().collect();
        let found = read(namespace, mode, &all).map_err(|error| error.to_string())?;
        let text = match &found.principal.login {
            Login::ServiceAccount { namespace, name, .. } => format!("{namespace}/{name}"),
            other => format!("{other:?}"),
        };
        Ok(if found.borrowed {
            format!("{text}, borrowed")
        } else {
            text
        })
    }

    #[test]
    fn a_credential_secret_is_read_in_the_operators_order() {
        let of = |extra: &[(&str, &str)]| login("manager", Mode::Strict, extra).unwrap();
        assert_eq!(of(&[]), "FirstFederated");
        assert_eq!(of(&[("AUTH_MODE", "workloadidentity")]), "FirstFederated");
        assert_eq!(of(&[("AUTH_MODE", "podidentity")]), "ManagedIdentity");
        assert_eq!(of(&[("AZURE_CLIENT_CERTIFICATE", "x")]), "Certificate");
        let file = ("AZURE_USER_ASSIGNED_IDENTITY_CREDENTIALS", "/x");
        assert_eq!(of(&[file]), "IdentityFile");
        let both = [("AZURE_CLIENT_CERTIFICATE", "x"), ("AZURE_CLIENT_SECRET", "y")];
        assert_eq!(of(&both), "Secret");
        let error = login("manager", Mode::Strict, &[("AUTH_MODE", "telepathy")]).unwrap_err();
        assert!(error.contains("AUTH_MODE telepathy"), "{error}");
        let error = read("n", Mode::Strict, &BASE[1..]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Secret n/aso-credential: Secret n/aso-credential has no key \"AZURE_SUBSCRIPTION_ID\""
        );
    }

    #[test]
    fn a_secret_that_proves_nothing_signs_in_as_its_namespace() {
        let file = ("AZURE_USER_ASSIGNED_IDENTITY_CREDENTIALS", "/x");
        let host = ("AUTH_MODE", "podidentity");
        let strict = |extra: &[(&str, &str)]| login("team", Mode::Strict, extra);
        assert_eq!(strict(&[]), Ok("team/aso-workload".to_owned()));
        assert_eq!(
            strict(&[("AUTH_MODE", "WorkloadIdentity")]),
            Ok("team/aso-workload".to_owned())
        );
        assert_eq!(
            strict(&[("AZURE_CLIENT_SECRET", "x")]),
            Ok("Secret".to_owned()),
            "a proof"
        );
        for (extra, what) in [
            (file, "a file of the manager"),
            (host, "an identity of the manager's host"),
        ] {
            let error = strict(&[extra]).unwrap_err();
            assert!(error.contains(what) && error.contains("relaxed"), "{error}");
        }
        let relaxed = |extra: &[(&str, &str)]| login("team", Mode::Relaxed, extra);
        assert_eq!(relaxed(&[]), Ok("FirstFederated, borrowed".to_owned()));
        assert_eq!(relaxed(&[host]), Ok("ManagedIdentity, borrowed".to_owned()));
        assert_eq!(relaxed(&[file]), Ok("IdentityFile, borrowed".to_owned()));
        assert_eq!(relaxed(&[("AZURE_CLIENT_SECRET", "x")]), Ok("Secret".to_owned()));
    }
}
