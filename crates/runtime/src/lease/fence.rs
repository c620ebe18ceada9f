//! Keeps a process that no longer leads from writing: the client of the controllers refuses every request but
//! reads once its leadership may be stale. A process that was stopped for a minute wakes up in the middle of a
//! reconcile; its next write meets this.

use std::task::Poll;

use futures::future::{BoxFuture, Either, Ready, ready};
use http::Method;
use tower::{BoxError, Layer, Service};

use super::Leadership;

/// A write was refused because this process does not lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process does not lead any more, so it does not write")]
pub struct NotLeading;

/// Refuses writes of a process that does not lead.
#[derive(Clone, Debug)]
pub struct Fence {
    leadership: Leadership,
}

impl Fence {
    pub fn new(leadership: Leadership) -> Self {
        Self { leadership }
    }
}

impl<S> Layer<S> for Fence {
    type Service = Fenced<S>;

    fn layer(&self, service: S) -> Self::Service {
        Fenced {
            service,
            leadership: self.leadership.clone(),
        }
    }
}

#[derive(Clone)]
pub struct Fenced<S> {
    service: S,
    leadership: Leadership,
}

impl<S, A, B> Service<http::Request<A>> for Fenced<S>
where
    S: Service<http::Request<A>, Response = B, Error = BoxError>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = B;
    type Error = BoxError;
    type Future = Either<Ready<Result<B, BoxError>>, BoxFuture<'static, Result<B, BoxError>>>;

    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<A>) -> Self::Future {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if !reads && !self.leadership.is_leading() {
            return Either::Left(ready(Err(NotLeading.into())));
        }
        Either::Right(Box::pin(self.service.call(request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::{sync::watch, time::Instant};
    use tower::ServiceExt;

    #[tokio::test(start_paused = true)]
    async fn writes_end_with_leadership_and_reads_do_not() {
        let until = watch::channel(Some(Instant::now() + Duration::from_secs(10))).1;
        let service = tower::service_fn(|_request: http::Request<()>| async { Ok::<_, BoxError>("done") });
        let mut fenced = Fence::new(Leadership { until }).layer(service);
        let mut send = async |method: Method| {
            let request = http::Request::builder().method(method).body(()).unwrap();
            fenced.ready().await.unwrap().call(request).await
        };
        assert_eq!(send(Method::PATCH).await.unwrap(), "done");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(send(Method::PATCH).await.unwrap_err().is::<NotLeading>());
        assert!(send(Method::DELETE).await.unwrap_err().is::<NotLeading>());
        assert_eq!(send(Method::GET).await.unwrap(), "done");
    }
}
