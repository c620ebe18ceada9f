//! The way from the engine to the simulated Azure, in this process.

use std::{fmt, sync::Arc, time::Duration};

use azure_core::http::{
    AsyncRawResponse, Body, HttpClient, Request,
    headers::{HeaderName, HeaderValue, Headers},
};
use serde_json::json;
use slipway_apiserver_sim::faults::{Fate, Faults};
use slipway_azure_sim::Simulator;

/// The engine's transport, answered by the simulator in this process; each call may meet a fault.
pub struct Wire {
    pub simulator: Arc<Simulator>,
    pub faults: Faults,
    pub guard: Guard,
}

/// Told method and path of every request that Azure has answered.
pub type Guard = Arc<dyn Fn(&str, &str) + Send + Sync>;

impl fmt::Debug for Wire {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Wire")
    }
}

fn broken() -> azure_core::Error {
    azure_core::Error::with_message(azure_core::error::ErrorKind::Io, "the connection broke")
}

impl Wire {
    fn answer(&self, request: &Request) -> AsyncRawResponse {
        let method = request.method().to_string().parse().expect("a method");
        let mut asked = slipway_azure_sim::Request::new(method, request.url().as_str());
        for (name, value) in request.headers().iter() {
            asked.headers.insert(
                name.as_str().parse::<http::HeaderName>().expect("a header"),
                value.as_str().parse().expect("a value"),
            );
        }
        if let Body::Bytes(bytes) = request.body() {
            asked.body = bytes.clone();
        }
        let answer = self.simulator.handle(&asked);
        (self.guard)(request.method().as_ref(), request.url().path());
        let mut headers = Headers::new();
        for (name, value) in &answer.headers {
            headers.insert(
                HeaderName::from(name.as_str().to_owned()),
                HeaderValue::from(value.to_str().expect("text").to_owned()),
            );
        }
        AsyncRawResponse::from_bytes(answer.status.into(), headers, answer.body)
    }
}

#[async_trait::async_trait]
impl HttpClient for Wire {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let writes = !matches!(request.method(), azure_core::http::Method::Get);
        // The opaque part of an operation's address differs from run to run.
        let line = format!("{} {}", request.method(), request.url().path());
        match self.faults.external(&line, writes).await {
            Fate::Pass => Ok(self.answer(request)),
            Fate::Refuse(failure) => {
                let mut headers = Headers::new();
                headers.insert("retry-after", HeaderValue::from("7"));
                let body = json!({"error": {"code": failure.reason, "message": failure.message}});
                Ok(AsyncRawResponse::from_bytes(
                    failure.code.as_u16().into(),
                    headers,
                    body.to_string(),
                ))
            }
            Fate::Lose => Err(broken()),
            Fate::LoseAnswer => {
                self.answer(request);
                Err(broken())
            }
            Fate::Hang => std::future::pending().await,
            Fate::HangAnswer => {
                self.answer(request);
                tokio::time::sleep(Duration::from_mins(1)).await;
                Err(broken())
            }
        }
    }
}
