//! The simulated Azure in this process, behind the transport that the Azure engine talks through. [`World`] is where the
//! controllers of an Azure provider live, [`Life`] what surrounds them in the sweep.

mod life;
mod world;

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use azure_core::http::{
    AsyncRawResponse, Body, HttpClient, Request, Transport,
    headers::{HeaderName, HeaderValue, Headers},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use http::Method;
use serde_json::{Value, json};
use slipway_apiserver_sim::faults::{Fate, Faults};
use slipway_azure_sim::{Azure, Settings, Simulator, Speed, State};
use slipway_runtime::Clock;

pub use life::{AzureProvider, Life, Sender, THEIRS};
pub use world::{Controllers, NAMESPACE, World, api, apply, merge, remove};

pub const SUBSCRIPTION: &str = "00000000-0000-0000-0000-00000000000a";
pub const TENANT: &str = "11111111-1111-1111-1111-111111111111";
pub const CLIENT: &str = "22222222-2222-2222-2222-222222222222";

/// Azure as it was recorded, only faster.
pub fn quick() -> Settings {
    Settings {
        speed: Speed::Times(20.0),
        require_token: false,
        ..Settings::default()
    }
}

/// A state whose directory already has its signing key: making one takes longer than a cluster's whole life.
fn signed() -> State {
    static STATE: LazyLock<State> = LazyLock::new(|| {
        let simulator = Simulator::new(Settings::default());
        let address = format!("https://login.microsoftonline.com/{TENANT}/oauth2/v2.0/token");
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", CLIENT),
            ("client_secret", "right"),
            ("scope", "https://management.azure.com/.default"),
        ];
        let request = slipway_azure_sim::Request::new(Method::POST, &address).form(&form);
        assert_eq!(simulator.handle(&request).status, 200);
        let azure = simulator.azure();
        State {
            directory: azure.state().directory.clone(),
            ..State::default()
        }
    });
    STATE.clone()
}

/// An Azure with nothing in it.
pub fn simulator(settings: Settings, clock: Clock) -> Arc<Simulator> {
    resumed(settings, clock, signed())
}

/// One that goes on from a state.
pub fn resumed(settings: Settings, clock: Clock, state: State) -> Arc<Simulator> {
    let azure = Azure::with_state(settings, state);
    Arc::new(Simulator::around(azure, move || clock.now()))
}

/// Asks a simulator that wants no token, as somebody else would.
pub fn ask(simulator: &Simulator, method: Method, path: &str, body: Option<&Value>) -> Value {
    let address =
        format!("https://management.azure.com/subscriptions/{SUBSCRIPTION}{path}?api-version=2024-09-01");
    let mut request = slipway_azure_sim::Request::new(method, &address);
    if let Some(body) = body {
        request = request.json(body);
    }
    let answer = simulator.handle(&request);
    assert!(
        answer.is_success(),
        "{path}: {} {}",
        answer.status,
        answer.body_json()
    );
    answer.body_json()
}

/// Ids of everything in a resource group, in lower case.
pub fn in_azure(simulator: &Simulator) -> Vec<String> {
    simulator
        .azure()
        .state()
        .resources
        .iter()
        .map(|resource| resource.id.to_ascii_lowercase())
        .filter(|id| id.contains("/resourcegroups/"))
        .collect()
}

/// Told of every request that Azure has answered.
pub type Guard = Arc<dyn Fn(&slipway_azure_sim::Request) + Send + Sync>;

/// Who sent a request: the client id in its token.
pub fn sender(request: &slipway_azure_sim::Request) -> Option<String> {
    let token = request.headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    Some(claims["appid"].as_str()?.to_owned())
}

/// The engine's transport, answered by the simulator in this process.
pub fn transport(simulator: &Arc<Simulator>) -> Transport {
    faulty_transport(simulator, &Faults::none(), Arc::new(|_| ()))
}

/// The same, where each call may meet a fault, with somebody who is told of every request.
pub fn faulty_transport(simulator: &Arc<Simulator>, faults: &Faults, guard: Guard) -> Transport {
    Transport::new(Arc::new(Wire {
        simulator: Arc::clone(simulator),
        faults: faults.clone(),
        guard,
    }))
}

struct Wire {
    simulator: Arc<Simulator>,
    faults: Faults,
    guard: Guard,
}

impl fmt::Debug for Wire {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Wire")
    }
}

fn broken() -> azure_core::Error {
    azure_core::Error::with_message(azure_core::error::ErrorKind::Io, "the connection broke")
}

impl Wire {
    async fn answer(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
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
        (self.guard)(&asked);
        if !answer.delivery.delay.is_zero() {
            tokio::time::sleep(answer.delivery.delay).await;
        }
        if answer.delivery.dropped {
            return Err(broken());
        }
        let mut headers = Headers::new();
        for (name, value) in &answer.headers {
            headers.insert(
                HeaderName::from(name.as_str().to_owned()),
                HeaderValue::from(value.to_str().expect("text").to_owned()),
            );
        }
        Ok(AsyncRawResponse::from_bytes(
            answer.status.into(),
            headers,
            answer.body,
        ))
    }
}

#[async_trait::async_trait]
impl HttpClient for Wire {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        let writes = !matches!(request.method(), azure_core::http::Method::Get);
        // The opaque part of an operation's address differs from run to run.
        let line = format!("{} {}", request.method(), request.url().path());
        match self.faults.external(&line, writes).await {
            Fate::Pass => self.answer(request).await,
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
                let _ = self.answer(request).await;
                Err(broken())
            }
            Fate::Hang => std::future::pending().await,
            Fate::HangAnswer => {
                let _ = self.answer(request).await;
                tokio::time::sleep(Duration::from_mins(1)).await;
                Err(broken())
            }
        }
    }
}
