//! Tokens of Kubernetes ServiceAccounts, asked for when an identity logs in with one of its own.

use std::fmt;

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, api::PostParams};

/// Hands out ServiceAccount tokens.
#[async_trait::async_trait]
pub trait ServiceAccountTokens: Send + Sync + fmt::Debug {
    /// A token for `audience`, or why there is none.
    async fn request(&self, namespace: &str, name: &str, audience: &str) -> Result<String, String>;
}

/// The TokenRequest API of the management cluster.
#[derive(Clone)]
pub struct TokenRequests(pub kube::Client);

impl fmt::Debug for TokenRequests {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenRequests")
    }
}

#[async_trait::async_trait]
impl ServiceAccountTokens for TokenRequests {
    async fn request(&self, namespace: &str, name: &str, audience: &str) -> Result<String, String> {
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![audience.to_owned()],
                expiration_seconds: Some(3600),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let answer = Api::<ServiceAccount>::namespaced(self.0.clone(), namespace)
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .map_err(|error| match error {
                kube::Error::Api(status) => status.message.clone(),
                _ => "the Kubernetes API could not be reached".to_owned(),
            })?;
        answer
            .status
            .map(|status| status.token)
            .ok_or_else(|| "the Kubernetes API answered without a token".to_owned())
    }
}
