//! Where a workload cluster is, whom we trust there and who we are. A kubeconfig out of a Secret is foreign input: this
//! file is the one place that refuses what would reach into this machine.

use std::{fmt, path::Path};

use kube::{
    Config,
    config::{AuthInfo, Kubeconfig},
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use secrecy::SecretString;

use crate::{manager::ManagerError, manager::configuration};

/// Why a kubeconfig or an address is not used. Never repeats the kubeconfig, which is a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("it is not a kubeconfig")]
    Unreadable,
    #[error("it runs a program to authenticate (exec); put a token or a certificate into it")]
    RunsProgram,
    #[error("it uses an auth-provider; put a token or a certificate into it")]
    AuthProvider,
    #[error("it refers to files ({0}); put the token, certificate or key itself into it")]
    ReadsFile(&'static str),
    #[error("the kubeconfig cannot be used: {0}")]
    Unusable(String),
    #[error("{0:?} is not an address of a server: write HOST:PORT")]
    Address(String),
    #[error("the CA certificates are not PEM")]
    Certificates,
}

/// How a workload cluster is connected to: an address, the CA to trust, credentials. Cheap to copy and to change, so that
/// a single server of a cluster is reached with what is known of the cluster.
#[derive(Clone)]
pub struct Access {
    config: Config,
}

/// An address, whom to trust there, and who we are.
#[derive(Clone, Copy, Default)]
pub struct AccessParts<'text> {
    pub url: &'text str,
    pub token: Option<&'text str>,
    /// In base64, as a kubeconfig has it.
    pub ca_data: Option<&'text str>,
    pub skip_verification: bool,
}

impl Access {
    /// From the text of a kubeconfig that anybody may have written.
    pub fn from_text(kubeconfig: &str) -> Result<Self, Refused> {
        // The parser's message can quote the text.
        Self::from_kubeconfig(Kubeconfig::from_yaml(kubeconfig).map_err(|_| Refused::Unreadable)?)
    }

    /// From a kubeconfig that anybody may have written.
    pub fn from_kubeconfig(kubeconfig: Kubeconfig) -> Result<Self, Refused> {
        check(&kubeconfig)?;
        let config = Config::try_from(kubeconfig).map_err(|error| Refused::Unusable(error.to_string()))?;
        Ok(Self { config })
    }

    /// From a file that whoever started this process named, with all that such a file may hold.
    pub async fn from_file(path: &Path) -> Result<Self, ManagerError> {
        let config = configuration(Some(path)).await?;
        Ok(Self { config })
    }

    /// From an address and credentials that whoever started this process gave.
    pub fn from_parts(parts: AccessParts<'_>) -> Result<Self, Refused> {
        let mut cluster = serde_json::json!({"server": parts.url});
        if let Some(data) = parts.ca_data {
            cluster["certificate-authority-data"] = data.into();
        }
        if parts.skip_verification {
            cluster["insecure-skip-tls-verify"] = true.into();
        }
        let mut user = serde_json::json!({});
        if let Some(token) = parts.token {
            user["token"] = token.into();
        }
        let kubeconfig = serde_json::json!({"apiVersion": "v1", "kind": "Config", "current-context": "given",
            "clusters": [{"name": "given", "cluster": cluster}], "users": [{"name": "given", "user": user}],
            "contexts": [{"name": "given", "context": {"cluster": "given", "user": "given"}}]});
        Self::from_kubeconfig(serde_json::from_value(kubeconfig).map_err(|_| Refused::Unreadable)?)
    }

    /// One server of the cluster (`10.0.0.3:6443`), with the CA and the credentials of the cluster.
    pub fn at(mut self, address: &str) -> Result<Self, Refused> {
        let invalid = || Refused::Address(address.to_owned());
        let authority: http::uri::Authority = address.parse().map_err(|_| invalid())?;
        if authority.port_u16().is_none() || authority.as_str().contains('@') {
            return Err(invalid());
        }
        let mut parts = self.config.cluster_url.into_parts();
        parts.authority = Some(authority);
        self.config.cluster_url = http::Uri::from_parts(parts).map_err(|_| invalid())?;
        Ok(self)
    }

    /// The name to expect in the server's certificate instead of the host that is connected to.
    pub fn server_name(mut self, name: &str) -> Self {
        self.config.tls_server_name = Some(name.to_owned());
        self
    }

    /// Trusts these CA certificates (PEM) and no others.
    pub fn trusting(mut self, pem: &str) -> Result<Self, Refused> {
        let certificates: Vec<Vec<u8>> = CertificateDer::pem_slice_iter(pem.as_bytes())
            .map(|certificate| certificate.map(|der| der.as_ref().to_vec()))
            .collect::<Result<_, _>>()
            .map_err(|_| Refused::Certificates)?;
        if certificates.is_empty() {
            return Err(Refused::Certificates);
        }
        self.config.root_cert = Some(certificates);
        self.config.root_cert_file = None;
        self.config.accept_invalid_certs = false;
        Ok(self)
    }

    /// As this user with this password, and with no other credential of the cluster.
    pub fn as_user(mut self, name: &str, password: &str) -> Self {
        self.config.auth_info = AuthInfo {
            username: Some(name.to_owned()),
            password: Some(SecretString::from(password.to_owned())),
            ..AuthInfo::default()
        };
        self
    }

