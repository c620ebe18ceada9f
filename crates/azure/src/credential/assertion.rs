//! Client assertions: what is shown to Entra instead of a secret.

use std::{fmt, sync::Arc};

use azure_core::{Error, error::ErrorKind, http::ClientMethodOptions};
use azure_identity::ClientAssertion;
use slipway_runtime::Clock;

use super::{certificate::Certificate, service_account::ServiceAccountTokens};

/// The audience Entra expects of a federated Kubernetes token.
const EXCHANGE: &str = "api://AzureADTokenExchange";

pub(super) struct Signed {
    pub certificate: Arc<Certificate>,
    pub client_id: String,
    pub audience: String,
    pub clock: Clock,
}

impl fmt::Debug for Signed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Signed")
    }
}

#[async_trait::async_trait]
impl ClientAssertion for Signed {
    async fn secret(&self, _: Option<ClientMethodOptions<'_>>) -> azure_core::Result<String> {
        self.certificate
            .assertion(&self.client_id, &self.audience, self.clock.now())
            .map_err(|reason| Error::with_message(ErrorKind::Credential, reason))
    }
}

pub(super) struct Federated {
    pub namespace: String,
    pub name: String,
    pub tokens: Arc<dyn ServiceAccountTokens>,
}

impl fmt::Debug for Federated {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Federated")
    }
}

/// Marks our own failure inside the SDK's error, so that it is told apart from Entra's.
pub(super) const SERVICE_ACCOUNT: &str = "ServiceAccount token: ";

#[async_trait::async_trait]
impl ClientAssertion for Federated {
    async fn secret(&self, _: Option<ClientMethodOptions<'_>>) -> azure_core::Result<String> {
        self.tokens
            .request(&self.namespace, &self.name, EXCHANGE)
            .await
            .map_err(|reason| {
                Error::with_message(ErrorKind::Credential, format!("{SERVICE_ACCOUNT}{reason}"))
            })
    }
}
