//! A connection to a cloud agent: mutual TLS, with a certificate that is given or had by logging in with a token. It is made when it is
//! needed, kept while it is good, and its certificate is had again when less than a third of its life is left, as MOC's own clients do.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use slipway_agent_api::{
    Class,
    channel::{Channel, connect},
    tls::Validity,
};
use tonic::body::Body;

use crate::{
    access::{Credentials, certificates},
    cloud::{BoxError, Cloud, Transport},
    error::MocError,
    wire::security::{
        AuthenticationRequest, Identity, authentication_agent_client::AuthenticationAgentClient,
    },
};

/// Of cloud agents, where an address names none.
pub const CLOUD_PORT: u16 = 55000;
/// Of their authentication.
pub const LOGIN_PORT: u16 = 65000;

/// Where a cloud agent is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// As its certificate names it.
    pub host: String,
    pub cloud_port: u16,
    pub login_port: u16,
}

/// A certificate with which the cloud agent is spoken to.
struct Ticket {
    tls: Arc<ClientConfig>,
    valid: Validity,
}

struct Open {
    channel: Channel,
    valid: Validity,
}

pub struct Session {
    endpoint: Endpoint,
    credentials: Credentials,
    open: Mutex<Option<Open>>,
    /// One connection is made at a time.
    opening: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.endpoint.host)
    }
}

fn denied(doing: &str, why: &str) -> MocError {
    MocError {
        class: Class::Denied,
        ..MocError::told(doing, why)
    }
}

fn roots(ca_certificates: &[CertificateDer<'static>], doing: &str) -> Result<RootCertStore, MocError> {
    let mut roots = RootCertStore::empty();
    for certificate in ca_certificates {
        roots
            .add(certificate.clone())
            .map_err(|error| denied(doing, &error.to_string()))?;
    }
    Ok(roots)
}

/// The two versions that MOC's clients speak.
fn config(
    ca_certificates: &[CertificateDer<'static>],
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    doing: &str,
) -> Result<Arc<ClientConfig>, MocError> {
    let unusable = |error: rustls::Error| denied(doing, &error.to_string());
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(unusable)?
        .with_root_certificates(roots(ca_certificates, doing)?);
    let mut config = match own {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(unusable)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

async fn channel(host: &str, port: u16, tls: Arc<ClientConfig>, doing: &str) -> Result<Channel, MocError> {
    let address = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let stream = connect(&address, host, tls)
        .await
        .map_err(|error| MocError::unreachable(doing, &error.to_string()))?;
    let (channel, ended) = Channel::over(stream, host)
        .await
        .map_err(|error| MocError::unreachable(doing, &error.to_string()))?;
    tokio::spawn(ended);
    Ok(channel)
}

/// Requests over a connection.
fn transport(channel: &Channel) -> Transport {
    let channel = Mutex::new(channel.clone());
    Transport::new(move |request| {
        let mut channel = channel.lock().clone();
        async move {
            let response = channel.send(request).await?;
            Ok::<_, BoxError>(response.map(Body::new))
        }
    })
}

fn validity(chain: &[CertificateDer<'static>], doing: &str) -> Result<Validity, MocError> {
    let own = chain
        .first()
        .ok_or_else(|| denied(doing, "there is no certificate"))?;
    Validity::of(own).map_err(|error| denied(doing, &error.to_string()))
}

impl Session {
    pub fn new(endpoint: Endpoint, credentials: Credentials) -> Self {
        Self {
            endpoint,
            credentials,
            open: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    fn kept(&self, now: Timestamp) -> Option<Cloud> {
        let open = self.open.lock();
        let open = open.as_ref()?;
        let is_fresh = match &self.credentials {
            Credentials::Login { .. } => now < open.valid.renew_at(),
            Credentials::Certificate { .. } => now < open.valid.until,
        };
        (is_fresh && !open.channel.is_closed())
            .then(|| Cloud::new(transport(&open.channel), open.channel.origin()))
    }

    /// The connection in use, or a new one.
    pub async fn cloud(&self, now: Timestamp) -> Result<Cloud, MocError> {
        if let Some(cloud) = self.kept(now) {
            return Ok(cloud);
        }
        let _one = self.opening.lock().await;
        if let Some(cloud) = self.kept(now) {
            return Ok(cloud);
        }
        let doing = format!("connecting to the cloud agent {}", self.endpoint.host);
        let ticket = self.ticket(now).await?;
        let channel = channel(&self.endpoint.host, self.endpoint.cloud_port, ticket.tls, &doing).await?;
        let cloud = Cloud::new(transport(&channel), channel.origin());
        *self.open.lock() = Some(Open {
            channel,
            valid: ticket.valid,
        });
        Ok(cloud)
    }

    /// Whoever was refused logs in again.
    pub fn close(&self) {
        *self.open.lock() = None;
    }

    async fn ticket(&self, now: Timestamp) -> Result<Ticket, MocError> {
        match &self.credentials {
            Credentials::Certificate {
                chain,
                key,
                ca_certificates,
            } => {
                let doing = "using the certificate for MOC";
                let valid = validity(chain, doing)?;
                if valid.until <= now {
                    let why = format!(
                        "it has expired at {}: log in again, or give a login file, which is renewed by itself",
                        valid.until
                    );
                    return Err(denied(doing, &why));
                }
                let own = (chain.clone(), key.clone_key());
                Ok(Ticket {
                    tls: config(ca_certificates, Some(own), doing)?,
                    valid,
                })
            }
            Credentials::Login {
                name,
                token,
                ca_certificates,
            } => self.log_in(name, token, ca_certificates).await,
        }
    }

    async fn log_in(
        &self,
        name: &str,
        token: &str,
        ca_certificates: &[CertificateDer<'static>],
    ) -> Result<Ticket, MocError> {
        let doing = format!("logging in to MOC as {name}");
        let failed = |error: rcgen::Error| denied(&doing, &error.to_string());
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(Vec::new()).map_err(failed)?;
        params.distinguished_name.push(DnType::CommonName, name);
        let request = params
            .serialize_request(&key)
            .and_then(|request| request.pem())
            .map_err(failed)?;
        let tls = config(ca_certificates, None, &doing)?;
        let channel = channel(&self.endpoint.host, self.endpoint.login_port, tls, &doing).await?;
        let mut client = AuthenticationAgentClient::with_origin(transport(&channel), channel.origin());
        let mut call = tonic::Request::new(AuthenticationRequest {
            identity: Some(Identity {
                name: name.to_owned(),
                certificates: [(String::new(), request)].into(),
            }),
        });
        // As it is, without a scheme before it.
        let value = token
            .parse()
            .map_err(|_| denied(&doing, "the token of the login file is not one"))?;
        call.metadata_mut().insert("authorization", value);
        let answer = client
            .login(call)
            .await
            .map_err(|status| MocError::of_status(&doing, &status))?
            .into_inner();
        if !answer.error.is_empty() {
            return Err(denied(&doing, &answer.error));
        }
        let chain = certificates(&answer.token)
            .ok_or_else(|| denied(&doing, "MOC answered without a certificate"))?;
        let valid = validity(&chain, &doing)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(Ticket {
            tls: config(ca_certificates, Some((chain, key)), &doing)?,
            valid,
        })
    }
}
