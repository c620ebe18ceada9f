//! One HTTP/2 connection over whatever bytes go over, for calls. Dead links are noticed by pings, not by deadlines: an
//! operation that is silent for an hour is alive as long as pings are answered.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::body::Body;
use tower::Service;

use crate::{Identity, identity::server_name};

/// Pings go out this often.
pub const PING_EVERY: Duration = Duration::from_secs(10);
/// And are answered within this time, or the connection is given up.
pub const PING_WITHIN: Duration = Duration::from_secs(20);
/// A connection is made within this time.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{address} cannot be reached: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("{address} is not who it should be: {reason}")]
    Untrusted { address: String, reason: String },
    #[error("{0} is not connected")]
    NotConnected(String),
}

/// A connection to one server; clones share it.
#[derive(Clone)]
pub struct Channel {
    sender: SendRequest<Body>,
    /// What stands in requests: `https://NAME`.
    origin: http::Uri,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({})", self.origin)
    }
}

impl Channel {
    /// Speaks HTTP/2 over `io`. The second value ends when the connection does.
    pub async fn over<I>(
        io: I,
        name: &str,
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<I>), hyper::Error>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_WITHIN)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .handshake(TokioIo::new(io))
            .await?;
        let origin = format!("https://{name}")
            .parse()
            .unwrap_or_else(|_| http::Uri::from_static("https://unnamed.slipway.internal"));
        let ended = async move {
            if let Err(error) = connection.await {
                tracing::debug!("connection ended: {error}");
            }
        };
        Ok((Self { sender, origin }, ended))
    }

    /// Connects to a host, and accepts nobody else.
    pub async fn to_host(
        address: &str,
        host: &str,
        config: Arc<rustls::ClientConfig>,
    ) -> Result<Self, ConnectError> {
        let name = server_name(host);
        let stream = connect(address, &name, config).await?;
        Self::over_tls(address, &name, stream).await
    }

    /// Connects to the edge manager.
    pub async fn to_manager(address: &str, config: Arc<rustls::ClientConfig>) -> Result<Self, ConnectError> {
        let name = crate::identity::MANAGER_NAME;
        let stream = connect(address, name, config).await?;
        Self::over_tls(address, name, stream).await
    }

    async fn over_tls(address: &str, name: &str, stream: TlsStream<TcpStream>) -> Result<Self, ConnectError> {
        let (channel, ended) = Self::over(stream, name)
            .await
            .map_err(|error| ConnectError::Unreachable {
                address: address.to_owned(),
                reason: error.to_string(),
            })?;
        tokio::spawn(ended);
        Ok(channel)
    }

    /// The same connection, spoken to under another name: how a relay knows whom a call is for.
    pub fn named(&self, name: &str) -> Self {
        Self {
            sender: self.sender.clone(),
            origin: format!("https://{name}")
                .parse()
                .unwrap_or_else(|_| self.origin.clone()),
        }
    }

    pub fn origin(&self) -> http::Uri {
        self.origin.clone()
    }

    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends a request as it is.
    pub async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, hyper::Error> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

/// TCP and TLS to a server of that name.
pub async fn connect(
    address: &str,
    name: &str,
    config: Arc<rustls::ClientConfig>,
) -> Result<TlsStream<TcpStream>, ConnectError> {
    let unreachable = |reason: String| ConnectError::Unreachable {
        address: address.to_owned(),
        reason,
    };
    let server_name = ServerName::try_from(name.to_owned()).map_err(|error| ConnectError::Untrusted {
        address: address.to_owned(),
        reason: error.to_string(),
    })?;
    let connecting = async {
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        let _ = stream.set_nodelay(true);
        TlsConnector::from(config)
            .connect(server_name, stream)
            .await
            .map_err(|error| {
                // A TLS error is about trust; everything else about the link.
                match error
                    .get_ref()
                    .and_then(|inner| inner.downcast_ref::<rustls::Error>())
                {
                    Some(tls) => ConnectError::Untrusted {
                        address: address.to_owned(),
                        reason: tls.to_string(),
                    },
                    None => unreachable(error.to_string()),
                }
            })
    };
    timeout(CONNECT_WITHIN, connecting)
        .await
        .unwrap_or_else(|_| Err(unreachable("it does not answer".to_owned())))
}

/// Who the server at the other end is; its certificate was verified in the handshake.
pub fn server_identity(stream: &TlsStream<TcpStream>) -> Option<Identity> {
    let (_, connection) = stream.get_ref();
    let certificate = connection.peer_certificates()?.first()?;
    Identity::of_certificate(certificate).ok()
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}
