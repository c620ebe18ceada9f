//! The webhooks: reads the request, fetches the few facts the rules need, and calls them. All else is pure.

use std::sync::Arc;

use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;
use slipway_capi::{
    marks::is_deleted_for_move,
    names::{annotation, label},
    topology,
    view::Cluster,
};
use slipway_runtime::admission::{
    Admission, Change, Operation, Phase, Request, Verdict,
    field::{FieldError, Path},
};

use super::{
    ClusterNetworkFact, OtherSystemPools, cluster, control_plane, control_plane_update, defaults, existing,
    identity, immutable::unless_before, pool, pool_update, ssh, upgrades,
};
use crate::api::{
    AzureClusterIdentity, AzureManagedCluster, AzureManagedClusterTemplate, AzureManagedControlPlane,
    AzureManagedControlPlaneTemplate, AzureManagedMachinePool, AzureManagedMachinePoolTemplate,
    LABEL_AGENT_POOL_MODE, MODE_SYSTEM, PoolClass,
};

const CREATE_UPDATE: &[Operation] = &[Operation::Create, Operation::Update];

/// Every webhook of this provider.
pub fn admission() -> Vec<Admission> {
    vec![
        Admission::defaulting::<AzureManagedControlPlane>(|new, old| {
            defaults::control_plane(new, old, ssh::generate);
        }),
        Admission::defaulting::<AzureManagedControlPlaneTemplate>(|new, _| {
            defaults::control_plane_template(new);
        }),
        Admission::defaulting::<AzureManagedMachinePool>(|new, _| defaults::pool(new)),
        Admission::defaulting::<AzureManagedMachinePoolTemplate>(|new, _| defaults::pool_template(new)),
        validating::<AzureManagedControlPlane, _>(CREATE_UPDATE, |request, change, client| async move {
            let fact = network_of(change.new.as_ref(), &client).await;
            control_plane_verdict(&change, &fact, topology::is_dry_run(&request))
        }),
        validating::<AzureManagedControlPlaneTemplate, _>(
            CREATE_UPDATE,
            |request, change, client| async move {
                let fact = network_of(change.new.as_ref(), &client).await;
                control_plane_template_verdict(&change, &fact, topology::is_dry_run(&request))
            },
        ),
        validating::<AzureManagedMachinePool, _>(
            &[Operation::Create, Operation::Update, Operation::Delete],
            |_, change, client| async move {
                let others = other_system_pools(&change, &client).await;
                pool_verdict(&change, &others)
            },
        ),
        validating::<AzureManagedMachinePoolTemplate, _>(CREATE_UPDATE, |request, change, _| async move {
            pool_template_verdict(&change, topology::is_dry_run(&request))
        }),
        Admission::validating::<AzureManagedCluster>(CREATE_UPDATE, cluster_verdict),
        Admission::validating::<AzureManagedClusterTemplate>(CREATE_UPDATE, cluster_template_verdict),
        Admission::validating::<AzureClusterIdentity>(CREATE_UPDATE, identity_verdict),
    ]
}

fn validating<K, F>(operations: &[Operation], validate: fn(Request, Change<K>, Client) -> F) -> Admission
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
    F: Future<Output = Verdict> + Send + 'static,
{
    Admission::for_kind::<K>(
        Phase::Validating,
        operations.to_vec(),
        Arc::new(move |request, client| {
            Box::pin(async move {
                match Change::<K>::read(&request) {
                    Ok(change) => validate(request, change, client).await,
                    Err(message) => Verdict::Unreadable { message },
                }
            })
        }),
    )
}

/// An object on its way out is only losing its finalizers: no rule may hold it.
fn is_leaving<K: Resource>(new: &K) -> bool {
    new.meta().deletion_timestamp.is_some()
}

pub fn cluster_verdict(change: &Change<AzureManagedCluster>) -> Verdict {
    let errors = |cluster: &AzureManagedCluster| {
        cluster::validate(&Path::new("spec"), cluster.spec.default_pool_template.as_ref())
    };
    Verdict::from_errors(new_errors(change, errors), Vec::new())
}

