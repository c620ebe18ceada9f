//! Several subjects that an identity may be federated with: the first that Entra knows signs in.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};

/// What Entra answers where an identity is not federated with the subject that was presented.
const OTHER_SUBJECT: [&str; 4] = ["AADSTS70021", "AADSTS700211", "AADSTS700212", "AADSTS700213"];

/// Credentials of the same identity by different subjects.
pub(super) struct FirstFederated {
    credentials: Vec<Arc<dyn TokenCredential>>,
    /// The one that signed in last.
    known: AtomicUsize,
}

impl FirstFederated {
    pub(super) fn new(credentials: Vec<Arc<dyn TokenCredential>>) -> Self {
        Self {
            credentials,
            known: AtomicUsize::new(0),
        }
    }
}

impl fmt::Debug for FirstFederated {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FirstFederated")
    }
}

/// Whether the identity does not know the subject, so that another one may do.
fn is_other_subject(error: &azure_core::Error) -> bool {
    let text = error.to_string();
    OTHER_SUBJECT.iter().any(|code| text.contains(code))
}

#[async_trait::async_trait]
impl TokenCredential for FirstFederated {
    async fn get_token(
        &self,
        scopes: &[&str],
        options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let known = self.known.load(Ordering::Relaxed);
        let mut refused = None;
        for offset in 0..self.credentials.len() {
            let index = (known + offset) % self.credentials.len();
            match self.credentials[index].get_token(scopes, options.clone()).await {
                Ok(token) => {
                    self.known.store(index, Ordering::Relaxed);
                    return Ok(token);
                }
                // The manager's own subject is what a user can look up: its refusal is the one to tell.
                Err(error) if is_other_subject(&error) => {
                    refused.get_or_insert(error);
                }
                Err(error) => return Err(refused.unwrap_or(error)),
            }
        }
        Err(refused.unwrap_or_else(|| {
            azure_core::Error::with_message(
                azure_core::error::ErrorKind::Credential,
                "no subject to sign in with",
            )
        }))
    }
}
