//! The call of a hook: HTTPS with the extension's certificate authority, no redirects, a bounded answer, and a
//! time-out that the extension is told.

use std::{collections::HashMap, fmt, pin::Pin, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use rustls::{
    ClientConfig as TlsConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use url::Url;

use super::{
    GROUP, HookError, Registration,
    types::{FAILURE, Request, Response, SUCCESS, envelope},
};
use crate::view::{ClientConfig, FailurePolicy};

const MAX_RESPONSE_BYTES: usize = 20 << 20;
const MAX_QUOTED_CHARACTERS: usize = 512;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The certificate by which extensions recognise us, in PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate: String,
    pub key: secrecy::SecretString,
}

impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// A way to extensions that a test holds: address and body in, the answer's body or what went wrong out.
pub type Transport =
    Arc<dyn Fn(Url, String) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>> + Send + Sync>;

/// Calls extensions. Connections are kept per certificate authority and identity.
#[derive(Clone, Default)]
pub struct HookClient {
    identity: Option<Identity>,
    connections: Arc<Mutex<HashMap<String, reqwest::Client>>>,
    transport: Option<Transport>,
}

impl fmt::Debug for HookClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HookClient").finish_non_exhaustive()
    }
}

impl HookClient {
    pub fn new(identity: Option<Identity>) -> Self {
        Self {
            identity,
            ..Self::default()
        }
    }

    /// One whose calls go through the given transport.
    pub fn through(transport: Transport) -> Self {
        Self {
            transport: Some(transport),
            ..Self::default()
        }
    }

    /// Calls a handler and returns its answer if it is a success. Under the failure policy `Ignore` a call that
    /// gives no answer at all is an empty success; an answer that says failure never is.
    pub async fn call<R: Request + Sync>(
        &self,
        registration: &Registration,
        request: &R,
    ) -> Result<R::Response, HookError> {
        let handler = registration.name.clone();
        let body = envelope(request, &registration.settings).map_err(|error| HookError::Call {
            handler: handler.clone(),
            problem: format!("the request cannot be written: {error}"),
        })?;
        let url = address(registration).map_err(|problem| HookError::Address {
            handler: handler.clone(),
            problem,
        })?;
        let answer = if let Some(transport) = &self.transport {
            within(registration.timeout, transport(url, body.to_string())).await
        } else {
            let client =
                self.connection(&registration.client_config)
                    .map_err(|problem| HookError::Address {
                        handler: handler.clone(),
                        problem,
                    })?;
            within(registration.timeout, send(&client, url, body.to_string())).await
        };
        let response: R::Response = match answer.and_then(|bytes| {
            serde_json::from_slice(&bytes)
                .map_err(|_| "http call failed: failed to decode response".to_owned())
        }) {
            Ok(response) => response,
            Err(problem) if registration.failure_policy == FailurePolicy::Ignore => {
                tracing::warn!(%handler, %problem, "ignoring a failed call, as the handler's failurePolicy asks");
                return Ok(R::Response::ignored());
            }
            Err(problem) => return Err(HookError::Call { handler, problem }),
        };
        match response.status() {
            SUCCESS => Ok(response),
            FAILURE => Err(HookError::Failure {
                handler,
                message: response.message().to_owned(),
            }),
            other => Err(HookError::UnknownStatus {
                handler,
                status: other.to_owned(),
                message: response.message().to_owned(),
            }),
        }
    }

    fn connection(&self, config: &ClientConfig) -> Result<reqwest::Client, String> {
        let bundle = config.ca_bundle.clone().unwrap_or_default();
        if let Some(client) = self.connections.lock().get(&bundle) {
            return Ok(client.clone());
        }
        let client = connect(&bundle, self.identity.as_ref())?;
        let mut connections = self.connections.lock();
        // Authorities are rotated; what is not used any more must not stay for ever.
        if connections.len() >= 64 {
            connections.clear();
        }
        connections.insert(bundle, client.clone());
        Ok(client)
    }
}

