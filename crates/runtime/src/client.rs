//! The connection to a cluster: counted, and without retries of its own, because the queue decides when
//! something is tried again.

use std::{sync::Arc, task::Poll, time::Duration};

use futures::future::BoxFuture;
use kube::{Client, Config, client::ClientBuilder};
use tower::{Layer, Service};

use crate::{Metrics, metrics::RequestLabels};

/// A connection on which nothing arrives for this long is dead: a watch gets a bookmark every minute, and its
/// server ends it after 290 seconds.
const READ_TIMEOUT: Duration = Duration::from_mins(5);

/// A client that counts its requests (`rest_client_requests_total`) and does not retry.
pub fn instrumented_client(mut config: Config, metrics: &Metrics) -> Result<Client, kube::Error> {
    let host = config
        .cluster_url
        .authority()
        .map(ToString::to_string)
        .unwrap_or_default();
    end_silence(&mut config);
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&CountRequests::new(host, metrics)).build())
}

/// No retries by the client itself, and an end to every connection on which nothing arrives.
pub(crate) fn end_silence(config: &mut Config) {
    config.default_retry = false;
    config.read_timeout = config.read_timeout.or(Some(READ_TIMEOUT));
}

/// Counts the answers of a service by status, method and host.
#[derive(Clone)]
pub struct CountRequests {
    host: Arc<str>,
    metrics: Metrics,
}

impl CountRequests {
    pub fn new(host: impl Into<Arc<str>>, metrics: &Metrics) -> Self {
        Self {
            host: host.into(),
            metrics: metrics.clone(),
        }
    }

    fn count(&self, method: String, code: String) {
        let labels = RequestLabels {
            code,
            method,
            host: self.host.to_string(),
        };
        self.metrics.client_requests.get_or_create(&labels).inc();
    }
}

impl<S> Layer<S> for CountRequests {
    type Service = Counted<S>;

    fn layer(&self, service: S) -> Self::Service {
        Counted {
            service,
            counter: self.clone(),
        }
    }
}

/// A service whose answers are counted.
#[derive(Clone)]
pub struct Counted<S> {
    service: S,
    counter: CountRequests,
}

impl<S, A, B> Service<http::Request<A>> for Counted<S>
where
    S: Service<http::Request<A>, Response = http::Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<A>) -> Self::Future {
        let method = request.method().to_string();
        let counter = self.counter.clone();
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = match &answer {
                Ok(response) => response.status().as_u16().to_string(),
                // What client-go writes when there was no answer.
                Err(_) => "<error>".to_owned(),
            };
            counter.count(method, code);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::client::Body;
    use tower::ServiceExt;

    #[tokio::test]
    async fn answers_and_failures_are_counted() {
        let metrics = Metrics::new();
        let service = tower::service_fn(|request: http::Request<Body>| async move {
            if request.uri().path() == "/broken" {
                Err("connection refused")
            } else {
                Ok(http::Response::builder().status(404).body(Body::empty()).unwrap())
            }
        });
        let mut counted = CountRequests::new("fleet:6443", &metrics).layer(service);
        for path in ["/apis", "/apis", "/broken"] {
            let request = http::Request::get(path).body(Body::empty()).unwrap();
            let _ = counted.ready().await.unwrap().call(request).await;
        }
        let text = metrics.encode();
        for line in [
            r#"rest_client_requests_total{code="404",method="GET",host="fleet:6443"} 2"#,
            r#"rest_client_requests_total{code="<error>",method="GET",host="fleet:6443"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }

    #[tokio::test]
    async fn the_client_does_not_retry_by_itself() {
        let metrics = Metrics::new();
        let mut config = Config::new("http://127.0.0.1:1".parse().unwrap());
        config.default_retry = true;
        let client = instrumented_client(config, &metrics).unwrap();
        client.apiserver_version().await.unwrap_err();
        let text = metrics.encode();
        let line = r#"rest_client_requests_total{code="<error>",method="GET",host="127.0.0.1:1"} 1"#;
        assert!(text.contains(line), "{text}");
    }
}
