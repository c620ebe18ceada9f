//! What the caches show of inline resources beyond what every Azure provider looks for: where in a namespace one stands, claims
//! to resources in Azure, and which objects a Secret matters to.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt, core::NamespaceResourceScope};
use serde_json::Value;
use slipway_azure::{
    caches::{self, CachedObject, ClusterKinds, claim, recorded},
    ownership::Claim,
    reconcile::{Records, records::Entry},
    resource::Reference,
};
use slipway_capi::{owner, view::MachinePool};
use slipway_runtime::{Informers, ObjectKey};

use crate::{
    access::{OF_NAMESPACE, OF_OPERATOR, operator_namespace},
    api::{
        AzureASOManagedCluster, AzureASOManagedControlPlane, AzureASOManagedMachinePool, GROUP, ResourceName,
        ResourceStatus,
    },
    cluster, control_plane, engine,
    inline::{CREDENTIAL_FROM, Inline, Policy},
    pool,
};

/// An object that holds inline resources.
pub trait Holder: CachedObject + Resource<Scope = NamespaceResourceScope> {
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
    /// Whether Azure Service Operator has an object for it.
    pub operated: bool,
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

/// The kinds of inline resources.
#[derive(Clone, Debug, Default)]
pub struct Aso;

impl ClusterKinds for Aso {
    type Infrastructure = AzureASOManagedCluster;
    type ControlPlane = AzureASOManagedControlPlane;
    type Pool = AzureASOManagedMachinePool;
}

pub type Caches = caches::Caches<Aso>;

/// The MachinePools of a Cluster that name pools of ours and that Cluster API has not reconciled.
pub fn unobserved_machine_pools(caches: &Caches, informers: &Informers, cluster: &ObjectKey) -> Vec<String> {
    let pools = informers.get::<MachinePool>(caches.scope());
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

/// The inline resource that a reference of this namespace means.
pub fn find(
    caches: &Caches,
    informers: &Informers,
    namespace: &str,
    reference: &Reference,
) -> Option<Elsewhere> {
    find_in::<AzureASOManagedCluster>(caches, informers, namespace, reference)
        .or_else(|| find_in::<AzureASOManagedControlPlane>(caches, informers, namespace, reference))
        .or_else(|| find_in::<AzureASOManagedMachinePool>(caches, informers, namespace, reference))
}

fn find_in<K: Holder>(
    caches: &Caches,
    informers: &Informers,
    namespace: &str,
    reference: &Reference,
) -> Option<Elsewhere> {
    let key = format!(
        "{namespace}/{}/{}/{}",
        reference.group, reference.kind, reference.name
    );
    let holders = informers
        .get::<K>(caches.scope())
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
    let operated = records.entries().any(|(_, entry)| {
        entry.notes.contains_key(engine::NOTE)
            && noted_as(entry, &reference.group, &reference.kind, &reference.name)
    });
    Some(Elsewhere {
        operated,
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

/// Whether an entry of a record is of the resource of this group, kind and name.
fn noted_as(entry: &Entry, group: &str, kind: &str, name: &str) -> bool {
    let note = |member: &str| entry.notes.get(member).map(String::as_str);
    note("group") == Some(group) && note("kind") == Some(kind) && note("name") == Some(name)
}

/// What the resources of a namespace refer to that Azure Service Operator writes.
pub fn operated_references(caches: &Caches, informers: &Informers, namespace: &str) -> BTreeSet<engine::Key> {
    let mut all = operated_references_in::<AzureASOManagedCluster>(caches, informers, namespace);
    all.extend(operated_references_in::<AzureASOManagedControlPlane>(
        caches, informers, namespace,
    ));
    all.extend(operated_references_in::<AzureASOManagedMachinePool>(
        caches, informers, namespace,
    ));
    all
}

fn operated_references_in<K: Holder>(
    caches: &Caches,
    informers: &Informers,
    namespace: &str,
) -> BTreeSet<engine::Key> {
    let mut found = BTreeSet::new();
    let holders = informers.get::<K>(caches.scope()).list();
    for holder in holders
        .iter()
        .filter(|one| one.meta().namespace.as_deref() == Some(namespace))
    {
        let records = Records::of(holder.meta());
        for manifest in holder.resources() {
            let Ok(inline) = Inline::parse(manifest, 0, namespace, Policy::default()) else {
                continue;
            };
            let name = inline.name();
            let is_operated = records.entries().any(|(_, entry)| {
                entry.notes.get(engine::NOTE).map(String::as_str) == Some(engine::BY_OPERATOR)
                    && noted_as(entry, &name.group, &name.kind, &name.name)
            });
            if is_operated {
                let keys = inline
                    .references()
                    .map(|one| (one.group.clone(), one.kind.clone(), one.name.clone()));
                found.extend(keys);
            }
        }
    }
    found
}

/// The kinds of Azure Service Operator that an object has had, as Cluster API Provider Azure notes them: `Kind.version.group`.
const OWNED_KINDS: &str = "sigs.k8s.io/cluster-api-provider-azure-owned-aso-kinds";

pub fn owned_kinds(metadata: &ObjectMeta) -> Vec<ResourceName> {
    let annotation = metadata.annotations.as_ref().and_then(|all| all.get(OWNED_KINDS));
    let kinds = annotation.map(String::as_str).unwrap_or_default().split(';');
    kinds
        .filter_map(|text| {
            let (kind, rest) = text.split_once('.')?;
            let (version, group) = rest.split_once('.')?;
            Some(ResourceName {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: kind.to_owned(),
                name: String::new(),
            })
        })
        .collect()
}

/// The claims of all other objects to an Azure resource.
pub fn claims<K: Holder>(caches: &Caches, informers: &Informers, object: &K, id: &str) -> Vec<Claim> {
    let own = claim(object, id).object;
    let mut all = claims_in::<AzureASOManagedCluster>(caches, informers, id);
    all.extend(claims_in::<AzureASOManagedControlPlane>(caches, informers, id));
    all.extend(claims_in::<AzureASOManagedMachinePool>(caches, informers, id));
    all.retain(|claim| claim.object != own);
    all
}

fn claims_in<K: Holder>(caches: &Caches, informers: &Informers, id: &str) -> Vec<Claim> {
    caches.claims(informers, id, K::FINALIZER, |holder: &K| recorded(holder.meta()))
}

/// The objects of a kind that a Secret matters to: it is a credential of theirs, or they made it.
pub fn by_secret<K: Holder>(caches: &Caches, informers: &Informers, secret: &ObjectMeta) -> Vec<ObjectKey> {
    let holders = informers.get::<K>(caches.scope());
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
