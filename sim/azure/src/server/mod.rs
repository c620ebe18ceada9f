//! The simulator behind sockets: an HTTPS port for ARM and login, a CONNECT proxy that brings unmodified clients to
//! it, a plain port for the metadata service and administration.

mod admin;
mod certificates;
mod keeper;
mod proxy;

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{Notify, watch},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

pub use certificates::Ca;
pub use keeper::read as read_state;

use crate::{backing, simulator::Simulator, wire};

/// Bodies larger than this are refused, as ARM does at 4 MB.
const LARGEST_BODY: usize = 4 * 1024 * 1024;

#[derive(Clone, Debug)]
pub struct Options {
    pub https: SocketAddr,
    pub proxy: SocketAddr,
    pub admin: SocketAddr,
    /// Where the state is kept over restarts.
    pub state: Option<PathBuf>,
}

impl Default for Options {
    /// Any free ports on loopback, nothing kept.
    fn default() -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            https: any,
            proxy: any,
            admin: any,
            state: None,
        }
    }
}

/// Where the server listens.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Ports {
    pub https: SocketAddr,
    pub proxy: SocketAddr,
    pub admin: SocketAddr,
}

/// A running server; it stops when [`Server::stop`] is called or the value is dropped.
#[derive(Debug)]
pub struct Server {
    pub ports: Ports,
    pub ca: Arc<Ca>,
    simulator: Simulator,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

/// What every connection shares.
#[derive(Clone)]
struct Shared {
    simulator: Simulator,
    /// Rung after every request that may have changed something.
    changed: Arc<Notify>,
    tls: TlsAcceptor,
    ca: Arc<Ca>,
}

impl Server {
    pub async fn start(simulator: Simulator, ca: Ca, options: Options) -> Result<Self, std::io::Error> {
        let ca = Arc::new(ca);
        let (https, proxy, admin) = (
            TcpListener::bind(options.https).await?,
            TcpListener::bind(options.proxy).await?,
            TcpListener::bind(options.admin).await?,
        );
        let ports = Ports {
            https: https.local_addr()?,
            proxy: proxy.local_addr()?,
            admin: admin.local_addr()?,
        };
        let shared = Shared {
            simulator: simulator.clone(),
            changed: Arc::default(),
            tls: ca.acceptor(),
            ca: Arc::clone(&ca),
        };
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(https, stopped.clone(), {
            let shared = shared.clone();
            move |stream| {
                let shared = shared.clone();
                async move {
                    if let Ok(stream) = shared.tls.clone().accept(stream).await {
                        serve(stream, shared).await;
                    }
                }
            }
        }));
        tasks.spawn(accept(proxy, stopped.clone(), {
            let shared = shared.clone();
            move |stream| proxy::serve(stream, shared.clone())
        }));
        tasks.spawn(accept(admin, stopped.clone(), {
            let shared = shared.clone();
            move |stream| admin::serve(stream, shared.clone())
        }));
        tasks.spawn(backing::follow(
            simulator.clone(),
            Arc::clone(&shared.changed),
            stopped.clone(),
        ));
        if let Some(path) = options.state {
            tasks.spawn(keeper::keep(
                simulator.clone(),
                path,
                Arc::clone(&shared.changed),
                stopped,
            ));
        }
        Ok(Self {
            ports,
            ca,
            simulator,
            stop,
            tasks,
        })
    }

    pub fn simulator(&self) -> &Simulator {
        &self.simulator
    }

    /// Stops listening and waits until what has to be kept is written.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn accept<F, Fut>(listener: TcpListener, mut stopped: watch::Receiver<bool>, handle: F)
where
    F: Fn(tokio::net::TcpStream) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => return,
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    let _ = stream.set_nodelay(true);
                    connections.spawn(handle(stream));
                }
            }
            // Ended connections are taken off the set, so that it does not grow.
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves ARM and login on one connection.
async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: Shared) {
    let service = service_fn(move |request| answer(request, shared.clone()));
    let served = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

/// The answer to one request, or a broken connection where a fault asked for one.
async fn answer(
    request: hyper::Request<Incoming>,
    shared: Shared,
) -> Result<hyper::Response<Full<Bytes>>, Dropped> {
    let (parts, body) = request.into_parts();
    let authority = parts
        .uri
        .authority()
        .map(ToString::to_string)
        .or_else(|| {
            parts
                .headers
                .get(http::header::HOST)
                .and_then(|host| host.to_str().ok())
                .map(str::to_owned)
        })
        .unwrap_or_default()
        .to_ascii_lowercase();
    let host = authority
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
        .map_or(authority.as_str(), |(host, _)| host)
        .to_owned();
    // The public names are reached on the default port; links must not name it.
    let authority = authority.strip_suffix(":443").unwrap_or(&authority).to_owned();
    let Ok(body) = Limited::new(body, LARGEST_BODY).collect().await else {
        return Ok(plain(413, "the request body is larger than 4 MB or was cut off"));
    };
    let request = wire::Request {
        method: parts.method,
        host,
        authority,
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers,
        body: body.to_bytes(),
    };
    let response = shared.simulator.handle(&request);
    shared.changed.notify_waiters();
    if !response.delivery.delay.is_zero() {
        tokio::time::sleep(response.delivery.delay).await;
    }
    if response.delivery.dropped {
        return Err(Dropped);
    }
    let mut answer = hyper::Response::new(Full::new(response.body));
    *answer.status_mut() = http::StatusCode::from_u16(response.status).unwrap_or(http::StatusCode::OK);
    *answer.headers_mut() = response.headers;
    Ok(answer)
}

/// A connection that ends without an answer because a fault asked for it.
#[derive(Debug, thiserror::Error)]
#[error("the connection is dropped because a fault asked for it")]
struct Dropped;

fn plain(status: u16, text: &str) -> hyper::Response<Full<Bytes>> {
    let mut response = hyper::Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::BAD_REQUEST);
    response
}

type Answer = Result<hyper::Response<Full<Bytes>>, Infallible>;
