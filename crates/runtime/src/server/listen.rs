//! Accepting connections: TLS or plain, HTTP/1.1 or HTTP/2, and an orderly end that lets requests finish.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, Request, Version, header};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::{ServerConfig, SupportedProtocolVersion, server::ResolvesServerCert};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Answer,
    client_certificate::{ClientCa, Verified},
};
use crate::certificates::install_crypto_provider;

/// A client that connects and says nothing is cut off.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
/// A connection is kept this long for its next request. Whoever closes an idle connection may cut off a request that is
/// on its way, which an apiserver reports as a webhook that failed. So it is for the client to close it: those written
/// in Go do after 90 seconds.
pub(super) const IDLE: Duration = Duration::from_mins(2);
/// Requests are still taken for this long at shutdown, each as the last of its connection: who sends them has not yet
/// heard that this server goes.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// Requests under way after that get this long.
pub const DRAIN: Duration = Duration::from_secs(8);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Why an address cannot be listened on, with the flag that names another.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("port {port} is in use: stop the process that listens on it, or choose another with {flag}")]
    InUse { port: u16, flag: &'static str },
    #[error("{address:?} is not an address to listen on: write host:port or :port in {flag}")]
    Invalid { address: String, flag: &'static str },
    #[error("cannot listen on {address} ({flag}): {source}")]
    Refused {
        address: String,
        flag: &'static str,
        source: io::Error,
    },
}

/// A bound address that is not served yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
}

impl Listener {
    /// Binds `host:port` or, as Go writes it, `:port` for every interface.
    pub async fn bind(address: &str, flag: &'static str) -> Result<Self, BindError> {
        let invalid = || BindError::Invalid {
            address: address.to_owned(),
            flag,
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
        let port: u16 = port.parse().map_err(|_| invalid())?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        // Every interface: both protocols where there is IPv6, else IPv4 alone.
        let hosts: &[&str] = if host.is_empty() {
            &["::", "0.0.0.0"]
        } else {
            &[host]
        };
        let mut last = None;
        for host in hosts {
            match TcpListener::bind((*host, port)).await {
                Ok(listener) => return Ok(Self { listener }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    return Err(BindError::InUse { port, flag });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(BindError::Refused {
            address: address.to_owned(),
            flag,
            source: last.unwrap_or_else(|| io::Error::other("no address")),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.listener
            .local_addr()
            .expect("a bound listener has an address")
    }

    /// Serves until cancelled, and a moment longer; then lets the requests that are under way finish.
    pub async fn serve<S, F>(self, protocol: Protocol, answer: S, cancel: CancellationToken)
    where
        S: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let connections = TaskTracker::new();
        let end = told_to_go(&cancel);
        tokio::pin!(end);
        loop {
            let accepted = tokio::select! {
                () = end.as_mut() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (protocol, answer, cancel) = (protocol.clone(), answer.clone(), cancel.clone());
                    connections.spawn(async move {
                        if let Err(error) = serve_connection(stream, protocol, answer, cancel).await {
                            tracing::debug!(err = %error, "Connection ended early");
                        }
                    });
                }
                Err(error) => {
                    // Out of file descriptors, mostly: wait for some to come back.
                    tracing::warn!(err = %error, "Failed to accept a connection");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(self.listener);
        connections.close();
        if timeout(DRAIN, connections.wait()).await.is_err() {
            tracing::warn!("Ended with requests still under way");
        }
    }
}

/// Plain HTTP, or TLS with a certificate that may change.
#[derive(Clone)]
pub enum Protocol {
    Plain,
    Tls(TlsAcceptor),
}

impl Protocol {
    /// TLS of these versions. `cipher_suites` narrows what is offered for TLS 1.2, as Go's servers take it; those of
    /// TLS 1.3 are not a choice.
    pub fn tls(
        certificates: Arc<dyn ResolvesServerCert>,
        versions: &[&'static SupportedProtocolVersion],
        cipher_suites: &[String],
    ) -> Result<Self, String> {
        Self::tls_for(certificates, versions, cipher_suites, None)
    }

    /// The same, asking clients for a certificate of a CA. One that is shown must be good; to show none is allowed.
    pub fn tls_for(
        certificates: Arc<dyn ResolvesServerCert>,
        versions: &[&'static SupportedProtocolVersion],
        cipher_suites: &[String],
        clients: Option<&ClientCa>,
    ) -> Result<Self, String> {
        install_crypto_provider();
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        if !cipher_suites.is_empty() {
            let name = |suite: &rustls::SupportedCipherSuite| format!("{:?}", suite.suite());
            let known: Vec<String> = provider.cipher_suites.iter().map(name).collect();
            for desired in cipher_suites {
                if !known.contains(desired)
                    && !desired.starts_with("TLS_AES_")
                    && !desired.starts_with("TLS_CHACHA20_")
                {
                    let choices: Vec<String> = known
                        .into_iter()
                        .filter(|name| name.starts_with("TLS_"))
                        .collect();
                    return Err(format!(
                        "{desired:?} is not offered; choose from {}",
                        choices.join(", ")
                    ));
                }
            }
            provider
                .cipher_suites
                .retain(|suite| suite.tls13().is_some() || cipher_suites.contains(&name(suite)));
        }
        let provider = Arc::new(provider);
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(|error| error.to_string())?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(ca) => builder.with_client_cert_verifier(ca.verifier(provider)?),
        };
        let mut config = builder.with_cert_resolver(certificates);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self::Tls(TlsAcceptor::from(Arc::new(config))))
    }
}

async fn serve_connection<S, F>(
    stream: TcpStream,
    protocol: Protocol,
    answer: S,
    cancel: CancellationToken,
) -> Result<(), Failure>
where
    S: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    stream.set_nodelay(true)?;
    match protocol {
        Protocol::Plain => converse(stream, answer, cancel).await,
        Protocol::Tls(acceptor) => {
            let stream = timeout(HANDSHAKE, acceptor.accept(stream)).await??;
            let verified = stream.get_ref().1.peer_certificates().is_some();
            let answer = move |mut request: Request<Incoming>| {
                if verified {
                    request.extensions_mut().insert(Verified);
                }
                answer(request)
            };
            converse(stream, answer, cancel).await
        }
    }
}

/// Answers the requests of one connection, until its end.
pub(super) async fn converse<I, S, F>(stream: I, answer: S, cancel: CancellationToken) -> Result<(), Failure>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let is_heard = Arc::new(AtomicBool::new(false));
    let (heard, leaving) = (is_heard.clone(), cancel.clone());
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        heard.store(true, Ordering::Relaxed);
        let says_when_it_closes = request.version() <= Version::HTTP_11;
        let (answering, leaving) = (answer(request), leaving.clone());
        async move {
            let mut answer = answering.await;
            if leaving.is_cancelled() && says_when_it_closes {
                let close = HeaderValue::from_static("close");
                answer.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // What hyper limits is the time until a request's head has been read, and with it the time before it begins.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(256);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let silence = async {
        sleep(HANDSHAKE).await;
        if is_heard.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = silence => Err("no request came".into()),
        () = told_to_go(&cancel) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

/// The moment from which no new request is taken.
async fn told_to_go(cancel: &CancellationToken) {
    cancel.cancelled().await;
    sleep(LINGER).await;
}
