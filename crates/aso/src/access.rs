//! Which Secret an inline resource signs in with, and the sessions that come of it. As with Azure Service Operator: the one that
//! the resource names, else the one of its namespace, else the operator's own.

use std::collections::BTreeMap;

use slipway_azure::{
    Clouds, CredentialError,
    credential::SecretName,
    reconcile::{Error, planning::Problem},
    session::{SecretSignIn, Session, Sessions},
};
use slipway_runtime::{Context, Metrics, ObjectKey, manager::own_namespace};

use crate::inline::CREDENTIAL_FROM;

/// The credential of a namespace.
pub const OF_NAMESPACE: &str = "aso-credential";
/// The operator's own credential and settings, in the manager's namespace.
pub const OF_OPERATOR: &str = "aso-controller-settings";
/// The manager's namespace where it does not run in a pod: the one that its package is installed to.
const INSTALLED_TO: &str = "capz-system";

/// The manager's namespace.
pub fn operator_namespace() -> String {
    own_namespace().unwrap_or_else(|| INSTALLED_TO.to_owned())
}

/// Azure for inline resources. Clones share engines.
#[derive(Clone, Debug, Default)]
pub struct Access {
    sessions: Sessions,
}

/// The Secret that a resource signs in with, and its subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub secret: SecretName,
    pub subscription: String,
}

impl Access {
    pub fn new(clouds: Clouds) -> Self {
        Self::sharing(Sessions::new(clouds))
    }

    /// Signs in through sessions that other providers use too.
    pub fn sharing(sessions: Sessions) -> Self {
        Self { sessions }
    }

    /// The object is gone: what was held for it goes too.
    pub fn forget(&self, object: &ObjectKey) {
        self.sessions.forget(object);
    }

    /// Counts what is held in memory for objects that signed in.
    pub fn count_held(&self, metrics: &Metrics) {
        self.sessions.count_held(metrics);
    }

    /// The Secret that a resource of this object signs in with.
    pub async fn choose(
        &self,
        named: Option<&str>,
        object: &ObjectKey,
        context: &Context,
    ) -> Result<Chosen, Error> {
        let namespace = object.namespace().unwrap_or_default();
        let operator = operator_namespace();
        let of = |namespace: &str, name: &str| SecretName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let candidates = match named {
            Some(name) => vec![of(namespace, name)],
            None => vec![of(namespace, OF_NAMESPACE), of(&operator, OF_OPERATOR)],
        };
        for secret in candidates {
            if let Some((_, subscription)) = self.sessions.credential(&secret, object, context).await? {
                return Ok(Chosen { secret, subscription });
            }
        }
        Err(match named {
            Some(name) => CredentialError::SecretNotFound {
                identity: format!("the annotation {CREDENTIAL_FROM}"),
                secret: of(namespace, name).to_string(),
            }
            .into(),
            None => Error::SignIn {
                code: "SecretNotFound",
                message: format!(
                    "no Secret says how to sign in to Azure: create {OF_NAMESPACE} in namespace {namespace}, or name \
                     another one of it in the annotation {CREDENTIAL_FROM} of the resource"
                ),
            },
        })
    }

    /// Signs in.
    pub async fn open(
        &self,
        secret: &SecretName,
        object: &ObjectKey,
        cluster: &str,
        context: &Context,
    ) -> Result<Session, Error> {
        let sign_in = SecretSignIn {
            secret,
            object,
            operator_namespace: &operator_namespace(),
            cluster,
        };
        let session = self.sessions.open_secret(&sign_in, context).await?;
        session.ok_or_else(|| {
            CredentialError::SecretNotFound {
                identity: format!("Secret {secret}"),
                secret: secret.to_string(),
            }
            .into()
        })
    }
}

/// What was chosen in one reconcile, so that a Secret is looked for once.
#[derive(Debug, Default)]
pub struct Choices(BTreeMap<Option<String>, Result<Chosen, Problem>>);

impl Choices {
    /// The Secret that a resource signs in with, or what is wrong with it.
    pub async fn of(
        &mut self,
        named: Option<&str>,
        access: &Access,
        object: &ObjectKey,
        context: &Context,
    ) -> Result<Chosen, Problem> {
        let key = named.map(str::to_owned);
        if let Some(known) = self.0.get(&key) {
            return known.clone();
        }
        let chosen = access.choose(named, object, context).await;
        let chosen = chosen.map_err(|error| Problem::of(&error));
        self.0.insert(key, chosen.clone());
        chosen
    }
}
