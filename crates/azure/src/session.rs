//! Sign-in sessions: from an identity to an [`Arm`] handle for one cluster. Whether the namespace may use the identity
//! is decided here, and every read of credentials happens here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::{ByteString, api::core::v1::Namespace as CoreNamespace};
use kube::Api;
use parking_lot::Mutex;
use slipway_runtime::{Context, Metrics, ObjectKey, SecretFacts};

use crate::{
    Arm, Azure, Clouds, Identity,
    arm::Tokens,
    credential::{Namespace, Permission, Principal, SecretName},
    reconcile::Error,
};

/// The data of a Secret that signs in.
type Credential = BTreeMap<String, ByteString>;

/// Opens sessions. Clones share engines, and what is held for the objects that signed in.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    clouds: Clouds,
    secrets: SecretFacts<Credential>,
    users: Arc<Mutex<HashMap<ObjectKey, Arm>>>,
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
        let Some(arm) = users.remove(object) else {
            return;
        };
        arm.forget_resources();
        if !users.values().any(|other| other.shares_view(&arm)) {
            arm.forget_view();
        }
        if !users.values().any(|other| other.shares_credential(&arm)) {
            arm.forget_credential();
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
        let azure = self.clouds.engine(
            sign_in.environment,
            &context.settings,
            context.clock,
            &context.metrics,
        )?;
        let arm = azure.arm(
            &permission,
            principal.clone(),
            sign_in.subscription,
            sign_in.cluster,
        )?;
        let arm = self.used(sign_in.object, arm).in_slot(context.slot());
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
    fn used(&self, object: &ObjectKey, arm: Arm) -> Arm {
        let mut users = self.users.lock();
        let Some(before) = users.remove(object) else {
            users.insert(object.clone(), arm.clone());
            return arm;
        };
        let (same_view, same_credential) = (before.shares_view(&arm), before.shares_credential(&arm));
        let arm = if same_view {
            arm.succeeding(&before)
        } else {
            before.forget_resources();
            arm
        };
        users.insert(object.clone(), arm.clone());
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
            .get(&key, object, context, |secret| {
                secret.data.clone().unwrap_or_default()
            })
            .await
            .map_err(Error::api(format!("reading Secret {name}")))
    }
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
