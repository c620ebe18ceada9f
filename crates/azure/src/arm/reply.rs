//! What came back from one call, and what it means for the one who asked.

use std::{fmt, time::Duration};

use azure_core::http::headers::{HeaderName, Headers};
use jiff::Timestamp;
use serde_json::Value;

use super::{error::ErrorResponse, operation::Operation};

/// One answer as it came: status, headers and body.
pub struct Reply {
    pub status: u16,
    headers: Headers,
    pub retry_after: Option<Duration>,
    pub body: Value,
    raw: Vec<u8>,
}

impl Reply {
    pub(crate) fn new(status: u16, headers: Headers, raw: Vec<u8>, now: Timestamp) -> Self {
        let body = serde_json::from_slice(&raw).unwrap_or(Value::Null);
        let retry_after = retry_after(&headers, now);
        Self {
            status,
            headers,
            retry_after,
            body,
            raw,
        }
    }

    /// A header by its lower-case name.
    pub fn header(&self, name: &'static str) -> Option<&str> {
        self.headers.get_optional_str(&HeaderName::from(name))
    }

    pub(crate) fn headers(&self) -> &Headers {
        &self.headers
    }

    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether a success came with a body that is not JSON.
    pub(crate) fn unreadable(&self) -> bool {
        self.succeeded()
            && self.body.is_null()
            && !self.raw.trim_ascii().is_empty()
            && self.raw.trim_ascii() != b"null"
    }

    pub fn refusal(&self) -> ErrorResponse {
        ErrorResponse::read(self.status, self.retry_after, &self.raw)
    }

    pub fn etag(&self) -> Option<&str> {
        ["/etag", "/eTag", "/properties/eTag"]
            .iter()
            .find_map(|pointer| self.body.pointer(pointer).and_then(Value::as_str))
            .or_else(|| self.header("etag"))
    }

    #[cfg(test)]
    pub(crate) fn for_test(status: u16, headers: &[(&'static str, &str)], body: impl Into<Value>) -> Self {
        let body = body.into();
        let mut map = Headers::new();
        for (name, value) in headers {
            map.insert(
                *name,
                azure_core::http::headers::HeaderValue::from((*value).to_owned()),
            );
        }
        let raw = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        Self::new(status, map, raw, Timestamp::UNIX_EPOCH)
    }
}

impl fmt::Debug for Reply {
    /// A body may hold a kubeconfig: it is never printed.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Reply")
            .field("status", &self.status)
            .field("retry_after", &self.retry_after)
            .finish_non_exhaustive()
    }
}

/// `Retry-After` in seconds or as a date, and the finer `retry-after-ms` forms.
fn retry_after(headers: &Headers, now: Timestamp) -> Option<Duration> {
    for name in ["x-ms-retry-after-ms", "retry-after-ms"] {
        if let Some(milliseconds) = headers
            .get_optional_str(&HeaderName::from(name))
            .and_then(|text| text.trim().parse().ok())
        {
            return Some(Duration::from_millis(milliseconds));
        }
    }
    let text = headers.get_optional_str(&HeaderName::from("retry-after"))?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::from_secs(
        u64::try_from(at.as_second() - now.as_second()).unwrap_or(0),
    ))
}

/// What a call came to. Waiting is an answer, never an error.
#[derive(Debug)]
pub enum Answer {
    /// The resource as Azure now shows it; nothing is under way.
    Done(Value),
    /// Accepted and under way.
    Accepted {
        operation: Operation,
        body: Value,
        after: Duration,
    },
    NotFound,
    /// Another operation holds the resource.
    Busy {
        message: String,
        after: Duration,
    },
    /// A rate limit refused it.
    Throttled(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn retry_after_is_read_in_every_form() {
        let at = |name, value: &str| Reply::for_test(429, &[(name, value)], Value::Null).retry_after;
        assert_eq!(at("retry-after", "17"), Some(Duration::from_secs(17)));
        assert_eq!(
            at("retry-after", "Thu, 01 Jan 1970 00:01:30 GMT"),
            Some(Duration::from_secs(90))
        );
        assert_eq!(
            at("x-ms-retry-after-ms", "1500"),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(at("retry-after", "soon"), None);
    }

    #[test]
    fn an_etag_is_found_where_each_provider_puts_it() {
        let of = |body| {
            Reply::for_test(200, &[("etag", "header")], body)
                .etag()
                .map(str::to_owned)
        };
        assert_eq!(of(json!({"etag": "W/\"1\""})).as_deref(), Some("W/\"1\""));
        assert_eq!(of(json!({"eTag": "aks"})).as_deref(), Some("aks"));
        assert_eq!(
            of(json!({"properties": {"eTag": "pool"}})).as_deref(),
            Some("pool")
        );
        assert_eq!(of(json!({})).as_deref(), Some("header"));
    }
}
