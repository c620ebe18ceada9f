//! From a control plane's `identityRef` to a sign-in session: which identity it is, and that it stays while it is used.

use kube::{Api, ResourceExt};
use slipway_azure::{
    Clouds, Identity,
    credential::{self, AllowedNamespaces, IdentityKind, SecretName},
    reconcile::Error,
    session::{Session, Sessions, SignIn},
};
use slipway_runtime::{Context, Metrics, ObjectKey, Scope};

use crate::api::{AzureClusterIdentity, AzureManagedControlPlane};

/// The subscription of control planes that name none.
const SUBSCRIPTION: &str = "AZURE_SUBSCRIPTION_ID";

/// Azure for control planes. Clones share engines.
#[derive(Clone, Debug, Default)]
pub struct Access {
    sessions: Sessions,
}

/// The subscription a control plane lives in.
pub fn subscription(plane: &AzureManagedControlPlane) -> Result<String, Error> {
    plane
        .spec
        .class
        .subscription_id
        .clone()
        .filter(|id| !id.is_empty())
        .or_else(|| std::env::var(SUBSCRIPTION).ok().filter(|id| !id.is_empty()))
        .ok_or_else(|| Error::SignIn {
            code: "NoSubscription",
            message: format!(
                "spec.subscriptionID is not set, and the manager has no {SUBSCRIPTION} to use instead"
            ),
        })
}

/// Where a control plane's identity is.
pub fn identity_key(plane: &AzureManagedControlPlane) -> ObjectKey {
    let reference = &plane.spec.class.identity_ref;
    let namespace = reference
        .namespace
        .as_deref()
        .filter(|namespace| !namespace.is_empty())
        .or(plane.metadata.namespace.as_deref());
    ObjectKey::new(namespace, reference.name.as_deref().unwrap_or_default())
}

/// Keeps an identity while this control plane needs it.
pub fn identity_finalizer(plane: &AzureManagedControlPlane) -> String {
    credential::identity_finalizer(&plane.namespace().unwrap_or_default(), &plane.name_any())
}

impl Access {
    pub fn new(clouds: Clouds) -> Self {
        Self {
            sessions: Sessions::new(clouds),
        }
    }

    /// Signs in through sessions that other providers use too.
    pub fn sharing(sessions: Sessions) -> Self {
        Self { sessions }
    }

    /// The control plane is gone: what was held for it goes too.
    pub fn forget(&self, plane: &ObjectKey) {
        self.sessions.forget(plane);
    }

    /// Counts what is held in memory for control planes that signed in.
    pub fn count_held(&self, metrics: &Metrics) {
        self.sessions.count_held(metrics);
    }

    /// The identity of a control plane.
    pub async fn identity(
        plane: &AzureManagedControlPlane,
        context: &Context,
    ) -> Result<Option<AzureClusterIdentity>, Error> {
        let key = identity_key(plane);
        let scope = Scope::of_namespace(&context.settings);
        let watched = scope.namespace.is_none() || scope.namespace.as_deref() == key.namespace();
        if watched {
            let known = context.informers.get::<AzureClusterIdentity>(scope).get(&key);
            if let Some(identity) = known {
                return Ok(Some(AzureClusterIdentity::clone(&identity)));
            }
        }
        // The manager may be bound to one namespace and the identity live in another.
        Api::namespaced(context.client.clone(), key.namespace().unwrap_or_default())
            .get_opt(key.name())
            .await
            .map_err(Error::api(format!("reading AzureClusterIdentity {key}")))
    }

    /// Opens Azure for a control plane, if its namespace may use the identity it names.
    pub async fn open(
        &self,
        plane: &AzureManagedControlPlane,
        cluster_name: &str,
        context: &Context,
    ) -> Result<Session, Error> {
        let found = Self::identity(plane, context).await?;
        self.open_as(found.as_ref(), plane, cluster_name, context).await
    }

    /// The same with the identity that was found.
    pub async fn open_as(
        &self,
        identity: Option<&AzureClusterIdentity>,
        plane: &AzureManagedControlPlane,
        cluster_name: &str,
        context: &Context,
    ) -> Result<Session, Error> {
        let subscription = subscription(plane)?;
        let found = identity.ok_or_else(|| Error::SignIn {
            code: "IdentityNotFound",
            message: format!(
                "spec.identityRef names AzureClusterIdentity {}, which does not exist",
                identity_key(plane)
            ),
        })?;
        // Clusters of one name in two namespaces take turns too.
        let share = ObjectKey::new(plane.metadata.namespace.as_deref(), cluster_name).to_string();
        let sign_in = SignIn {
            identity: &facts(found)?,
            object: &ObjectKey::of(plane),
            environment: plane.spec.class.azure_environment.as_deref().unwrap_or_default(),
            subscription: &subscription,
            cluster: &share,
        };
        self.sessions.open(&sign_in, context).await
    }
}

/// The narrow facts of an identity object.
fn facts(object: &AzureClusterIdentity) -> Result<Identity, Error> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let spec = &object.spec;
    let path = |path: &Option<String>| {
        path.as_ref()
            .filter(|path| !path.is_empty())
            .map(std::path::PathBuf::from)
    };
    let secret = spec.client_secret.as_ref().and_then(|reference| {
        Some(SecretName {
            namespace: reference
                .namespace
                .clone()
                .filter(|namespace| !namespace.is_empty())
                .unwrap_or_else(|| namespace.clone()),
            name: reference.name.clone().filter(|name| !name.is_empty())?,
        })
    });
    Ok(Identity {
        kind: IdentityKind::by_name(&format!("AzureClusterIdentity {namespace}/{name}"), &spec.type_)?,
        client_id: spec.client_id.clone(),
        tenant_id: spec.tenant_id.clone(),
        client_secret: secret,
        certificate_path: path(&spec.cert_path),
        credentials_path: path(&spec.user_assigned_identity_credentials_path),
        service_account: None,
        allowed_namespaces: spec.allowed_namespaces.as_ref().map(|allowed| AllowedNamespaces {
            list: allowed.list.clone(),
            selector: allowed.selector.clone(),
        }),
        namespace,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finalizer_of_an_identity_is_the_one_that_is_there_already() {
        let mut plane = AzureManagedControlPlane::default();
        plane.metadata.namespace = Some("default".into());
        plane.metadata.name = Some("fleet".into());
        let finalizer = identity_finalizer(&plane);
        let (prefix, digest) = finalizer.split_once('/').unwrap();
        assert_eq!(prefix, crate::control_plane::FINALIZER);
        assert_eq!(digest.len(), 56);
        // printf %s default-fleet | sha224sum
        assert_eq!(digest, "651487a4291fa888d9889317c5ae980d2b1f76639dae0e10df1a9e7b");
    }

    #[test]
    fn an_identity_without_a_namespace_is_beside_its_control_plane() {
        let mut plane = AzureManagedControlPlane::default();
        plane.metadata.namespace = Some("team".into());
        plane.spec.class.identity_ref.name = Some("shared".into());
        assert_eq!(identity_key(&plane).to_string(), "team/shared");
        plane.spec.class.identity_ref.namespace = Some("central".into());
        assert_eq!(identity_key(&plane).to_string(), "central/shared");
    }
}
