//! The objects of a Cluster as the caches show them, which of them a change of another enqueues, and where in a namespace an
//! inline resource stands.

use std::sync::{Arc, OnceLock};

use futures::FutureExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt, core::NamespaceResourceScope};
use serde::Serialize;
use serde_json::Value;
use slipway_azure::{
    ownership::Claim,
    reconcile::{Records, records::Entry},
    resource::Reference,
    setup::Clouds,
};
use slipway_capi::{
    finalizer, owner,
    view::{Cluster, MachinePool},
};
use slipway_runtime::{
    Context, Informers, Metrics, ObjectKey, Scope, Settings, controller::Registration, informer,
};

use crate::{
    access::{OF_NAMESPACE, OF_OPERATOR, operator_namespace},
    api::{
        AzureASOManagedCluster, AzureASOManagedControlPlane, AzureASOManagedMachinePool, GROUP,
        ResourceStatus,
    },
    cluster, control_plane,
    inline::CREDENTIAL_FROM,
    pool,
    shared::Shared,
};

/// An object that holds inline resources.
pub trait Holder:
    informer::Object + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize
{
    /// Holds the object until everything it made in Azure is gone.
    const FINALIZER: &'static str;

    fn resources(&self) -> &[Value];

    /// How each of them stands, as its status says.
    fn lines(&self) -> &[ResourceStatus];
}

macro_rules! holder {
    ($kind:ty, $finalizer:expr) => {
        impl Holder for $kind {
            const FINALIZER: &'static str = $finalizer;

            fn resources(&self) -> &[Value] {
                &self.spec.resources
            }

            fn lines(&self) -> &[ResourceStatus] {
                self.status
                    .as_ref()
                    .map_or(&[], |status| status.resources.as_slice())
            }
        }
    };
}

holder!(AzureASOManagedCluster, cluster::FINALIZER);
holder!(AzureASOManagedControlPlane, control_plane::FINALIZER);
holder!(AzureASOManagedMachinePool, pool::FINALIZER);

/// An inline resource that stands in another object of the namespace.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    pub manifest: Value,
    /// Whose it is, as a user reads it.
    pub object: String,
    /// The resources that this object has seen through, by id in lower case.
    pub existed: Vec<String>,
    /// Whether its status says that the resource is there.
    pub ready: bool,
}

/// Group, kind and name of a manifest, in the form that indexes have.
fn resource_key(namespace: Option<&str>, manifest: &Value) -> Option<String> {
    let group = manifest["apiVersion"].as_str()?.split('/').next()?;
    let (kind, name) = (manifest["kind"].as_str()?, manifest["metadata"]["name"].as_str()?);
    Some(format!("{}/{group}/{kind}/{name}", namespace.unwrap_or_default()))
}

/// The Secrets that an object's resources may sign in with: those that they name, and that of the namespace.
pub fn credentials(metadata: &ObjectMeta, resources: &[Value]) -> Vec<String> {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let named = |manifest: &Value| {
        let name = manifest["metadata"]["annotations"][CREDENTIAL_FROM].as_str();
        name.filter(|name| !name.is_empty())
            .map_or_else(|| OF_NAMESPACE.to_owned(), str::to_owned)
    };
    let mut all: Vec<String> = resources
        .iter()
        .map(|manifest| format!("{namespace}/{}", named(manifest)))
        .collect();
    all.sort();
    all.dedup();
    all
}

/// An object's claim to an Azure resource.
pub fn claim<K: Resource<DynamicType = ()>>(object: &K, id: &str) -> Claim {
    let name = format!("{} {}", K::kind(&()), ObjectKey::of(object));
    Records::of(object.meta()).claim(id, name, object.meta())
}

/// Where the caches look; known when the manager starts.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    scope: Arc<OnceLock<Scope>>,
}

/// A Cluster's reference, if it is to a kind of ours.
fn referenced(
    cluster: &Cluster,
    reference: Option<&slipway_capi::view::ObjectReference>,
    kind: &str,
) -> Option<ObjectKey> {
    let reference = reference?;
    (reference.kind == kind && reference.api_group == GROUP)
        .then(|| ObjectKey::new(cluster.metadata.namespace.as_deref(), &reference.name))
}

impl Caches {
    pub fn start(&self, settings: &Settings) {
        let _ = self.scope.set(Scope::of_namespace(settings));
    }

    fn scope(&self) -> Scope {
        self.scope.get().cloned().unwrap_or_default()
    }

    pub fn cluster(&self, informers: &Informers, key: &ObjectKey) -> Option<Arc<Cluster>> {
        informers.get::<Cluster>(self.scope()).get(key)
    }

    /// The control plane of a Cluster, if it is one of ours.
    pub fn plane_key(cluster: &Cluster) -> Option<ObjectKey> {
        let reference = cluster.spec.control_plane_ref.as_ref();
        referenced(cluster, reference, "AzureASOManagedControlPlane")
    }

