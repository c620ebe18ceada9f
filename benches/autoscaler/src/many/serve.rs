//! One apiserver simulator behind a port of its own, counted.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use http::{Method, Request};
use http_body_util::BodyExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use kube::client::Body;
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Requests, of which so many begin watches, ask whether the server is there, or write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    all: u64,
    watches: u64,
    probes: u64,
    writes: u64,
}

impl Counted {
    fn with(self, other: Self, join: fn(u64, u64) -> u64) -> Self {
        Counted {
            all: join(self.all, other.all),
            watches: join(self.watches, other.watches),
            probes: join(self.probes, other.probes),
            writes: join(self.writes, other.writes),
        }
    }

    pub fn and(self, other: Self) -> Self {
        self.with(other, |left, right| left + right)
    }

    pub fn since(self, before: Self) -> Self {
        self.with(before, |now, before| now - before)
    }

    pub fn json(self) -> Value {
        json!({"all": self.all, "watches": self.watches, "probes": self.probes, "writes": self.writes})
    }
}

#[derive(Default)]
struct Counters {
    all: AtomicU64,
    watches: AtomicU64,
    probes: AtomicU64,
    writes: AtomicU64,
}

impl Counters {
    fn count(&self, request: &Request<Incoming>) {
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query
            .split('&')
            .any(|part| part == "watch=true" || part == "watch=1");
        let counts = [
            (&self.all, true),
            (&self.watches, is_watch),
            (&self.probes, request.uri().path() == "/version"),
            (&self.writes, request.method() != Method::GET),
        ];
        for (counter, counts) in counts {
            counter.fetch_add(u64::from(counts), Ordering::Relaxed);
        }
    }
}

/// It is served as long as this is held.
pub struct Served {
    address: SocketAddr,
    counters: Arc<Counters>,
    stop: CancellationToken,
}

impl Served {
    pub async fn start(server: Apiserver) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("taking a port")?;
        let served = Served {
            address: listener.local_addr()?,
            counters: Arc::default(),
            stop: CancellationToken::new(),
        };
        let (counters, stop) = (Arc::clone(&served.counters), served.stop.clone());
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = stop.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                if let Ok((stream, _)) = accepted {
                    tokio::spawn(connection(
                        stream,
                        server.clone(),
                        Arc::clone(&counters),
                        stop.clone(),
                    ));
                }
            }
        });
        Ok(served)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn counted(&self) -> Counted {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counted {
            all: read(&self.counters.all),
            watches: read(&self.counters.watches),
            probes: read(&self.counters.probes),
            writes: read(&self.counters.writes),
        }
    }

    /// Ends it with all its connections.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn connection(stream: TcpStream, server: Apiserver, counters: Arc<Counters>, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        counters.count(&request);
        let server = server.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
            server
                .respond(Request::from_parts(parts, Body::from(body.to_vec())))
                .await
        }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let served = builder.serve_connection(TokioIo::new(stream), service);
    // A client that goes away is no matter of the measurement's.
    tokio::select! {
        () = stop.cancelled() => {}
        _ = served => {}
    }
}
