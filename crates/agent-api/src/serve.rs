//! Accepts connections, learns who calls, and lets calls through that the caller's role allows. The only place where
//! rights are checked.

use std::{collections::BTreeMap, convert::Infallible, fmt, future::Future, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2::Builder, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::{body::Body, server::NamedService};
use tower::{Service, ServiceExt, util::BoxCloneSyncService};

use crate::{
    Identity,
    channel::{PING_EVERY, PING_WITHIN},
    problem::{Class, Problem},
    roles::{Role, may_call},
    tls::{CurrentTls, Validity, now},
};

/// A handshake takes no longer, whoever it is.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Calls at one time on one connection.
const CALLS: u32 = 128;
/// Connections at one time.
const CONNECTIONS: usize = 1024;

type Routed = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// The services of a process, by their names in the protocol.
#[derive(Clone, Default)]
pub struct Router {
    /// Callers of another fleet are refused.
    fleet: String,
    services: BTreeMap<&'static str, Routed>,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.services.keys()).finish()
    }
}

impl Router {
    pub fn new(fleet: &str) -> Self {
        Self {
            fleet: fleet.to_owned(),
            services: BTreeMap::new(),
        }
    }

    pub fn with<S>(mut self, service: S) -> Self
    where
        S: NamedService
            + Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.services.insert(S::NAME, BoxCloneSyncService::new(service));
        self
    }

    /// One call by `identity`.
    pub async fn call(&self, identity: &Identity, mut request: Request<Body>) -> Response<Body> {
        let denied = |reason: &str, message: String| {
            Problem::new(Class::Denied, reason, message)
                .to_status()
                .into_http()
        };
        if identity.fleet().is_some_and(|fleet| fleet != self.fleet) {
            return denied(
                "ForeignFleet",
                format!("{identity} is not of fleet {}", self.fleet),
            );
        }
        let path = request.uri().path();
        if !may_call(Role::of(identity), path) {
            tracing::warn!(%identity, path = %path.chars().take(80).collect::<String>(), "a call was refused");
            return denied("NotAllowed", format!("{identity} may not call this"));
        }
        let name = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let Some(service) = self.services.get(name).cloned() else {
            return tonic::Status::unimplemented("this is not served here").into_http();
        };
        request.extensions_mut().insert(identity.clone());
        match service.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// Answers the calls of one connection until it ends.
pub async fn serve_connection<I, C, F>(io: I, call: C)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    C: Fn(Request<Body>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = call(request.map(Body::new));
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let served = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN)
        .max_concurrent_streams(CALLS)
        .max_header_list_size(16 << 10)
        .serve_connection(TokioIo::new(io), service)
        .await;
    if let Err(error) = served {
        tracing::debug!("connection ended: {error}");
    }
}

/// A caller whose certificate was verified, and how long it is good for.
pub struct Caller {
    pub identity: Identity,
    /// The connection ends with the certificate.
    pub left: Option<Duration>,
    pub stream: TlsStream<TcpStream>,
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Caller({})", self.identity)
    }
}

impl Caller {
    /// The protocol that both sides chose.
    pub fn protocol(&self) -> Option<&[u8]> {
        self.stream.get_ref().1.alpn_protocol()
    }
}

async fn accept(stream: TcpStream, tls: &CurrentTls) -> Result<Caller, String> {
    let _ = stream.set_nodelay(true);
    let acceptor = TlsAcceptor::from(tls.get().server.clone());
    let stream = timeout(HANDSHAKE_WITHIN, acceptor.accept(stream))
        .await
        .map_err(|_| "no handshake".to_owned())?
        .map_err(|error| error.to_string())?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let (identity, left) = match certificate {
        None => (Identity::Anonymous, None),
        Some(certificate) => (
            Identity::of_certificate(certificate).map_err(|error| error.to_string())?,
            Some(
                Validity::of(certificate)
                    .map_err(|error| error.to_string())?
                    .left(now()),
            ),
        ),
    };
    Ok(Caller {
        identity,
        left,
        stream,
    })
}

/// Accepts for ever; each caller is handled in a task of its own, for as long as its certificate is good. Dropped, it ends
/// them all.
pub async fn accept_callers<H, F>(listener: TcpListener, tls: Arc<CurrentTls>, handle: H)
where
    H: Fn(Caller) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let limit = Arc::new(Semaphore::new(CONNECTIONS));
    let mut callers = JoinSet::new();
    loop {
        let Ok(permit) = limit.clone().acquire_owned().await else {
            return;
        };
        let accepted = loop {
            tokio::select! {
                accepted = listener.accept() => break accepted,
                Some(_) = callers.join_next() => {}
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, mostly: those who wait are not helped by a busy loop.
                tracing::warn!("accepting a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (tls, handle) = (tls.clone(), handle.clone());
        callers.spawn(async move {
            let _permit = permit;
            match accept(stream, &tls).await {
                Ok(caller) => {
                    let left = caller.left;
                    let handling = handle(caller);
                    match left {
                        Some(left) => {
                            let _ = timeout(left, handling).await;
                        }
                        None => handling.await,
                    }
                }
                Err(reason) => tracing::debug!("a caller was refused: {reason}"),
            }
        });
    }
}

/// Serves `router` to everybody who connects.
pub async fn serve(listener: TcpListener, tls: Arc<CurrentTls>, router: Router) {
    let router = Arc::new(router);
    accept_callers(listener, tls, move |caller| {
        let router = router.clone();
        async move {
            let identity = Arc::new(caller.identity);
            serve_connection(caller.stream, move |request| {
                let (router, identity) = (router.clone(), identity.clone());
                async move { router.call(&identity, request).await }
            })
            .await;
        }
    })
    .await;
}
