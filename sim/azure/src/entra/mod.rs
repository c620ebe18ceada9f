//! Entra ID as far as service principals need it: discovery, tokens for secrets, certificates and federated
//! assertions, and the AADSTS errors they run into. It knows nothing of ARM.

mod error;
mod token;

use std::collections::{BTreeMap, HashMap};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

pub use token::{Claims, TokenProblem};

use crate::{
    settings::Settings,
    wire::{Request, Response},
};
use error::SignInError;

const LOGIN_HOSTS: &[&str] = &[
    "login.microsoftonline.com",
    "login.microsoftonline.us",
    "login.partner.microsoftonline.cn",
    "login.chinacloudapi.cn",
    "login.windows.net",
    "login.microsoft.com",
    "sts.windows.net",
];

const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

pub fn is_login_host(host: &str) -> bool {
    LOGIN_HOSTS.contains(&host)
}

/// Whether a path belongs to the login service, for clients that reach both services under one name.
pub fn is_login_path(path: &str) -> bool {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    let (first, second) = (segments.next(), segments.next());
    match (first, second) {
        (Some("subscriptions" | "providers" | "metadata"), _) => false,
        (_, Some("oauth2" | "discovery" | ".well-known")) => true,
        (_, Some("v2.0")) => segments.next() == Some(".well-known"),
        _ => false,
    }
}

/// Who may sign in, and with what.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Directory {
    applications: BTreeMap<String, Application>,
    /// Key sets of token issuers, to check federated assertions with; an issuer without one is believed.
    #[serde(default)]
    issuers: BTreeMap<String, Value>,
    /// The key tokens are signed with, once one was needed.
    #[serde(default)]
    signing_key: Option<String>,
    #[serde(default)]
    issued: u64,
}

/// A service principal or an identity that signs in like one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Application {
    pub client_id: String,
    /// Any tenant when empty.
    pub tenant: String,
    pub object_id: String,
    /// SHA-256 of the secret, in hex: the state file holds no secret.
    pub secret_digest: Option<String>,
    /// Certificates in DER, base64.
    pub certificates: Vec<String>,
    pub federated: Vec<FederatedCredential>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FederatedCredential {
    pub issuer: String,
    pub subject: String,
    pub audience: String,
}

impl Application {
    pub fn new(client_id: &str) -> Self {
        Self {
            client_id: client_id.to_ascii_lowercase(),
            object_id: object_id_of(client_id),
            ..Self::default()
        }
    }

    #[must_use]
    pub fn secret(mut self, secret: &str) -> Self {
        self.secret_digest = Some(digest(secret));
        self
    }

    /// Adds a certificate from PEM text (other blocks in it are ignored). Without a readable one nothing is added.
    #[must_use]
    pub fn certificate_pem(mut self, pem: &str) -> Self {
        for block in x509_parser::pem::Pem::iter_from_buffer(pem.as_bytes()).flatten() {
            if block.label == "CERTIFICATE" {
                self.certificates.push(STANDARD.encode(&block.contents));
            }
        }
        self
    }

    #[must_use]
    pub fn federated(mut self, issuer: &str, subject: &str, audience: &str) -> Self {
        self.federated.push(FederatedCredential {
            issuer: issuer.to_owned(),
            subject: subject.to_owned(),
            audience: audience.to_owned(),
        });
        self
    }
}

/// The object id of a client that nobody gave one.
pub fn object_id_of(client_id: &str) -> String {
    Uuid::new_v5(&Uuid::NAMESPACE_URL, client_id.to_ascii_lowercase().as_bytes()).to_string()
}

