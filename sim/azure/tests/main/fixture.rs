//! A simulated Azure on a held clock, and short ways to ask it.

use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use slipway_azure_sim::{Azure, Request, Response, Settings};

pub const SUBSCRIPTION: &str = "/subscriptions/00000000-0000-0000-0000-00000000000a";
pub const API: &str = "2025-08-01";

pub struct Fixture {
    pub azure: Azure,
    pub now: Timestamp,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(Settings {
            require_token: false,
            ..Settings::default()
        })
    }

    pub fn with(settings: Settings) -> Self {
        Self {
            azure: Azure::new(settings),
            now: "2026-01-05T10:00:00Z".parse().expect("a time"),
        }
    }

    /// With a resource group `rg` in place.
    pub fn with_group() -> Self {
        let mut fixture = Self::new();
        fixture.put("/resourceGroups/rg", &json!({"location": "westus3"}));
        fixture
    }

    pub fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
        self.azure.settle(self.now);
    }

    pub fn send(&mut self, request: &Request) -> Response {
        self.azure.handle(request, self.now)
    }

    pub fn ask(&mut self, method: Method, path: &str) -> Response {
        let request = request(method, path);
        self.send(&request)
    }

    pub fn get(&mut self, path: &str) -> Response {
        self.ask(Method::GET, path)
    }

    pub fn delete(&mut self, path: &str) -> Response {
        self.ask(Method::DELETE, path)
    }

    pub fn put(&mut self, path: &str, body: &Value) -> Response {
        let request = request(Method::PUT, path).json(body);
        self.send(&request)
    }

    pub fn post(&mut self, path: &str) -> Response {
        self.ask(Method::POST, path)
    }

    /// Polls an operation link as it was given.
    pub fn follow(&mut self, link: &str) -> Response {
        self.send(&Request::new(Method::GET, link))
    }

    /// A cluster with one system pool `p1` of two nodes, ready.
    pub fn cluster(&mut self, name: &str) -> String {
        let path = format!("/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/{name}");
        let response = self.put(&path, &cluster_body());
        assert_eq!(response.status, 201, "{:?}", response.body_json());
        self.pass(600);
        assert_eq!(self.state_of(&path), "Succeeded");
        path
    }

    pub fn state_of(&mut self, path: &str) -> String {
        self.get(path).body_json()["properties"]["provisioningState"]
            .as_str()
            .unwrap_or("<none>")
            .to_owned()
    }
}

pub fn request(method: Method, path: &str) -> Request {
    let joint = if path.contains('?') { '&' } else { '?' };
    Request::new(
        method,
        &format!("https://management.azure.com{SUBSCRIPTION}{path}{joint}api-version={API}"),
    )
}

pub fn cluster_body() -> Value {
    json!({
        "location": "westus3",
        "identity": {"type": "SystemAssigned"},
        "properties": {
            "dnsPrefix": "one",
            "kubernetesVersion": "1.33",
            "agentPoolProfiles": [{"name": "p1", "count": 2, "vmSize": "Standard_DS2_v2", "mode": "System"}],
        },
    })
}

pub fn pool_body(count: u64) -> Value {
    json!({"properties": {"count": count, "vmSize": "Standard_DS2_v2", "mode": "User"}})
}

/// `{"error": {"code"}}` or AKS's bare `{"code"}`.
pub fn code(response: &Response) -> String {
    let body = response.body_json();
    body["error"]["code"]
        .as_str()
        .or_else(|| body["code"].as_str())
        .unwrap_or("<none>")
        .to_owned()
}
