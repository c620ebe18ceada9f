//! Refusals, in the words and codes of the real apiserver.

use http::StatusCode;
use serde_json::{Value, json};

/// A refused request: becomes a `Status` object.
#[derive(Clone, Debug)]
pub struct Failure {
    pub code: StatusCode,
    pub reason: &'static str,
    pub message: String,
    pub details: Value,
}

pub type Answer<T> = Result<T, Failure>;

impl Failure {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Value::Null,
        }
    }

    pub fn not_found(resource: &str, name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{resource} {name:?} not found"),
        )
    }

    /// A path nobody serves is answered in plain text, not with a Status.
    pub fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "", "404 page not found\n")
    }

    pub fn already_exists(resource: &str, name: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "AlreadyExists",
            format!("{resource} {name:?} already exists"),
        )
    }

    pub fn conflict(resource: &str, name: &str, why: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "Conflict",
            format!("Operation cannot be fulfilled on {resource} {name:?}: {why}"),
        )
    }

    /// A server-side apply that would take fields from other managers.
    pub fn apply_conflict(messages: &[String]) -> Self {
        let plural = if messages.len() == 1 { "" } else { "s" };
        Self::new(
            StatusCode::CONFLICT,
            "Conflict",
            format!(
                "Apply failed with {} conflict{plural}: {}",
                messages.len(),
                messages.join("; ")
            ),
        )
    }

    pub fn stale() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "Conflict",
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn invalid(kind: &str, group: &str, name: &str, errors: &[String]) -> Self {
        let qualified = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        };
        let list = if let [one] = errors {
            one.clone()
        } else {
            format!("[{}]", errors.join(", "))
        };
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{qualified} {name:?} is invalid: {list}"),
        )
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        )
    }

    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    pub fn expired(version: u64, floor: u64) -> Self {
        Self::new(
            StatusCode::GONE,
            "Expired",
            format!("too old resource version: {version} ({floor})"),
        )
    }

    pub fn too_many_requests(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}
