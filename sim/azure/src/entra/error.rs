//! Sign-in errors with their AADSTS numbers and wording.

use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use crate::wire::Response;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignInError {
    UnsupportedGrant(String),
    UnknownTenant(String),
    UnknownApplication {
        client_id: String,
        tenant: String,
    },
    WrongSecret(String),
    NoCredential,
    BadScope(String),
    MalformedAssertion,
    AssertionExpired {
        now: Timestamp,
        expires: i64,
    },
    BadSignature,
    UnknownCertificate {
        thumbprint: String,
    },
    CertificateExpired {
        thumbprint: String,
        start: String,
        end: String,
    },
    NoFederatedRecord {
        issuer: String,
        subject: String,
        audience: String,
    },
}

impl SignInError {
    /// Status, OAuth error, AADSTS number and text.
    fn parts(&self) -> (u16, &'static str, u32, String) {
        match self {
            Self::UnsupportedGrant(grant) => (
                400,
                "unsupported_grant_type",
                70003,
                format!("The app requested an unsupported grant type '{grant}'."),
            ),
            Self::UnknownTenant(tenant) => (
                400,
                "invalid_request",
                90002,
                format!(
                    "Tenant '{tenant}' not found. Check to make sure you have the correct tenant ID and are signing into the correct cloud. Check with your subscription administrator, this may happen if there are no active subscriptions for the tenant."
                ),
            ),
            Self::UnknownApplication { client_id, tenant } => (
                400,
                "unauthorized_client",
                700_016,
                format!(
                    "Application with identifier '{client_id}' was not found in the directory '{tenant}'. This can happen if the application has not been installed by the administrator of the tenant or consented to by any user in the tenant. You may have sent your authentication request to the wrong tenant."
                ),
            ),
            Self::WrongSecret(client_id) => (
                401,
                "invalid_client",
                7_000_215,
                format!(
                    "Invalid client secret provided. Ensure the secret being sent in the request is the client secret value, not the client secret ID, for a secret added to app '{client_id}'."
                ),
            ),
            Self::NoCredential => (
                401,
                "invalid_client",
                7_000_218,
                "The request body must contain the following parameter: 'client_assertion' or 'client_secret'."
                    .to_owned(),
            ),
            Self::BadScope(scope) => (
                400,
                "invalid_scope",
                1_002_012,
                format!(
                    "The provided value for scope {scope} is not valid. Client credential flows must have a scope value with /.default suffixed to the resource identifier (application ID URI)."
                ),
            ),
            Self::MalformedAssertion => (
                401,
                "invalid_client",
                50027,
                "JWT token is invalid or malformed.".to_owned(),
            ),
            Self::AssertionExpired { now, expires } => (
                401,
                "invalid_client",
                700_024,
                format!(
                    "Client assertion is not within its valid time range. Current time: {now}, expiry time of assertion {}. Review the documentation at https://learn.microsoft.com/entra/identity-platform/certificate-credentials .",
                    Timestamp::from_second(*expires).unwrap_or(*now)
                ),
            ),
            Self::BadSignature => (
                401,
                "invalid_client",
                50013,
                "Assertion failed signature validation. [Reason - The provided signature value did not match the expected signature value.]".to_owned(),
            ),
            Self::UnknownCertificate { thumbprint } => (
                401,
                "invalid_client",
                700_027,
                format!(
                    "The certificate with identifier used to sign the client assertion is not registered on application. [Reason - The key was not found., Thumbprint of key used by client: '{thumbprint}']"
                ),
            ),
            Self::CertificateExpired {
                thumbprint,
                start,
                end,
            } => (
                401,
                "invalid_client",
                700_027,
                format!(
                    "The certificate with identifier used to sign the client assertion is expired on application. [Reason - The key used is expired., Thumbprint of key used by client: '{thumbprint}', Found key 'Start={start}, End={end}']"
                ),
            ),
            Self::NoFederatedRecord {
                issuer,
                subject,
                audience,
            } => (
                401,
                "invalid_client",
                700_213,
                format!(
                    "No matching federated identity record found for presented assertion subject '{subject}'. Check your federated identity credential Subject, Audience and Issuer against the presented assertion. Assertion Issuer: '{issuer}'. Assertion Audience: '{audience}'."
                ),
            ),
        }
    }

    pub fn into_response(self, number: u64, now: Timestamp) -> Response {
        let (status, error, code, text) = self.parts();
        let trace = Uuid::new_v5(&Uuid::NAMESPACE_OID, &number.to_be_bytes()).to_string();
        let stamp = now.strftime("%Y-%m-%d %H:%M:%SZ").to_string();
        Response::json(
            status,
            &json!({
                "error": error,
                "error_description": format!(
                    "AADSTS{code}: {text} Trace ID: {trace} Correlation ID: {trace} Timestamp: {stamp}"
                ),
                "error_codes": [code],
                "timestamp": stamp,
                "trace_id": trace,
                "correlation_id": trace,
                "error_uri": format!("https://login.microsoftonline.com/error?code={code}"),
            }),
        )
    }
}
