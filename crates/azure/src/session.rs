//! Sign-in sessions: from an identity to an [`Arm`] handle for one cluster. Whether the namespace may use the identity
//! is decided here, and every read of credentials happens here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::{
    ByteString,
    api::core::v1::{Namespace as CoreNamespace, Secret},
};
use kube::Api;
use parking_lot::Mutex;
use slipway_runtime::{Context, Metrics, ObjectKey, SecretFacts};

use crate::{
    Arm, Azure, Clouds, Identity,
    arm::Tokens,
    credential::{
        AsoCredential, Namespace, Permission, Principal, SecretName, ServiceAccountTokens, Tenancy,
        TokenRequests, from_aso_secret,
    },
    reconcile::Error,
};

/// The data of a Secret that signs in.
pub type Credential = BTreeMap<String, ByteString>;

/// Opens sessions. Clones share engines, and what is held for the objects that signed in.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    clouds: Clouds,
    secrets: SecretFacts<Credential>,
    users: Arc<Mutex<HashMap<User, Arm>>>,
}

/// An object that signs in, and with which Secret where it may have several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct User {
    object: ObjectKey,
    secret: String,
}

/// Who signs in, and where to.
#[derive(Clone, Copy, Debug)]
pub struct SignIn<'a> {
    pub identity: &'a Identity,
    /// The object that signs in: what is held for it ends with [`Sessions::forget`].
    pub object: &'a ObjectKey,
    /// The name of the cloud, as an object's `azureEnvironment` gives it; empty: the public one.
    pub environment: &'a str,
    pub subscription: &'a str,
    /// Whose share of the request budget is used.
    pub cluster: &'a str,
}

/// Who signs in with a credential Secret in the form of Azure Service Operator: it also names the subscription.
#[derive(Clone, Copy, Debug)]
pub struct SecretSignIn<'a> {
    pub secret: &'a SecretName,
    /// The object that signs in, by a name that no object of another kind has.
    pub object: &'a ObjectKey,
    /// Whose identities it may name. Secrets of the operator's namespace serve every namespace.
    pub tenancy: &'a Tenancy,
    /// Whose share of the request budget is used.
    pub cluster: &'a str,
}

/// Azure for one cluster.
pub struct Session {
    pub arm: Arm,
    azure: Azure,
    permission: Permission,
    principal: Principal,
}

impl Session {
    /// Tokens of the same identity for something else than Resource Manager.
    pub fn tokens(&self, scope: &str) -> Result<Arc<dyn Tokens>, Error> {
        Ok(self.azure.credentials().tokens(
            &self.permission,
            self.principal.clone(),
            self.azure.cloud(),
            scope,
        )?)
    }
}

impl Sessions {
    pub fn new(clouds: Clouds) -> Self {
        Self {
            clouds,
            ..Self::default()
        }
    }

    /// Counts what is held in memory for objects that signed in.
    pub fn count_held(&self, metrics: &Metrics) {
        let users = Arc::clone(&self.users);
        metrics.count_held("azure_users", move || users.lock().len());
        let secrets = self.secrets.clone();
        metrics.count_held("azure_secrets", move || secrets.len());
        for name in [
            "azure_views",
            "azure_operations",
            "azure_writes",
            "azure_credentials",
        ] {
            let clouds = self.clouds.clone();
            metrics.count_held(name, move || {
                let held = clouds.held();
                held.iter()
                    .filter(|(known, _)| *known == name)
                    .map(|(_, count)| count)
                    .sum()
            });
        }
    }

    /// The object is gone: what only it used goes too.
    pub fn forget(&self, object: &ObjectKey) {
        self.secrets.forget(object);
        let mut users = self.users.lock();
        let of_object: Vec<User> = users
            .keys()
            .filter(|user| user.object == *object)
            .cloned()
            .collect();
        for user in of_object {
            let Some(arm) = users.remove(&user) else {
                continue;
            };
            arm.forget_resources();
            if !users.values().any(|other| other.shares_view(&arm)) {
                arm.forget_view();
            }
            if !users.values().any(|other| other.shares_credential(&arm)) {
                arm.forget_credential();
            }
        }
    }

    /// Signs in, if the namespace may use the identity.
    pub async fn open(&self, sign_in: &SignIn<'_>, context: &Context) -> Result<Session, Error> {
        let identity = sign_in.identity;
        let namespace = sign_in.object.namespace().unwrap_or_default();
        let namespace = namespace_of(namespace, identity, context).await?;
        let permission = identity.may_use(&namespace)?;
        let secret = match identity.needs_secret() {
            Some(name) => self.secret(name, sign_in.object, context).await?,
            None => None,
        };
        let principal = identity.principal(secret.as_deref(), None)?;
        let user = User {
            object: sign_in.object.clone(),
            secret: String::new(),
        };
        let environment = sign_in.environment;
        let place = (environment, sign_in.subscription, sign_in.cluster);
        self.session(user, permission, principal, place, context)
    }