pub fn cluster_template_verdict(change: &Change<AzureManagedClusterTemplate>) -> Verdict {
    let root = Path::new("spec").child("template").child("spec");
    let errors = |template: &AzureManagedClusterTemplate| {
        cluster::validate(&root, template.spec.template.spec.default_pool_template.as_ref())
    };
    Verdict::from_errors(new_errors(change, errors), Vec::new())
}

/// What is wrong with an object and was not before: nothing of an update that changes only metadata.
fn new_errors<K>(change: &Change<K>, errors: impl Fn(&K) -> Vec<FieldError>) -> Vec<FieldError> {
    let found = change.new.as_ref().map(&errors).unwrap_or_default();
    match &change.old {
        Some(old) if !found.is_empty() => unless_before(found, &errors(old)),
        _ => found,
    }
}

pub fn control_plane_verdict(
    change: &Change<AzureManagedControlPlane>,
    fact: &ClusterNetworkFact,
    topology_dry_run: bool,
) -> Verdict {
    let Some(new) = change.new.as_ref().filter(|new| !is_leaving(*new)) else {
        return Verdict::allowed();
    };
    let mut errors = match &change.old {
        // Whatever the spec is: it was let in.
        Some(old) if old.spec == new.spec => return Verdict::allowed(),
        Some(_) if topology_dry_run => Vec::new(),
        Some(old) => control_plane_update::validate(old, new, existing::of_control_plane(old)),
        None => control_plane::validate_name(new).into_iter().collect(),
    };
    if errors.is_empty() {
        errors = new_errors(change, |plane| control_plane::validate(plane, fact));
    }
    let warnings = change
        .old
        .as_ref()
        .and_then(|old| upgrades::warning(old, new))
        .into_iter()
        .collect();
    Verdict::from_errors(errors, warnings)
}

pub fn control_plane_template_verdict(
    change: &Change<AzureManagedControlPlaneTemplate>,
    fact: &ClusterNetworkFact,
    topology_dry_run: bool,
) -> Verdict {
    let Some(new) = change.new.as_ref().filter(|new| !is_leaving(*new)) else {
        return Verdict::allowed();
    };
    let mut errors = match &change.old {
        Some(old) if old.spec == new.spec => return Verdict::allowed(),
        Some(old) if !topology_dry_run => control_plane_update::validate_template(old, new),
        _ => Vec::new(),
    };
    if errors.is_empty() {
        errors = new_errors(change, |template| {
            control_plane::validate_template(template, fact)
        });
    }
    let mut warnings = Vec::new();
    if !new.spec.template.spec.virtual_network.name.is_empty() {
        warnings.push(
            "spec.template.spec.virtualNetwork.name: virtual network names cannot be shared across clusters"
                .to_owned(),
        );
    }
    Verdict::from_errors(errors, warnings)
}

pub fn pool_verdict(change: &Change<AzureManagedMachinePool>, others: &OtherSystemPools) -> Verdict {
    let root = Path::new("spec");
    match (&change.old, &change.new) {
        (Some(old), None) => {
            let guarded = old.spec.class.mode == MODE_SYSTEM && !is_deleted_for_move(&old.metadata);
            match pool_update::keeps_last_system_pool(others) {
                Err(message) if guarded => Verdict::Forbidden { message },
                _ => Verdict::allowed(),
            }
        }
        (_, Some(new)) if is_leaving(new) => Verdict::allowed(),
        (Some(old), Some(new)) => Verdict::from_errors(
            pool_update::validate_pool(
                &root,
                (&old.spec.class, &new.spec.class),
                &new.name_any(),
                existing::of_pool(old),
                others,
            ),
            Vec::new(),
        ),
        (None, Some(new)) => Verdict::from_errors(
            pool::validate(&root, &new.spec.class, &new.name_any()),
            Vec::new(),
        ),
        (None, None) => Verdict::allowed(),
    }
}