    /// Where this leads.
    pub fn url(&self) -> &http::Uri {
        &self.config.cluster_url
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn into_config(self) -> Config {
        self.config
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Access")
            .field("url", &self.config.cluster_url)
            .finish_non_exhaustive()
    }
}

/// Refuses what would make the manager run programs or read its own files for whoever may write the kubeconfig.
fn check(kubeconfig: &Kubeconfig) -> Result<(), Refused> {
    let users = kubeconfig
        .auth_infos
        .iter()
        .filter_map(|named| named.auth_info.as_ref());
    for user in users {
        if user.exec.is_some() {
            return Err(Refused::RunsProgram);
        }
        if user.auth_provider.is_some() {
            return Err(Refused::AuthProvider);
        }
        for (field, file) in [
            ("tokenFile", &user.token_file),
            ("client-certificate", &user.client_certificate),
            ("client-key", &user.client_key),
        ] {
            if file.is_some() {
                return Err(Refused::ReadsFile(field));
            }
        }
    }
    let mut clusters = kubeconfig
        .clusters
        .iter()
        .filter_map(|named| named.cluster.as_ref());
    if clusters.any(|cluster| cluster.certificate_authority.is_some()) {
        return Err(Refused::ReadsFile("certificate-authority"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"Config","current-context":"c",
            "clusters":[{{"name":"c","cluster":{{"server":"https://fleet.example:6443"{cluster}}}}}],
            "users":[{{"name":"u","user":{user}}}],
            "contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}]}}"#
        )
    }

    #[test]
    fn an_address_and_a_token_are_enough() {
        let parts = AccessParts {
            url: "https://fleet.example:6443",
            token: Some("canary"),
            skip_verification: true,
            ..AccessParts::default()
        };
        let access = Access::from_parts(parts).expect("an access");
        assert_eq!(access.url().to_string(), "https://fleet.example:6443/");
        assert!(access.config().accept_invalid_certs && access.config().auth_info.token.is_some());
        assert!(!format!("{access:?}").contains("canary"));
        let broken = AccessParts {
            url: "https://fleet.example:6443",
            ca_data: Some("no base64"),
            ..AccessParts::default()
        };
        Access::from_parts(broken).expect_err("a CA that cannot be read");
    }

    #[test]
    fn a_kubeconfig_that_reaches_into_this_machine_is_refused() {
        for (cluster, user, expected) in [
            (
                "",
                r#"{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/bin/sh"}}"#,
                Refused::RunsProgram,
            ),
            (
                "",
                r#"{"auth-provider":{"name":"gcp","config":{"cmd-path":"/bin/sh"}}}"#,
                Refused::AuthProvider,
            ),
            (
                "",
                r#"{"tokenFile":"/var/run/secrets/kubernetes.io/serviceaccount/token"}"#,
                Refused::ReadsFile("tokenFile"),
            ),
            (
                "",
                r#"{"client-certificate":"/etc/passwd"}"#,
                Refused::ReadsFile("client-certificate"),
            ),
            (
                "",
                r#"{"client-key":"/etc/passwd"}"#,
                Refused::ReadsFile("client-key"),
            ),
            (
                r#","certificate-authority":"/etc/passwd""#,
                r#"{"token":"t"}"#,
                Refused::ReadsFile("certificate-authority"),
            ),
        ] {
            let refused = Access::from_text(&kubeconfig(cluster, user)).unwrap_err();
            assert_eq!(refused, expected);
            assert!(!refused.to_string().contains("passwd"), "{refused}");
        }
        assert_eq!(
            Access::from_text("token: hunter2: [").unwrap_err(),
            Refused::Unreadable
        );
    }

    #[test]
    fn a_single_server_is_reached_with_the_credentials_of_its_cluster() {
        let cluster = Access::from_text(&kubeconfig("", r#"{"token":"t"}"#)).unwrap();
        let server = cluster
            .clone()
            .at("[fd00::2]:9345")
            .unwrap()
            .server_name("kubernetes");
        assert_eq!(server.url(), "https://[fd00::2]:9345/");
        assert_eq!(server.config().tls_server_name.as_deref(), Some("kubernetes"));
        assert!(server.config().auth_info.token.is_some());
        assert_eq!(cluster.url(), "https://fleet.example:6443/");
        for wrong in [
            "10.0.0.3",
            "",
            "a b:1",
            "https://a:1",
            "user@a:1",
            "a:1/path",
            "a:99999",
        ] {
            assert_eq!(
                cluster.clone().at(wrong).unwrap_err(),
                Refused::Address(wrong.to_owned())
            );
        }
    }

    #[test]
    fn as_a_user_no_other_credential_is_sent() {
        let cluster = Access::from_text(&kubeconfig("", r#"{"token":"t"}"#)).unwrap();
        let user = cluster.as_user("server", "K10");
        assert!(user.config().auth_info.token.is_none() && user.config().auth_info.password.is_some());
        assert!(!format!("{user:?}").contains("K10"), "{user:?}");
    }
}