    /// Who signs in with a credential Secret, and to which subscription; `None` if there is no such Secret.
    pub async fn credential(
        &self,
        secret: &SecretName,
        object: &ObjectKey,
        tenancy: &Tenancy,
        context: &Context,
    ) -> Result<Option<AsoCredential>, Error> {
        let Some(data) = self.secret(secret, object, context).await? else {
            return Ok(None);
        };
        let tokens: Arc<dyn ServiceAccountTokens> = Arc::new(TokenRequests(context.client.clone()));
        Ok(Some(from_aso_secret(secret, &data, tenancy, &tokens)?))
    }

    /// The data of a Secret that says how to sign in and that most clusters lack; `None` if there is no such Secret.
    pub async fn data(
        &self,
        secret: &SecretName,
        object: &ObjectKey,
        context: &Context,
    ) -> Result<Option<Arc<Credential>>, Error> {
        let key = ObjectKey::namespaced(&secret.namespace, &secret.name);
        let found = self.secrets.get_watched(&key, object, context, data_of).await;
        found.map_err(Error::api(format!("reading Secret {secret}")))
    }

    /// Signs in with a credential Secret; `None` if there is no such Secret.
    pub async fn open_secret(
        &self,
        sign_in: &SecretSignIn<'_>,
        context: &Context,
    ) -> Result<Option<Session>, Error> {
        let namespace = sign_in.object.namespace().unwrap_or_default();
        let tenancy = sign_in.tenancy;
        let permission = Permission::for_secret(sign_in.secret, namespace, &tenancy.operator_namespace)?;
        let found = self
            .credential(sign_in.secret, sign_in.object, tenancy, context)
            .await?;
        let Some(AsoCredential {
            principal,
            subscription,
            ..
        }) = found
        else {
            return Ok(None);
        };
        let user = User {
            object: sign_in.object.clone(),
            secret: sign_in.secret.to_string(),
        };
        let place = ("", subscription.as_str(), sign_in.cluster);
        self.session(user, permission, principal, place, context)
            .map(Some)
    }

    /// A session in a cloud, a subscription and a cluster's share of the budget.
    fn session(
        &self,
        user: User,
        permission: Permission,
        principal: Principal,
        (environment, subscription, cluster): (&str, &str, &str),
        context: &Context,
    ) -> Result<Session, Error> {
        let azure = self
            .clouds
            .engine(environment, &context.settings, context.clock, &context.metrics)?;
        let arm = azure.arm(&permission, principal.clone(), subscription, cluster)?;
        let arm = self.used(user, arm).in_slot(context.slot());
        Ok(Session {
            arm,
            azure,
            permission,
            principal,
        })
    }
}

impl Sessions {
    /// Notes who uses a handle. One that signs in with something else no longer uses what it used before.
    fn used(&self, user: User, arm: Arm) -> Arm {
        let mut users = self.users.lock();
        let Some(before) = users.remove(&user) else {
            users.insert(user, arm.clone());
            return arm;
        };
        let (same_view, same_credential) = (before.shares_view(&arm), before.shares_credential(&arm));
        let arm = if same_view {
            arm.succeeding(&before)
        } else {
            before.forget_resources();
            arm
        };
        users.insert(user, arm.clone());
        if !same_view && !users.values().any(|other| other.shares_view(&before)) {
            before.forget_view();
        }
        if !same_credential && !users.values().any(|other| other.shares_credential(&before)) {
            before.forget_credential();
        }
        arm
    }

    async fn secret(
        &self,
        name: &SecretName,
        object: &ObjectKey,
        context: &Context,
    ) -> Result<Option<Arc<Credential>>, Error> {
        let key = ObjectKey::namespaced(&name.namespace, &name.name);
        self.secrets
            .get(&key, object, context, data_of)
            .await
            .map_err(Error::api(format!("reading Secret {name}")))
    }
}

fn data_of(secret: &Secret) -> Credential {
    secret.data.clone().unwrap_or_default()
}

/// The namespace that wants to use the identity; its labels only where the identity asks for them.
async fn namespace_of(name: &str, identity: &Identity, context: &Context) -> Result<Namespace, Error> {
    let by_label = identity
        .allowed_namespaces
        .as_ref()
        .is_some_and(|allowed| allowed.selector.is_some());
    let labels = if by_label {
        Api::<CoreNamespace>::all(context.client.clone())
            .get(name)
            .await
            .map_err(Error::api(format!("reading Namespace {name}")))?
            .metadata
            .labels
            .unwrap_or_default()
    } else {
        BTreeMap::new()
    };
    Ok(Namespace {
        name: name.to_owned(),
        labels,
    })
}
