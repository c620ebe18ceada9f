//! Sign-in sessions: from an identity to an [`Arm`] handle for one cluster. Whether the namespace may use the identity
//! is decided here, and every read of credentials happens here.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    ByteString,
    api::core::v1::{Namespace as CoreNamespace, Secret},
};
use kube::Api;
use slipway_runtime::Context;

use crate::{
    Arm, Azure, Clouds, Identity,
    arm::Tokens,
    credential::{Namespace, Permission, Principal, SecretName},
    reconcile::Error,
};

/// Opens sessions. Clones share engines.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    clouds: Clouds,
}

/// Who signs in, and where to.
#[derive(Clone, Copy, Debug)]
pub struct SignIn<'a> {
    pub identity: &'a Identity,
    /// The namespace of the object that signs in.
    pub namespace: &'a str,
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
        Self { clouds }
    }

    /// Signs in, if the namespace may use the identity.
    pub async fn open(&self, sign_in: &SignIn<'_>, context: &Context) -> Result<Session, Error> {
        let identity = sign_in.identity;
        let namespace = namespace(sign_in.namespace, identity, context).await?;
        let permission = identity.may_use(&namespace)?;
        let secret = match identity.needs_secret() {
            Some(name) => secret(name, context).await?,
            None => None,
        };
        let principal = identity.principal(secret.as_ref(), None)?;
        let azure = self
            .clouds
            .engine(sign_in.environment, &context.settings, context.clock)?;
        let arm = azure.arm(
            &permission,
            principal.clone(),
            sign_in.subscription,
            sign_in.cluster,
        )?;
        Ok(Session {
            arm,
            azure,
            permission,
            principal,
        })
    }
}

/// The namespace that wants to use the identity; its labels only where the identity asks for them.
async fn namespace(name: &str, identity: &Identity, context: &Context) -> Result<Namespace, Error> {
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

async fn secret(name: &SecretName, context: &Context) -> Result<Option<BTreeMap<String, ByteString>>, Error> {
    let found = Api::<Secret>::namespaced(context.client.clone(), &name.namespace)
        .get_opt(&name.name)
        .await
        .map_err(Error::api(format!("reading Secret {name}")))?;
    Ok(found.map(|secret| secret.data.unwrap_or_default()))
}
