//! Requests and responses as plain values, so that the simulated Azure can be asked with and without sockets.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;

/// One HTTP request as the simulator sees it: the host decides between ARM, Entra ID and the metadata service.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    /// Host name without port, in lower case.
    pub host: String,
    /// Host name with the port when there is one: what links in answers are built with.
    pub authority: String,
    pub path: String,
    /// Query string without `?`, exactly as sent.
    pub query: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Request {
    /// A request for an absolute URL. A URL that cannot be read is asked for as a path of ARM's own host, which
    /// answers it with a refusal.
    pub fn new(method: Method, address: &str) -> Self {
        let (host, authority, path, query) = if let Ok(url) = url::Url::parse(address) {
            (
                url.host_str().unwrap_or_default().to_ascii_lowercase(),
                url.authority().to_ascii_lowercase(),
                url.path().to_owned(),
                url.query().unwrap_or_default().to_owned(),
            )
        } else {
            let (path, query) = address.split_once('?').unwrap_or((address, ""));
            (
                "management.azure.com".to_owned(),
                "management.azure.com".to_owned(),
                path.to_owned(),
                query.to_owned(),
            )
        };
        Self {
            method,
            host,
            authority,
            path,
            query,
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(HeaderName::from_static(name), value);
        }
        self
    }

    #[must_use]
    pub fn json(mut self, body: &Value) -> Self {
        self.body = Bytes::from(body.to_string());
        self.header("content-type", "application/json")
    }

    #[must_use]
    pub fn form(mut self, fields: &[(&str, &str)]) -> Self {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(fields);
        self.body = Bytes::from(form.finish());
        self.header("content-type", "application/x-www-form-urlencoded")
    }

    /// The first value of a query parameter; names are compared without case, as ARM does.
    pub fn parameter(&self, name: &str) -> Option<String> {
        url::form_urlencoded::parse(self.query.as_bytes())
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.into_owned())
    }

    pub fn header_text(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn body_json(&self) -> Result<Value, serde_json::Error> {
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body)
    }
}

/// What goes back over the wire, and how.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub delivery: Delivery,
}

/// How a response reaches the caller: late, or not at all although the work was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    pub delay: Duration,
    pub dropped: bool,
}

impl Response {
    pub fn empty(status: u16) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            delivery: Delivery::default(),
        }
    }

    pub fn json(status: u16, body: &Value) -> Self {
        let mut response = Self::empty(status);
        response.body = Bytes::from(body.to_string());
        response.with("content-type", "application/json; charset=utf-8")
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(HeaderName::from_static(name), value);
        }
        self
    }

    pub fn header_text(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The body as JSON; `null` when it is empty or not JSON.
    pub fn body_json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}