    /// The infrastructure of a Cluster, if it is one of ours.
    pub fn infrastructure_key(cluster: &Cluster) -> Option<ObjectKey> {
        let reference = cluster.spec.infrastructure_ref.as_ref();
        referenced(cluster, reference, "AzureASOManagedCluster")
    }

    pub fn plane(
        &self,
        informers: &Informers,
        cluster: &Cluster,
    ) -> Option<Arc<AzureASOManagedControlPlane>> {
        let key = Self::plane_key(cluster)?;
        informers
            .get::<AzureASOManagedControlPlane>(self.scope())
            .get(&key)
    }

    /// The pools of a Cluster, by name.
    pub fn pools(&self, informers: &Informers, cluster: &ObjectKey) -> Vec<Arc<AzureASOManagedMachinePool>> {
        informers
            .get::<AzureASOManagedMachinePool>(self.scope())
            .index("cluster", |pool| owner::by_cluster(&pool.metadata))
            .get(&owner::key(cluster.namespace(), cluster.name()))
    }

    /// The MachinePools of a Cluster that name pools of ours and that Cluster API has not looked at.
    pub fn unobserved_machine_pools(&self, informers: &Informers, cluster: &ObjectKey) -> Vec<String> {
        let pools = informers.get::<MachinePool>(self.scope());
        let of_cluster = pools.index("cluster", |pool| {
            vec![owner::key(
                pool.metadata.namespace.as_deref(),
                &pool.spec.cluster_name,
            )]
        });
        let found = of_cluster.get(&owner::key(cluster.namespace(), cluster.name()));
        let is_unobserved = |pool: &&Arc<MachinePool>| {
            let reference = &pool.spec.template.spec.infrastructure_ref;
            reference.kind == "AzureASOManagedMachinePool"
                && reference.api_group == GROUP
                && pool.status.observed_generation == 0
        };
        found
            .iter()
            .filter(is_unobserved)
            .map(|pool| pool.name_any())
            .collect()
    }

    /// The MachinePool that a pool is the infrastructure of: the one that owns it, or will.
    pub fn machine_pool(
        &self,
        informers: &Informers,
        pool: &AzureASOManagedMachinePool,
    ) -> Option<Arc<MachinePool>> {
        let pools = informers.get::<MachinePool>(self.scope());
        let namespace = pool.metadata.namespace.as_deref();
        if let Some(name) = owner::owner_machine_pool_name(&pool.metadata) {
            return pools.get(&ObjectKey::new(namespace, name));
        }
        pools
            .index("infrastructure", |machine_pool| {
                let reference = &machine_pool.spec.template.spec.infrastructure_ref;
                vec![owner::reference_key(
                    machine_pool.metadata.namespace.as_deref(),
                    reference,
                )]
            })
            .get(&format!(
                "{GROUP}/AzureASOManagedMachinePool/{}",
                owner::key(namespace, &pool.name_any())
            ))
            .into_iter()
            .next()
    }

    /// The control plane of the Cluster that an object belongs to.
    pub fn plane_of_member(
        &self,
        informers: &Informers,
        namespace: Option<&str>,
        cluster: Option<&str>,
    ) -> Option<ObjectKey> {
        let cluster = self.cluster(informers, &ObjectKey::new(namespace, cluster?))?;
        Self::plane_key(&cluster)
    }

    /// The infrastructure of the Cluster that an object belongs to.
    pub fn infrastructure_of_member(
        &self,
        informers: &Informers,
        metadata: &ObjectMeta,
    ) -> Option<ObjectKey> {
        let key = ObjectKey::new(metadata.namespace.as_deref(), owner::cluster_name(metadata)?);
        Self::infrastructure_key(self.cluster(informers, &key)?.as_ref())
    }

    /// The inline resource that a reference of this namespace means.
    pub fn find(&self, informers: &Informers, namespace: &str, reference: &Reference) -> Option<Elsewhere> {
        self.find_in::<AzureASOManagedCluster>(informers, namespace, reference)
            .or_else(|| self.find_in::<AzureASOManagedControlPlane>(informers, namespace, reference))
            .or_else(|| self.find_in::<AzureASOManagedMachinePool>(informers, namespace, reference))
    }

