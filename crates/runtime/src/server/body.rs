//! Reading request bodies: bounded, and refused with a reason.

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use super::{Answer, text};

/// Reads a body up to `limit` bytes.
pub async fn read<B>(body: B, limit: usize) -> Result<Bytes, Answer>
where
    B: hyper::body::Body<Data = Bytes> + Send,
    B::Error: std::fmt::Display,
{
    // `Limited` wants an error it can box; a body's own error is only shown.
    let body = body.map_err(|error| std::io::Error::other(error.to_string()));
    match Limited::new(Box::pin(body), limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(text(
            StatusCode::PAYLOAD_TOO_LARGE,
            &format!("the request is larger than {limit} bytes"),
        )),
        Err(error) => Err(text(
            StatusCode::BAD_REQUEST,
            &format!("the request ended early: {error}"),
        )),
    }
}

/// Reads a JSON object.
pub fn object(bytes: &[u8]) -> Result<Value, String> {
    if bytes.is_empty() {
        return Err("the body is empty".to_owned());
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| format!("not JSON: {error}"))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err("not a JSON object".to_owned())
    }
}
