//! Accepting connections: TLS or plain, HTTP/1.1 or HTTP/2, and an orderly end that lets requests finish.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use http::Request;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::{ServerConfig, SupportedProtocolVersion, server::ResolvesServerCert};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Answer;
use crate::certificates::install_crypto_provider;

/// A client that connects and says nothing is cut off.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Requests under way at shutdown get this long.
pub const DRAIN: Duration = Duration::from_secs(10);

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

    /// Serves until cancelled, then lets the requests that are under way finish.
    pub async fn serve<S, F>(self, protocol: Protocol, answer: S, cancel: CancellationToken)
    where
        S: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let connections = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = cancel.cancelled() => break,
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
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(self.listener);
        connections.close();
        if tokio::time::timeout(DRAIN, connections.wait()).await.is_err() {
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
        install_crypto_provider();
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        if !cipher_suites.is_empty() {
            let name = |suite: &rustls::SupportedCipherSuite| format!("{:?}", suite.suite());
            let known: Vec<String> = provider.cipher_suites.iter().map(name).collect();
            for wanted in cipher_suites {
                if !known.contains(wanted)
                    && !wanted.starts_with("TLS_AES_")
                    && !wanted.starts_with("TLS_CHACHA20_")
                {
                    let choices: Vec<String> = known
                        .into_iter()
                        .filter(|name| name.starts_with("TLS_"))
                        .collect();
                    return Err(format!(
                        "{wanted:?} is not offered; choose from {}",
                        choices.join(", ")
                    ));
                }
            }
            provider
                .cipher_suites
                .retain(|suite| suite.tls13().is_some() || cipher_suites.contains(&name(suite)));
        }
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(certificates);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self::Tls(TlsAcceptor::from(Arc::new(config))))
    }
}

async fn serve_connection<S, F>(
    stream: TcpStream,
    protocol: Protocol,
    answer: S,
    cancel: CancellationToken,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    stream.set_nodelay(true)?;
    let service = hyper::service::service_fn(move |request| {
        let answering = answer(request);
        async move { Ok::<_, std::convert::Infallible>(answering.await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(256);
    match protocol {
        Protocol::Plain => drive(builder.serve_connection(TokioIo::new(stream), service), cancel).await,
        Protocol::Tls(acceptor) => {
            let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await??;
            drive(builder.serve_connection(TokioIo::new(stream), service), cancel).await
        }
    }
}

/// Runs one connection to its end; at shutdown no new request is taken on it.
async fn drive<I, S>(
    connection: auto::Connection<'_, I, S, TokioExecutor>,
    cancel: CancellationToken,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: hyper::service::Service<Request<Incoming>, Response = Answer>,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = cancel.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}
