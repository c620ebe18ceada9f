//! The connection to Azure: an `azure_core` HTTP client over reqwest that trusts a cloud's own certificate
//! authorities, honours the proxy environment, follows no redirect and sets bounded timeouts.

use std::{sync::Arc, time::Duration};

use azure_core::{
    Error, Result,
    error::ErrorKind,
    http::{
        AsyncRawResponse, Body, HttpClient, Method, Request, Transport,
        headers::{HeaderName, HeaderValue, Headers},
    },
};

use crate::cloud::Cloud;

#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("the certificate authorities of the Azure cloud are not a PEM bundle: {0}")]
    BadCertificateAuthorities(#[source] reqwest::Error),
    #[error("setting up the HTTPS client for Azure: {0}")]
    Setup(#[source] reqwest::Error),
}

/// A transport for one cloud; `timeout` bounds each call as a whole.
pub fn connect(cloud: &Cloud, timeout: Duration) -> std::result::Result<Transport, TransportError> {
    // Only the first provider installed in a process counts; a second attempt is refused and changes nothing.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .connect_timeout(timeout.min(Duration::from_secs(20)))
        .timeout(timeout)
        .redirect(reqwest::redirect::Policy::none());
    if !cloud.certificate_authorities().is_empty() {
        let authorities = reqwest::Certificate::from_pem_bundle(cloud.certificate_authorities())
            .map_err(TransportError::BadCertificateAuthorities)?;
        builder = builder.tls_certs_merge(authorities);
    }
    let client = builder.build().map_err(TransportError::Setup)?;
    Ok(Transport::new(Arc::new(Https(client))))
}

#[derive(Debug)]
struct Https(reqwest::Client);

#[async_trait::async_trait]
impl HttpClient for Https {
    async fn execute_request(&self, request: &Request) -> Result<AsyncRawResponse> {
        let method = match request.method() {
            Method::Delete => reqwest::Method::DELETE,
            Method::Get => reqwest::Method::GET,
            Method::Head => reqwest::Method::HEAD,
            Method::Patch => reqwest::Method::PATCH,
            Method::Post => reqwest::Method::POST,
            Method::Put => reqwest::Method::PUT,
            other => {
                return Err(Error::with_message(
                    ErrorKind::Other,
                    format!("the method {other} is not used with Azure"),
                ));
            }
        };
        let mut outgoing = self.0.request(method, request.url().clone());
        for (name, value) in request.headers().iter() {
            outgoing = outgoing.header(name.as_str(), value.as_str());
        }
        if let Body::Bytes(bytes) = request.body() {
            outgoing = outgoing.body(bytes.clone());
        }
        // reqwest's error texts repeat the URL, whose query may hold an operation's opaque token.
        let failed = |error: reqwest::Error| {
            let kind = if error.is_connect() {
                ErrorKind::Connection
            } else {
                ErrorKind::Io
            };
            let message = describe(&error);
            Error::with_error(kind, error.without_url(), message)
        };
        let answer = outgoing.send().await.map_err(failed)?;
        let status = answer.status().as_u16().into();
        let mut headers = Headers::new();
        for (name, value) in answer.headers() {
            if let Ok(value) = value.to_str() {
                headers.insert(
                    HeaderName::from(name.as_str().to_owned()),
                    HeaderValue::from(value.to_owned()),
                );
            }
        }
        let body = answer.bytes().await.map_err(failed)?;
        Ok(AsyncRawResponse::from_bytes(status, headers, body))
    }
}

/// What went wrong, without addresses that change from call to call.
fn describe(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        "the call timed out".to_owned()
    } else if error.is_connect() {
        "the connection could not be made".to_owned()
    } else {
        "the connection broke".to_owned()
    }
}