/// Bounds the whole call, reading of the answer included.
async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::time::timeout(limit, call)
        .await
        .unwrap_or_else(|_| Err("http call failed: http request timeout expired".to_owned()))
}

async fn send(client: &reqwest::Client, url: Url, body: String) -> Result<Vec<u8>, String> {
    let mut response = client
        .post(url)
        .header("Accept", "application/json")
        .header("Content-Type", "application/json")
        .body(body)
        .send()
        .await
        .map_err(|error| format!("http call failed: {}", cause(&error)))?;
    let status = response.status();
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| {
        format!(
            "http call failed: failed to read response body: {}",
            cause(&error)
        )
    })? {
        if bytes.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return Err(format!(
                "http call failed: the response is larger than {MAX_RESPONSE_BYTES} bytes"
            ));
        }
        bytes.extend_from_slice(&chunk);
    }
    if status != reqwest::StatusCode::OK {
        let text = String::from_utf8_lossy(&bytes);
        let quoted: String = text.chars().take(MAX_QUOTED_CHARACTERS).collect();
        let dots = if text.chars().count() > MAX_QUOTED_CHARACTERS {
            "..."
        } else {
            ""
        };
        return Err(format!(
            "http call failed: got response with status code {} != 200: response : {:?}",
            status.as_u16(),
            quoted + dots
        ));
    }
    Ok(bytes)
}

/// The innermost cause, without the URL: its query would make the same failure look different.
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn connect(bundle: &str, identity: Option<&Identity>) -> Result<reqwest::Client, String> {
    use secrecy::ExposeSecret;
    let pem = STANDARD
        .decode(bundle)
        .map_err(|_| "caBundle is not base64".to_owned())?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|_| "caBundle holds no PEM certificates".to_owned())?;
        roots
            .add(certificate)
            .map_err(|_| "caBundle holds a certificate that cannot be used".to_owned())?;
    }
    if roots.is_empty() {
        return Err("caBundle holds no PEM certificates".to_owned());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = TlsConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let tls = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes())
                .collect::<Result<Vec<_>, _>>()
                .map_err(|_| "the client certificate cannot be read".to_owned())?;
            let key = PrivateKeyDer::from_pem_slice(identity.key.expose_secret().as_bytes())
                .map_err(|_| "the client key cannot be read".to_owned())?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|_| "the client certificate does not match its key".to_owned())?
        }
    };
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        // Following a redirect would let an extension send our requests anywhere.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .https_only(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .build()
        .map_err(|error| cause(&error))
}

/// Where a handler is reached.
fn address(registration: &Registration) -> Result<Url, String> {
    let config = &registration.client_config;
    let mut url = match (&config.service, &config.url) {
        (Some(service), _) if !service.name.is_empty() => {
            let port = service.port.map(|port| format!(":{port}")).unwrap_or_default();
            let text = format!("https://{}.{}.svc{port}", service.name, service.namespace);
            let mut url = Url::parse(&text).map_err(|error| format!("failed to compute URL: {error}"))?;
            url.set_path(service.path.as_deref().unwrap_or_default());
            url
        }
        (_, Some(text)) if !text.is_empty() => {
            let url = Url::parse(text).map_err(|error| {
                format!("failed to compute URL: failed to parse url from clientConfig: {error}")
            })?;
            if url.scheme() != "https" {
                return Err(format!(
                    "failed to compute URL: expected https scheme, got {}",
                    url.scheme()
                ));
            }
            url
        }
        _ => {
            return Err(
                "failed to compute URL: at least one of service and url should be defined in config"
                    .to_owned(),
            );
        }
    };
    let path = format!(
        "{}/{GROUP}/{}/{}/{}",
        url.path().trim_end_matches('/'),
        registration.version,
        registration.hook.to_lowercase(),
        registration.handler().to_lowercase()
    );
    url.set_path(&path);
    url.query_pairs_mut()
        .append_pair("timeout", &format!("{}s", registration.timeout.as_secs()));
    Ok(url)
}
