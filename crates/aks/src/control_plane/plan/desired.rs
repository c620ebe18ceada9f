//! What a cluster needs in Azure, in the order in which it is made, and how each resource is treated.

use jiff::Timestamp;
use serde_json::Value;
use slipway_azure::reconcile::{ResourceKind, ResourceState, state_of};

use super::{Observed, PoolObject};
use crate::{
    api::{MODE_SYSTEM, PoolClass},
    cluster::admit::DEFAULT_POOL_NAME,
    planning::{DesiredResource, Waiting},
    render::{Facts, PoolFacts, addons, ids, managed_cluster, network},
};

/// The virtual machine size of a pool nobody described: small, and in every region.
pub const DEFAULT_POOL_SIZE: &str = "Standard_D2s_v3";

/// How a resource that the cluster needs is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// It is ours: it is brought to its desired state.
    Ensure,
    /// Somebody else's, and used as it is.
    UseAsItIs,
    /// Somebody else's, though it can only be ours.
    Refuse,
    Unknown,
}

/// A resource that exists and is not marked as ours is used as it is, unless it can only be ours.
fn treatment(observed: &Observed, id: &str, is_always_ours: bool) -> Treatment {
    match state_of(&observed.states, id) {
        ResourceState::Unknown => Treatment::Unknown,
        ResourceState::Absent => Treatment::Ensure,
        ResourceState::Present(_) if is_always_ours && observed.foreign(id).is_some() => Treatment::Refuse,
        ResourceState::Present(_) if is_always_ours || observed.is_ours(id) => Treatment::Ensure,
        ResourceState::Present(_) => Treatment::UseAsItIs,
    }
}

/// Everything the cluster needs in Azure in the order in which it is made, and what keeps the rest from being made.
pub(super) fn desired(
    observed: &Observed,
    now: Timestamp,
) -> (Vec<(DesiredResource, Treatment)>, Option<Waiting>) {
    let facts = observed.facts();
    let below = |kind: ResourceKind, manifest: Value| {
        let id = id_of(&facts, &manifest);
        DesiredResource { kind, id, manifest }
    };
    let treated = |resource: DesiredResource, is_always_ours: bool| {
        let treatment = treatment(observed, &resource.id, is_always_ours);
        (resource, treatment)
    };
    let mut all: Vec<_> = network::resource_groups(&facts)
        .into_iter()
        .map(|group| treated(below(ResourceKind::ResourceGroup, group), false))
        .collect();
    let network = below(ResourceKind::VirtualNetwork, network::virtual_network(&facts));
    let network_is_brought =
        state_of(&observed.states, &network.id).body().is_some() && !observed.is_ours(&network.id);
    all.push(treated(network, false));
    let subnet = below(ResourceKind::Subnet, network::subnet(&facts));
    let subnet_is_absent = state_of(&observed.states, &subnet.id).is_absent();
    if !network_is_brought || subnet_is_absent || observed.made_by_us(&subnet.id) {
        all.push((subnet, Treatment::Ensure));
    }
    let cluster_id = ids::managed_cluster(&facts);
    if observed.is_vanished(&cluster_id) && !observed.recreates() {
        return (all, Some(Waiting::Vanished { id: cluster_id }));
    }
    match desired_cluster(observed, now) {
        Ok(manifest) => all.push(treated(below(ResourceKind::ManagedCluster, manifest), true)),
        // Nothing below the cluster can be, and what is above it need not wait.
        Err(waiting) => return (all, Some(waiting)),
    }
    // An endpoint that somebody else made is used as it is; the others can only be this cluster's.
    let optional = optional(&facts).into_iter();
    all.extend(
        optional
            .map(|(kind, manifest)| treated(below(kind, manifest), kind != ResourceKind::PrivateEndpoint)),
    );
    (all, None)
}

/// The kinds of which something is kept in its desired state.
pub fn kept(observed: &Observed, now: Timestamp) -> Vec<ResourceKind> {
    let (all, _) = desired(observed, now);
    let kept = all
        .iter()
        .filter(|(_, treatment)| *treatment == Treatment::Ensure);
    kept.map(|(resource, _)| resource.kind).collect()
}

/// What a cluster may have or not have.
pub const OPTIONAL: [ResourceKind; 3] = [
    ResourceKind::PrivateEndpoint,
    ResourceKind::FleetMember,
    ResourceKind::Extension,
];

/// Whether the spec names any of an optional kind, or one that we made is still to go.
pub fn has(observed: &Observed, kind: ResourceKind) -> bool {
    let made = observed.made().any(|(_, made)| made == kind);
    made || optional(&observed.facts())
        .iter()
        .any(|(named, _)| *named == kind)
}

/// What a cluster may have besides itself: private endpoints, a place in a fleet, extensions.
fn optional(facts: &Facts<'_>) -> Vec<(ResourceKind, Value)> {
    let endpoints = network::private_endpoints(facts)
        .into_iter()
        .map(|value| (ResourceKind::PrivateEndpoint, value));
    let member = addons::fleet_member(facts).map(|value| (ResourceKind::FleetMember, value));
    let extensions = addons::extensions(facts)
        .into_iter()
        .map(|value| (ResourceKind::Extension, value));
    endpoints.chain(member).chain(extensions).collect()
}