pub fn pool_template_verdict(
    change: &Change<AzureManagedMachinePoolTemplate>,
    topology_dry_run: bool,
) -> Verdict {
    let root = Path::new("spec").child("template").child("spec");
    let class =
        |template: &AzureManagedMachinePoolTemplate| -> PoolClass { template.spec.template.spec.clone() };
    let errors: Vec<FieldError> = match (&change.old, &change.new) {
        (Some(_), Some(_)) if topology_dry_run => Vec::new(),
        // A template is not a pool: whether a cluster keeps a system pool is asked of its pools.
        (Some(old), Some(new)) => {
            pool_update::validate(&root, &class(old), &class(new), &OtherSystemPools::NotNeeded)
        }
        (None, Some(new)) => pool::validate(&root, &class(new), &new.name_any()),
        _ => Vec::new(),
    };
    Verdict::from_errors(errors, Vec::new())
}

pub fn identity_verdict(change: &Change<AzureClusterIdentity>) -> Verdict {
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    let mut errors: Vec<FieldError> = change
        .old
        .as_ref()
        .and_then(|old| identity::validate_update(old, new))
        .into_iter()
        .collect();
    if errors.is_empty() {
        errors = new_errors(change, identity::validate);
    }
    Verdict::from_errors(errors, Vec::new())
}

async fn network_of<K: Resource<DynamicType = ()>>(
    object: Option<&K>,
    client: &Client,
) -> ClusterNetworkFact {
    let Some((namespace, name)) = object.and_then(cluster_key) else {
        return ClusterNetworkFact::NoCluster;
    };
    match Api::<Cluster>::namespaced(client.clone(), &namespace)
        .get(&name)
        .await
    {
        Ok(cluster) => ClusterNetworkFact::Known {
            services: cluster.spec.cluster_network.services.cidr_blocks,
            pods: cluster.spec.cluster_network.pods.cidr_blocks,
        },
        Err(error) => ClusterNetworkFact::Unreadable(format!("reading Cluster {namespace}/{name}: {error}")),
    }
}

fn cluster_key<K: Resource<DynamicType = ()>>(object: &K) -> Option<(String, String)> {
    let name = object.labels().get(label::CLUSTER_NAME)?.clone();
    Some((object.namespace().unwrap_or_default(), name))
}

async fn other_system_pools(change: &Change<AzureManagedMachinePool>, client: &Client) -> OtherSystemPools {
    let Some(old) = &change.old else {
        return OtherSystemPools::NotNeeded;
    };
    let stops = old.spec.class.mode == MODE_SYSTEM
        && change
            .new
            .as_ref()
            .is_none_or(|new| new.spec.class.mode != MODE_SYSTEM);
    let Some((namespace, cluster)) = cluster_key(old).filter(|_| stops) else {
        return OtherSystemPools::NotNeeded;
    };
    if old.annotations().contains_key(annotation::DELETE_FOR_MOVE) {
        return OtherSystemPools::NotNeeded;
    }
    match Api::<Cluster>::namespaced(client.clone(), &namespace)
        .get_opt(&cluster)
        .await
    {
        Ok(None) => return OtherSystemPools::NotNeeded,
        Ok(Some(cluster)) if cluster.metadata.deletion_timestamp.is_some() => {
            return OtherSystemPools::NotNeeded;
        }
        Ok(Some(_)) => {}
        Err(error) => {
            return OtherSystemPools::Unreadable(format!("reading Cluster {namespace}/{cluster}: {error}"));
        }
    }
    let selector = format!(
        "{}={cluster},{LABEL_AGENT_POOL_MODE}={MODE_SYSTEM}",
        label::CLUSTER_NAME
    );
    let pools: Api<AzureManagedMachinePool> = Api::namespaced(client.clone(), &namespace);
    match pools.list(&ListParams::default().labels(&selector)).await {
        Ok(list) => OtherSystemPools::Count(
            list.items
                .iter()
                .filter(|pool| {
                    pool.name_any() != old.name_any() && pool.metadata.deletion_timestamp.is_none()
                })
                .count(),
        ),
        Err(error) => OtherSystemPools::Unreadable(format!(
            "listing the system pools of {namespace}/{cluster}: {error}"
        )),
    }
}
