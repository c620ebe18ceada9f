//! Which Secret an inline resource signs in with, and the sessions that come of it. As with Azure Service Operator: the one that
//! the resource names, else the one of its namespace, else the operator's own.

use std::{collections::BTreeMap, sync::Arc};

use slipway_azure::{
    Clouds, CredentialError,
    credential::{Borrowed, Mode, SecretName, Tenancy},
    reconcile::{Error, planning::Problem},
    session::{SecretSignIn, Session, Sessions},
};
use slipway_runtime::{Context, Metrics, ObjectKey, controller::Registration, manager::own_namespace};
use tokio::sync::OnceCell;

use crate::{borrowing, inline::CREDENTIAL_FROM, settings::OperatorSettings};

/// The flag that says what a namespace signs in with.
pub const IDENTITIES_FLAG: &str = "aso-workload-identity";

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
    /// Who borrowed the manager's identity at its first start.
    borrowed: Arc<OnceCell<Arc<Borrowed>>>,
}

/// The Secret that a resource signs in with, and its subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub secret: SecretName,
    pub subscription: String,
    /// Whether it signs in as the manager, on trust.
    pub borrowed: bool,
}

impl Access {
    pub fn new(clouds: Clouds) -> Self {
        Self::sharing(Sessions::new(clouds))
    }

    /// Signs in through sessions that other providers use too.
    pub fn sharing(sessions: Sessions) -> Self {
        Self {
            sessions,
            ..Self::default()
        }
    }

    /// Before anything signs in: who may borrow the manager's identity.
    async fn start(&self, context: &Context) {
        let known = || async { Arc::new(borrowing::act::known(context).await) };
        self.borrowed.get_or_init(known).await;
    }

    /// A controller whose objects sign in.
    pub fn started(&self, inner: Registration) -> Registration {
        let access = self.clone();
        Registration {
            name: inner.name,
            run: Arc::new(move |context: Context| {
                let (run, access) = (Arc::clone(&inner.run), access.clone());
                Box::pin(async move {
                    tokio::select! {
                        () = access.start(&context) => run(context).await,
                        () = context.shutdown.cancelled() => Ok(()),
                    }
                })
            }),
        }
    }

    /// What `aso-controller-settings` says beside a credential.
    pub async fn settings(&self, object: &ObjectKey, context: &Context) -> Result<OperatorSettings, Error> {
        let secret = SecretName {
            namespace: operator_namespace(),
            name: OF_OPERATOR.to_owned(),
        };
        let data = self.sessions.data(&secret, object, context).await?;
        Ok(data.map(|data| OperatorSettings::read(&data)).unwrap_or_default())
    }

    /// Whose identities a Secret may name. A flag goes before the Secret's word.
    fn tenancy(&self, settings: &OperatorSettings, context: &Context) -> Tenancy {
        let flag = context.settings.flags.get(IDENTITIES_FLAG);
        Tenancy {
            mode: flag
                .and_then(Mode::by_name)
                .or(settings.identities)
                .unwrap_or_default(),
            operator_namespace: operator_namespace(),
            borrowed: self.borrowed.get().cloned().unwrap_or_default(),
        }
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
        let settings = self.settings(object, context).await?;
        if !settings.serves(namespace) {
            return Err(Error::SignIn {
                code: "NamespaceNotServed",
                message: format!(
                    "AZURE_TARGET_NAMESPACES of Secret {operator}/{OF_OPERATOR} does not name namespace {namespace}: add it"
                ),
            });
        }
        let tenancy = self.tenancy(&settings, context);
        for secret in candidates {
            let found = self
                .sessions
                .credential(&secret, object, &tenancy, context)
                .await?;
            if let Some(found) = found {
                return Ok(Chosen {
                    secret,
                    subscription: found.subscription,
                    borrowed: found.borrowed,
                });
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
        let settings = self.settings(object, context).await?;
        let sign_in = SecretSignIn {
            secret,
            object,
            tenancy: &self.tenancy(&settings, context),
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