fn digest(secret: &str) -> String {
    use std::fmt::Write as _;
    Sha256::digest(secret.as_bytes())
        .iter()
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

impl Directory {
    pub fn register(&mut self, application: Application) {
        self.applications
            .insert(application.client_id.to_ascii_lowercase(), application);
    }

    pub fn application(&self, client_id: &str) -> Option<&Application> {
        self.applications.get(&client_id.to_ascii_lowercase())
    }

    pub(crate) fn has_object(&self, object_id: &str) -> bool {
        self.applications
            .values()
            .any(|application| application.object_id.eq_ignore_ascii_case(object_id))
    }

    /// From now on assertions of this issuer must be signed with one of these keys (a JWK set).
    pub fn trust_issuer(&mut self, issuer: &str, key_set: Value) {
        self.issuers
            .insert(issuer.trim_end_matches('/').to_owned(), key_set);
    }

    /// Answers a request to the login service. `identity` is the user-assigned identity it names, if it names one.
    pub(crate) fn answer(
        &mut self,
        request: &Request,
        identity: Option<&Application>,
        now: Timestamp,
        settings: &Settings,
    ) -> Response {
        let segments: Vec<&str> = request
            .path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .collect();
        match (&request.method, segments.as_slice()) {
            (&Method::GET, [_, "discovery", "instance"]) => instance_discovery(request, settings),
            (&Method::GET, [tenant, "v2.0", ".well-known", "openid-configuration"]) => {
                openid_configuration(request, tenant, true)
            }
            (&Method::GET, [tenant, ".well-known", "openid-configuration"]) => {
                openid_configuration(request, tenant, false)
            }
            (&Method::GET, [_, "discovery", .., "keys"]) => {
                Response::json(200, &token::key_set(&self.signing_key()))
            }
            (&Method::POST, [tenant, "oauth2", .., "token"]) => {
                let tenant = (*tenant).to_owned();
                self.token(request, identity, &tenant, now, settings)
            }
            _ => Response::json(
                404,
                &json!({"error": "not_found", "error_description": format!("{} is not part of the login service.", request.path)}),
            ),
        }
    }

    /// The key in use, made or taken over at first need.
    fn signing_key(&mut self) -> String {
        self.signing_key
            .get_or_insert_with(|| token::process_key().to_owned())
            .clone()
    }

    fn token(
        &mut self,
        request: &Request,
        identity: Option<&Application>,
        tenant: &str,
        now: Timestamp,
        settings: &Settings,
    ) -> Response {
        let form: HashMap<String, String> = url::form_urlencoded::parse(&request.body).into_owned().collect();
        match self.grant(&form, identity, tenant, now, settings) {
            Ok((application, audience)) => {
                let tenant = if tenant_is_alias(tenant) {
                    settings.tenant.clone()
                } else {
                    tenant.to_owned()
                };
                let access_token = self.issue(&application, &tenant, &audience, now, settings);
                let lifetime = settings.token_lifetime;
                let mut body = json!({
                    "token_type": "Bearer",
                    "expires_in": lifetime,
                    "ext_expires_in": lifetime,
                    "access_token": access_token,
                });
                if !request.path.contains("/v2.0/") {
                    let expires = now.as_second() + lifetime as i64;
                    body["expires_on"] = expires.to_string().into();
                    body["expires_in"] = lifetime.to_string().into();
                    body["resource"] = audience.into();
                }
                Response::json(200, &body)
            }
            Err(error) => {
                self.issued += 1;
                error.into_response(self.issued, now)
            }
        }
    }

    /// A token for an application, as the token endpoint and the metadata service hand them out.
    pub(crate) fn issue(
        &mut self,
        application: &Application,
        tenant: &str,
        audience: &str,
        now: Timestamp,
        settings: &Settings,
    ) -> String {
        self.issued += 1;
        let claims = Claims {
            audience: audience.to_owned(),
            issuer: settings
                .token_issuer
                .clone()
                .unwrap_or_else(|| format!("https://sts.windows.net/{tenant}/")),
            tenant: tenant.to_owned(),
            client_id: application.client_id.clone(),
            object_id: application.object_id.clone(),
            issued_at: now.as_second(),
            expires_at: now.as_second() + settings.token_lifetime as i64,
            number: self.issued,
        };
        token::sign(&self.signing_key(), &claims)
    }

    /// Reads a bearer token this directory issued.
    pub(crate) fn read_token(&self, token: &str, now: Timestamp) -> Result<Claims, TokenProblem> {
        let key = self
            .signing_key
            .as_deref()
            .unwrap_or_else(|| token::process_key());
        token::read(key, token, now)
    }

    fn grant(
        &self,
        form: &HashMap<String, String>,
        identity: Option<&Application>,
        tenant: &str,
        now: Timestamp,
        settings: &Settings,
    ) -> Result<(Application, String), SignInError> {
        let field = |name: &str| form.get(name).map_or("", String::as_str);
        if field("grant_type") != "client_credentials" {
            return Err(SignInError::UnsupportedGrant(field("grant_type").to_owned()));
        }
        if !tenant_is_alias(tenant) && Uuid::parse_str(tenant).is_err() && !tenant.contains('.') {
            return Err(SignInError::UnknownTenant(tenant.to_owned()));
        }
        let audience = audience(field("scope"), field("resource"))?;
        let client_id = field("client_id");
        let Some(application) = self.application(client_id).or(identity) else {
            if settings.open_sign_in && !client_id.is_empty() {
                return Ok((Application::new(client_id), audience));
            }
            return Err(SignInError::UnknownApplication {
                client_id: client_id.to_owned(),
                tenant: tenant.to_owned(),
            });
        };
        if !application.tenant.is_empty() && !application.tenant.eq_ignore_ascii_case(tenant) {
            return Err(SignInError::UnknownApplication {
                client_id: client_id.to_owned(),
                tenant: tenant.to_owned(),
            });
        }
        if field("client_assertion_type") == ASSERTION_TYPE || form.contains_key("client_assertion") {
            let assertion = field("client_assertion");
            self.check_assertion(application, assertion, now)?;
        } else if form.contains_key("client_secret") {
            if application.secret_digest.as_deref() != Some(digest(field("client_secret")).as_str()) {
                return Err(SignInError::WrongSecret(client_id.to_owned()));
            }
        } else {
            return Err(SignInError::NoCredential);
        }
        Ok((application.clone(), audience))
    }

    fn check_assertion(
        &self,
        application: &Application,
        assertion: &str,
        now: Timestamp,
    ) -> Result<(), SignInError> {
        let parts = token::Parts::read(assertion).ok_or(SignInError::MalformedAssertion)?;
        if parts
            .expires_at()
            .is_some_and(|expires| expires < now.as_second())
        {
            return Err(SignInError::AssertionExpired {
                now,
                expires: parts.expires_at().unwrap_or_default(),
            });
        }
        let issuer = parts.claim("iss");
        if issuer.eq_ignore_ascii_case(&application.client_id) {
            return token::check_certificate(&parts, application, now);
        }
        let subject = parts.claim("sub");
        let matching = application.federated.iter().any(|credential| {
            credential.issuer.trim_end_matches('/') == issuer.trim_end_matches('/')
                && credential.subject == subject
                && parts.has_audience(&credential.audience)
        });
        if !matching {
            return Err(SignInError::NoFederatedRecord {
                issuer: issuer.to_owned(),
                subject: subject.to_owned(),
                audience: parts.claim("aud").to_owned(),
            });
        }
        match self.issuers.get(issuer.trim_end_matches('/')) {
            Some(keys) if !token::signed_by(&parts, keys) => Err(SignInError::BadSignature),
            _ => Ok(()),
        }
    }
}

fn tenant_is_alias(tenant: &str) -> bool {
    matches!(tenant, "common" | "organizations" | "consumers" | "adfs")
}

/// The resource a token is for: the scope without `/.default`, or the v1 resource.
fn audience(scope: &str, resource: &str) -> Result<String, SignInError> {
    let scope = scope
        .split(' ')
        .find(|scope| !matches!(*scope, "" | "openid" | "profile" | "offline_access"));
    match scope {
        Some(scope) => scope
            .strip_suffix("/.default")
            .map(str::to_owned)
            .ok_or_else(|| SignInError::BadScope(scope.to_owned())),
        None if !resource.is_empty() => Ok(resource.to_owned()),
        None => Err(SignInError::BadScope(String::new())),
    }
}

fn instance_discovery(request: &Request, settings: &Settings) -> Response {
    let host = &request.authority;
    let clouds = [
        (
            "login.microsoftonline.com",
            "login.windows.net",
            &[
                "login.microsoftonline.com",
                "login.windows.net",
                "login.microsoft.com",
                "sts.windows.net",
            ][..],
        ),
        (
            "login.partner.microsoftonline.cn",
            "login.partner.microsoftonline.cn",
            &["login.partner.microsoftonline.cn", "login.chinacloudapi.cn"],
        ),
        (
            "login.microsoftonline.us",
            "login.microsoftonline.us",
            &["login.microsoftonline.us", "login.usgovcloudapi.net"],
        ),
    ];
    let mut metadata: Vec<Value> = clouds
        .iter()
        .map(|(network, cache, aliases)| {
            json!({"preferred_network": network, "preferred_cache": cache, "aliases": aliases})
        })
        .collect();
    if !is_login_host(&request.host) {
        metadata.push(json!({"preferred_network": host, "preferred_cache": host, "aliases": [host]}));
    }
    let tenant = request
        .parameter("authorization_endpoint")
        .and_then(|endpoint| url::Url::parse(&endpoint).ok())
        .and_then(|endpoint| {
            endpoint
                .path_segments()
                .and_then(|mut segments| segments.next().map(str::to_owned))
        })
        .unwrap_or_else(|| settings.tenant.clone());
    Response::json(
        200,
        &json!({
            "tenant_discovery_endpoint":
                format!("https://{host}/{tenant}/v2.0/.well-known/openid-configuration"),
            "api-version": "1.1",
            "metadata": metadata,
        }),
    )
}

fn openid_configuration(request: &Request, tenant: &str, second_version: bool) -> Response {
    let host = &request.authority;
    let version = if second_version { "/v2.0" } else { "" };
    let issuer = if is_login_host(&request.host) && !second_version {
        format!("https://sts.windows.net/{tenant}/")
    } else {
        format!("https://{host}/{tenant}{version}")
    };
    Response::json(
        200,
        &json!({
            "token_endpoint": format!("https://{host}/{tenant}/oauth2{version}/token"),
            "token_endpoint_auth_methods_supported":
                ["client_secret_post", "private_key_jwt", "client_secret_basic"],
            "jwks_uri": format!("https://{host}/{tenant}/discovery{version}/keys"),
            "response_modes_supported": ["query", "fragment", "form_post"],
            "subject_types_supported": ["pairwise"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "response_types_supported": ["code", "id_token", "code id_token", "id_token token"],
            "scopes_supported": ["openid", "profile", "email", "offline_access"],
            "issuer": issuer,
            "authorization_endpoint": format!("https://{host}/{tenant}/oauth2{version}/authorize"),
            "device_authorization_endpoint": format!("https://{host}/{tenant}/oauth2{version}/devicecode"),
            "tenant_region_scope": "NA",
            "cloud_instance_name": "microsoftonline.com",
            "cloud_graph_host_name": "graph.windows.net",
            "msgraph_host": "graph.microsoft.com",
            "claims_supported": ["sub", "iss", "aud", "exp", "iat", "oid", "tid", "appid"],
        }),
    )
}
