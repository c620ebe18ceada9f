//! The client's own rate limit (`--kube-api-qps`, `--kube-api-burst`): a token bucket in front of the apiserver.

use std::{sync::Arc, task::Poll, time::Duration};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service};

use crate::queue::Rate;

/// Lets requests through at a rate. Clones share it.
#[derive(Clone, Debug)]
pub struct Throttle {
    bucket: Arc<Mutex<Bucket>>,
}

/// Tokens may go below zero: those are requests that wait already, in order.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    tokens: f64,
    filled: Instant,
}

impl Throttle {
    /// Nothing is held back if the rate is not positive, as with client-go.
    pub fn new(rate: Rate) -> Self {
        Self {
            bucket: Arc::new(Mutex::new(Bucket {
                tokens: f64::from(rate.burst.max(1)),
                rate,
                filled: Instant::now(),
            })),
        }
    }

    /// Takes a token, and says how long to wait for it.
    fn take(&self) -> Duration {
        let mut bucket = self.bucket.lock();
        if bucket.rate.per_second <= 0.0 {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let gained = now.duration_since(bucket.filled).as_secs_f64() * bucket.rate.per_second;
        bucket.filled = now;
        bucket.tokens = (bucket.tokens + gained).min(f64::from(bucket.rate.burst.max(1))) - 1.0;
        if bucket.tokens >= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(-bucket.tokens / bucket.rate.per_second)
        }
    }
}

impl<S> Layer<S> for Throttle {
    type Service = Throttled<S>;

    fn layer(&self, service: S) -> Self::Service {
        Throttled {
            service,
            throttle: self.clone(),
        }
    }
}

#[derive(Clone)]
pub struct Throttled<S> {
    service: S,
    throttle: Throttle,
}

impl<S, A> Service<http::Request<A>> for Throttled<S>
where
    S: Service<http::Request<A>>,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<A>) -> Self::Future {
        let wait = self.throttle.take();
        // The request is sent when its future is first polled, so after the wait.
        let answer = self.service.call(request);
        Box::pin(async move {
            if !wait.is_zero() {
                sleep(wait).await;
            }
            answer.await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::ServiceExt;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_the_rest_goes_at_the_rate() {
        let throttle = Throttle::new(Rate {
            per_second: 10.0,
            burst: 5,
        });
        let service = tower::service_fn(|_request: http::Request<()>| async { Ok::<_, ()>(Instant::now()) });
        let mut throttled = throttle.layer(service);
        let started = Instant::now();
        let mut answers = Vec::new();
        for _ in 0..25 {
            answers.push(throttled.ready().await.unwrap().call(http::Request::new(())));
        }
        let answered = futures::future::join_all(answers).await;
        let after: Vec<u128> = answered
            .into_iter()
            .map(|at| (at.unwrap() - started).as_millis())
            .collect();
        assert_eq!(after[..5], [0; 5]);
        // Twenty more at ten a second.
        assert!(
            (100..=102).contains(&after[5]) && (2000..=2002).contains(&after[24]),
            "{after:?}"
        );
    }
}