/// Every resource a control plane asks about, but the cluster itself.
pub fn resources(facts: &Facts<'_>) -> Vec<(ResourceKind, Value)> {
    network::resource_groups(facts)
        .into_iter()
        .map(|group| (ResourceKind::ResourceGroup, group))
        .chain([
            (ResourceKind::VirtualNetwork, network::virtual_network(facts)),
            (ResourceKind::Subnet, network::subnet(facts)),
        ])
        .chain(optional(facts))
        .collect()
}

/// Whether the cluster would be created with a pool that nobody described.
pub(super) fn has_made_up_pool(observed: &Observed, now: Timestamp) -> bool {
    let template = observed
        .infrastructure
        .as_ref()
        .and_then(|cluster| cluster.spec.default_pool_template.as_ref());
    let is_system = |object: &PoolObject| object.pool.spec.class.mode == MODE_SYSTEM;
    let has_pool = observed
        .pools
        .iter()
        .any(|object| is_system(object) && pool_facts(object).is_some());
    template.is_none() && !has_pool && desired_cluster(observed, now).is_ok()
}

/// The cluster to ask for, with pools if it does not exist yet.
fn desired_cluster(observed: &Observed, now: Timestamp) -> Result<Value, Waiting> {
    let facts = observed.facts();
    let found = observed.cluster_state();
    let render = |pools: Option<&[PoolFacts<'_>]>| {
        managed_cluster(&facts, found.property("currentKubernetesVersion"), pools)
            .map_err(Waiting::ForTheUser)
    };
    // A cluster that failed before it ever came up is still being created: mended pools must reach it.
    let failed = matches!(found.provisioning_state(), Some("Failed" | "Canceled"));
    if found.body().is_some() && (observed.has_come_up() || !failed) {
        return render(None);
    }
    let pools: Vec<PoolFacts<'_>> = observed.pools.iter().filter_map(pool_facts).collect();
    if pools.iter().any(|pool| pool.class.mode == MODE_SYSTEM) {
        return render(Some(&pools));
    }
    let waiting_pool = observed.pools.iter().find(|object| {
        object.pool.spec.class.mode == MODE_SYSTEM && object.pool.metadata.deletion_timestamp.is_none()
    });
    if let Some(object) = waiting_pool {
        return Err(Waiting::ForMachinePool {
            pool: object.pool.azure_name().to_owned(),
        });
    }
    let template = observed
        .infrastructure
        .as_ref()
        .and_then(|cluster| cluster.spec.default_pool_template.as_ref());
    let inline = template.and_then(|template| template.spec.as_ref());
    if let Some(reference) = template.and_then(|template| template.machine_pool_ref.as_ref()) {
        return Err(Waiting::ForReferencedPool {
            pool: reference.name.clone(),
        });
    }
    let fallback = PoolClass {
        mode: MODE_SYSTEM.to_owned(),
        sku: DEFAULT_POOL_SIZE.to_owned(),
        ..PoolClass::default()
    };
    let class = match inline {
        Some(class) => class,
        None => {
            let created = observed
                .plane
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(now, |time| time.0);
            let until = created
                .checked_add(observed.pool_timeout)
                .unwrap_or(Timestamp::MAX);
            if now < until {
                return Err(Waiting::ForSystemPool { until });
            }
            &fallback
        }
    };
    let first = PoolFacts {
        class,
        azure_name: class
            .name
            .as_deref()
            .filter(|name| !name.is_empty())
            .unwrap_or(DEFAULT_POOL_NAME),
        replicas: template.and_then(|template| template.replicas).unwrap_or(1),
        version: None,
        existing: None,
    };
    let mut pools = pools;
    pools.retain(|pool| pool.azure_name != first.azure_name);
    pools.push(first);
    render(Some(&pools))
}

/// A pool that the cluster can be created with: one that stays, and whose MachinePool says how many nodes.
fn pool_facts(object: &PoolObject) -> Option<PoolFacts<'_>> {
    let machine_pool = object.machine_pool.as_ref()?;
    let leaves = object.pool.metadata.deletion_timestamp.is_some()
        || machine_pool.metadata.deletion_timestamp.is_some();
    (!leaves).then(|| PoolFacts {
        class: &object.pool.spec.class,
        azure_name: object.pool.azure_name(),
        replicas: machine_pool.spec.replicas.unwrap_or(1),
        version: Some(machine_pool.spec.template.spec.version.as_str()).filter(|version| !version.is_empty()),
        existing: None,
    })
}

/// The ARM id of a manifest of ours.
pub fn id_of(facts: &Facts<'_>, manifest: &Value) -> String {
    let name = manifest["spec"]["azureName"].as_str().unwrap_or_default();
    let owner = manifest["spec"]["owner"]["armId"].as_str().unwrap_or_default();
    match manifest["kind"].as_str().unwrap_or_default() {
        "ResourceGroup" => ids::resource_group(facts.subscription, name),
        "VirtualNetworksSubnet" => format!("{owner}/subnets/{name}"),
        "ManagedClustersAgentPool" => format!("{owner}/agentPools/{name}"),
        "FleetsMember" => format!("{owner}/members/{name}"),
        "VirtualNetwork" => format!("{owner}/providers/Microsoft.Network/virtualNetworks/{name}"),
        "PrivateEndpoint" => format!("{owner}/providers/Microsoft.Network/privateEndpoints/{name}"),
        "Extension" => format!("{owner}/providers/Microsoft.KubernetesConfiguration/extensions/{name}"),
        _ => format!("{owner}/providers/Microsoft.ContainerService/managedClusters/{name}"),
    }
}
