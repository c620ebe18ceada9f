//! Makes the clients of workload clusters, all alike: counted, without retries, with an end to every request, and
//! silent once this process may no longer lead.

use std::{sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Either, Full};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
};
use tower::{BoxError, Layer, Service, ServiceBuilder};

use super::Access;
use crate::{
    Context, Metrics, ObjectKey,
    client::{self, CountRequests},
    lease::{Fence, Leadership},
};

/// The `host` label of requests to workload clusters: one for all, because they come and go and a label stays.
const HOST_LABEL: &str = "workload-cluster";

/// A request that has not been answered after this long was not: what Cluster API allows thrice over, because lists of
/// whole clusters come this way.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A server that does not accept a connection for this long is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes the client of a cluster; a test makes one that goes elsewhere.
pub type Connector = Arc<dyn Fn(&ObjectKey, &Config) -> Result<Client, kube::Error> + Send + Sync>;

/// Makes clients of workload clusters. Clones make the same.
#[derive(Clone)]
pub struct Clients {
    metrics: Metrics,
    leadership: Leadership,
    connector: Option<Connector>,
}

impl Clients {
    /// Clients that are counted with the manager's own, and write while it leads.
    pub fn of(context: &Context) -> Self {
        Self {
            metrics: context.metrics.clone(),
            leadership: context.leadership.clone(),
            connector: None,
        }
    }

    /// Connects by an injected connector. Its clients are counted, fenced and ended as all are.
    pub fn connecting_by(mut self, connector: Option<Connector>) -> Self {
        self.connector = connector;
        self
    }

    /// A client of the cluster of this name. Does not wait for an answer.
    pub fn connect(&self, cluster: &ObjectKey, access: &Access) -> Result<Client, kube::Error> {
        let mut config = access.config().clone();
        config.connect_timeout = Some(
            config
                .connect_timeout
                .map_or(CONNECT_TIMEOUT, |timeout| timeout.min(CONNECT_TIMEOUT)),
        );
        client::end_silence(&mut config);
        let namespace = config.default_namespace.clone();
        match &self.connector {
            None => Ok(self.layered(ClientBuilder::try_from(config)?)),
            Some(connector) => {
                let injected = connector(cluster, &config)?;
                let service = tower::service_fn(move |request: http::Request<Body>| {
                    let injected = injected.clone();
                    async move {
                        injected.send(request).await.map_err(|error| match error {
                            kube::Error::Service(error) => error,
                            error => error.into(),
                        })
                    }
                });
                Ok(self.layered(ClientBuilder::new(service, namespace)))
            }
        }
    }

    fn layered<S, B>(&self, builder: ClientBuilder<S>) -> Client
    where
        S: Service<http::Request<Body>, Response = http::Response<B>, Error = BoxError> + Send + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let layers = ServiceBuilder::new()
            .layer(Fence::new(self.leadership.clone()))
            .layer(CountRequests::new(HOST_LABEL, &self.metrics))
            .layer(EndRequests)
            .into_inner();
        builder.with_layer(&layers).build()
    }
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Clients").finish_non_exhaustive()
    }
}

/// Nothing answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no answer within {} s", REQUEST_TIMEOUT.as_secs())]
pub struct NoAnswer;

/// Ends every request whose answer is not there in time, body included. A watch is to be long: the connection's own read
/// timeout ends a silent one.
#[derive(Clone, Copy, Debug)]
struct EndRequests;

impl<S> Layer<S> for EndRequests {
    type Service = Ended<S>;

    fn layer(&self, service: S) -> Self::Service {
        Ended { service }
    }
}

#[derive(Clone)]
struct Ended<S> {
    service: S,
}

fn is_watch(request: &http::Request<Body>) -> bool {
    let asks = |parameter: &str| {
        parameter
            .split_once('=')
            .is_some_and(|(name, value)| name == "watch" && matches!(value, "true" | "1"))
    };
    request
        .uri()
        .query()
        .is_some_and(|query| query.split('&').any(asks))
}

impl<S, B> Service<http::Request<Body>> for Ended<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = http::Response<Either<B, Full<Bytes>>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let watch = is_watch(&request);
        let answer = self.service.call(request);
        if watch {
            return Box::pin(async move { Ok(answer.await?.map(Either::Left)) });
        }
        let timely = async move {
            let answer = answer.await?;
            if answer.status() == http::StatusCode::SWITCHING_PROTOCOLS {
                return Ok(answer.map(Either::Left));
            }
            let (parts, body) = answer.into_parts();
            let whole = body.collect().await.map_err(Into::into)?.to_bytes();
            Ok(http::Response::from_parts(parts, Either::Right(Full::new(whole))))
        };
        Box::pin(async move {
            tokio::time::timeout(REQUEST_TIMEOUT, timely)
                .await
                .unwrap_or_else(|_| Err(NoAnswer.into()))
        })
    }
}