    fn find_in<K: Holder>(
        &self,
        informers: &Informers,
        namespace: &str,
        reference: &Reference,
    ) -> Option<Elsewhere> {
        let key = format!(
            "{namespace}/{}/{}/{}",
            reference.group, reference.kind, reference.name
        );
        let holders = informers
            .get::<K>(self.scope())
            .index("resources", |holder: &K| {
                let namespace = holder.meta().namespace.as_deref();
                let resources = holder.resources().iter();
                resources
                    .filter_map(|manifest| resource_key(namespace, manifest))
                    .collect()
            })
            .get(&key);
        let holder = holders
            .into_iter()
            .find(|holder| holder.meta().deletion_timestamp.is_none())?;
        let manifest = holder
            .resources()
            .iter()
            .find(|manifest| resource_key(Some(namespace), manifest).as_deref() == Some(key.as_str()))?;
        let is_meant = |line: &&ResourceStatus| {
            let name = &line.resource;
            (&name.group, &name.kind, &name.name) == (&reference.group, &reference.kind, &reference.name)
        };
        let records = Records::of(holder.meta());
        Some(Elsewhere {
            manifest: manifest.clone(),
            object: format!("{} {}", K::kind(&()), ObjectKey::of(holder.as_ref())),
            existed: records
                .entries()
                .filter(|(_, entry)| Entry::existed(entry))
                .map(|(id, _)| id.to_owned())
                .collect(),
            ready: holder
                .lines()
                .iter()
                .find(is_meant)
                .is_some_and(|line| line.ready),
        })
    }

    /// The claims of all other objects to an Azure resource. One that holds no finalizer of ours does nothing, and claims
    /// nothing.
    pub fn claims<K: Holder>(&self, informers: &Informers, object: &K, id: &str) -> Vec<Claim> {
        let own = format!("{} {}", K::kind(&()), ObjectKey::of(object));
        let mut all = self.claims_in::<AzureASOManagedCluster>(informers, id);
        all.extend(self.claims_in::<AzureASOManagedControlPlane>(informers, id));
        all.extend(self.claims_in::<AzureASOManagedMachinePool>(informers, id));
        all.retain(|claim| claim.object != own);
        all
    }

    fn claims_in<K: Holder>(&self, informers: &Informers, id: &str) -> Vec<Claim> {
        informers
            .get::<K>(self.scope())
            .index("claims", |holder: &K| {
                Records::of(holder.meta()).ids().map(str::to_owned).collect()
            })
            .get(&id.to_lowercase())
            .iter()
            .filter(|holder| finalizer::has(holder.meta(), K::FINALIZER))
            .map(|holder| claim(holder.as_ref(), id))
            .collect()
    }

    /// The objects of a kind that a Secret matters to: it is a credential of theirs, or they made it.
    pub fn by_secret<K: Holder>(&self, informers: &Informers, secret: &ObjectMeta) -> Vec<ObjectKey> {
        let holders = informers.get::<K>(self.scope());
        let name = secret.name.as_deref().unwrap_or_default();
        let namespace = secret.namespace.as_deref();
        if name == OF_OPERATOR && namespace == Some(operator_namespace().as_str()) {
            return holders.keys();
        }
        let mut found: Vec<ObjectKey> = holders
            .index("credentials", |holder: &K| {
                credentials(holder.meta(), holder.resources())
            })
            .get(&format!("{}/{name}", namespace.unwrap_or_default()))
            .iter()
            .map(|holder| ObjectKey::of(holder.as_ref()))
            .collect();
        let owned = owner::controller_of(secret).filter(|owner| owner.kind == K::kind(&()));
        found.extend(owned.map(|owner| ObjectKey::new(namespace, &owner.name)));
        found
    }
}

/// Checks the settings before a controller runs, and tells the caches where to look. Inline resources are large, and read where
/// something changed: a fleet's are kept as text, whichever controller asks first.
pub fn prepared(
    inner: Registration,
    shared: Shared,
    count_held: impl Fn(&Metrics) + Send + Sync + 'static,
) -> Registration {
    Registration {
        name: inner.name,
        run: Arc::new(move |context: Context| {
            shared.caches.start(&context.settings);
            count_held(&context.metrics);
            context.informers.keep_as_text::<AzureASOManagedCluster>();
            context.informers.keep_as_text::<AzureASOManagedControlPlane>();
            context.informers.keep_as_text::<AzureASOManagedMachinePool>();
            let (run, access) = (Arc::clone(&inner.run), shared.access.clone());
            async move {
                Clouds::check(&context.settings)?;
                tokio::select! {
                    () = access.start(&context) => {}
                    () = context.shutdown.cancelled() => return Ok(()),
                }
                run(context).await
            }
            .boxed()
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_secrets_of_an_object_are_those_it_names_and_that_of_its_namespace() {
        let metadata = ObjectMeta {
            namespace: Some("team".to_owned()),
            ..ObjectMeta::default()
        };
        let named = |name: &str| json!({"metadata": {"annotations": {(CREDENTIAL_FROM): name}}});
        let all = credentials(&metadata, &[named("a"), named(""), json!({}), named("a")]);
        assert_eq!(all, ["team/a", "team/aso-credential"]);
    }
}
