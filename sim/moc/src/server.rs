//! The ports of a cloud agent: one for callers with a certificate of its CA, one where certificates are had for a token.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use slipway_agent_api::serve::serve_connection;
use slipway_moc::Code;
use slipway_moc::session::Endpoint;
use slipway_moc::wire::Flag;
use slipway_moc::wire::security::authentication_agent_server::{
    AuthenticationAgent, AuthenticationAgentServer,
};
use slipway_moc::wire::security::{AuthenticationRequest, AuthenticationResponse};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::codegen::Service;
use tonic::{Request, Response, Status};

use crate::Moc;

/// The name in the server's certificate.
const NAME: &str = "localhost";

struct Identities {
    ca: Issuer<'static, KeyPair>,
    ca_pem: String,
    /// Tokens by the name of their identity.
    tokens: Mutex<BTreeMap<String, String>>,
    lifetime: Mutex<Duration>,
    logins: AtomicUsize,
}

/// A cloud agent that listens on loopback. It ends with this.
pub struct Server {
    pub moc: Moc,
    pub endpoint: Endpoint,
    identities: Arc<Identities>,
    /// Changes when every connection is to be cut.
    cut: watch::Sender<u64>,
    _tasks: JoinSet<()>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({:?})", self.endpoint)
    }
}

fn refused(code: Code, message: &str) -> Status {
    slipway_moc::refusal(code, message)
}

struct Logins(Arc<Identities>);

#[async_trait]
impl AuthenticationAgent for Logins {
    async fn login(
        &self,
        request: Request<AuthenticationRequest>,
    ) -> Result<Response<AuthenticationResponse>, Status> {
        let token = request
            .metadata()
            .get("authorization")
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
            .ok_or_else(|| refused(Code::NoAuthenticationInformation, "no token"))?;
        let identity = request.into_inner().identity.unwrap_or_default();
        let known = self.0.tokens.lock().get(&identity.name).cloned();
        match known {
            Some(known) if known == token => {}
            Some(_) => return Err(refused(Code::Expired, "the token has expired")),
            None => return Err(refused(Code::InvalidToken, "no such identity")),
        }
        let asked = identity
            .certificates
            .get("")
            .ok_or_else(|| refused(Code::InvalidInput, "no request for a certificate"))?;
        let mut asked = CertificateSigningRequestParams::from_pem(asked)
            .map_err(|_| refused(Code::InvalidInput, "no request for a certificate"))?;
        let now = Timestamp::now().as_millisecond().unsigned_abs();
        let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_millis(now);
        asked.params.not_before = now - Duration::from_secs(1);
        asked.params.not_after = now + *self.0.lifetime.lock();
        asked.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = asked
            .signed_by(&self.0.ca)
            .map_err(|error| refused(Code::Failed, &error.to_string()))?;
        self.0.logins.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(AuthenticationResponse {
            token: BASE64_STANDARD.encode(certificate.pem()),
            result: Some(Flag { value: true }),
            error: String::new(),
        }))
    }
}

fn ca() -> Result<(Certificate, KeyPair, CertificateParams), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name.push(DnType::CommonName, "a cloud");
    let certificate = params.self_signed(&key)?;
    Ok((certificate, key, params))
}

impl Server {
    pub async fn start(moc: Moc) -> io::Result<Self> {
        let (certificate, key, params) = ca().map_err(io::Error::other)?;
        let ca_der = certificate.der().clone();
        let identities = Arc::new(Identities {
            ca: Issuer::new(params, key),
            ca_pem: certificate.pem(),
            tokens: Mutex::default(),
            lifetime: Mutex::new(Duration::from_hours(24)),
            logins: AtomicUsize::new(0),
        });
        let own = KeyPair::generate().map_err(io::Error::other)?;
        let chain = CertificateParams::new(vec![NAME.to_owned()])
            .and_then(|params| params.signed_by(&own, &identities.ca))
            .map_err(io::Error::other)?;
        let provider = || Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(ca_der).map_err(io::Error::other)?;
        let config = |with_certificate: bool| -> io::Result<Arc<ServerConfig>> {
            let builder = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .map_err(io::Error::other)?;
            let builder = if with_certificate {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots.clone()), provider())
                        .build()
                        .map_err(io::Error::other)?;
                builder.with_client_cert_verifier(verifier)
            } else {
                builder.with_no_client_auth()
            };
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.serialize_der()));
            let mut config = builder
                .with_single_cert(vec![chain.der().clone()], key)
                .map_err(io::Error::other)?;
            config.alpn_protocols = vec![b"h2".to_vec()];
            Ok(Arc::new(config))
        };
        let (cut, _) = watch::channel(0);
        let mut tasks = JoinSet::new();
        let cloud = TcpListener::bind((NAME, 0)).await?;
        let login = TcpListener::bind((NAME, 0)).await?;
        let (cloud_at, login_at) = (cloud.local_addr()?, login.local_addr()?);
        let served = moc.clone();
        tasks.spawn(accept(cloud, config(true)?, cut.clone(), move |request| {
            let moc = served.clone();
            async move { moc.answer(request).await }
        }));
        let logins = Arc::new(Logins(identities.clone()));
        tasks.spawn(accept(login, config(false)?, cut.clone(), move |request| {
            let mut server = AuthenticationAgentServer::from_arc(logins.clone());
            async move {
                match server.call(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
        }));
        Ok(Self {
            moc,
            endpoint: endpoint(cloud_at, login_at),
            identities,
            cut,
            _tasks: tasks,
        })
    }

    /// The login file of a new identity; what it was given before no longer counts.
    pub fn login_file(&self, name: &str, token: &str) -> String {
        self.identities
            .tokens
            .lock()
            .insert(name.to_owned(), token.to_owned());
        let ca = BASE64_STANDARD.encode(&self.identities.ca_pem);
        format!(
            "name: {name}\ntoken: {token}\ncertificate: {ca}\nclienttype: ExternalClient\ncloudfqdn: {NAME}\n"
        )
    }

    /// Certificates from now on live this long.
    pub fn set_lifetime(&self, lifetime: Duration) {
        *self.identities.lifetime.lock() = lifetime;
    }

    pub fn logins(&self) -> usize {
        self.identities.logins.load(Ordering::SeqCst)
    }

    /// Cuts every connection, in the middle of whatever goes over it.
    pub fn cut_connections(&self) {
        self.cut.send_modify(|count| *count += 1);
    }
}

fn endpoint(cloud: SocketAddr, login: SocketAddr) -> Endpoint {
    Endpoint {
        host: NAME.to_owned(),
        cloud_port: cloud.port(),
        login_port: login.port(),
    }
}

async fn accept<F>(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    cut: watch::Sender<u64>,
    answer: impl Fn(http::Request<tonic::body::Body>) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = http::Response<tonic::body::Body>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, answer) = (TlsAcceptor::from(config.clone()), answer.clone());
        let mut cut = cut.subscribe();
        connections.spawn(async move {
            let stream = match acceptor.accept(stream).await {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!("a caller was refused: {error}");
                    return;
                }
            };
            tokio::select! {
                () = serve_connection(stream, answer) => {}
                _ = cut.changed() => {}
            }
        });
    }
}
