//! The plan for a control plane: create with pools, update, delete in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::Value;
use slipway_azure::{
    ownership::Foreign,
    reconcile::{ResourceKind, ResourceState, state_of},
};
use slipway_capi::{marks::is_deleted_for_move, view::MachinePool};

use super::{Action, DesiredResource, Plan, Waiting};
use crate::{
    admit::cluster::DEFAULT_POOL_NAME,
    api::{AzureManagedCluster, AzureManagedControlPlane, AzureManagedMachinePool, MODE_SYSTEM, PoolClass},
    render::{Facts, PoolFacts, RenderError, addons, ids, managed_cluster, network, tags},
};

/// The virtual machine size of a pool nobody described: small, and in every region.
pub const DEFAULT_POOL_SIZE: &str = "Standard_D2s_v3";
/// Lets a vanished AKS cluster be created again.
pub const RECREATE: &str = "slipway.dev/recreate";
/// Where every AKS API server answers.
const PORT: i32 = 443;

/// A pool object and the MachinePool that owns it.
#[derive(Clone, Debug, Default)]
pub struct PoolObject {
    pub pool: AzureManagedMachinePool,
    pub machine_pool: Option<MachinePool>,
}

/// What the plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub plane: AzureManagedControlPlane,
    pub cluster_name: String,
    /// The spec's subscription, or that of the identity.
    pub subscription: String,
    pub services: Vec<String>,
    pub pods: Vec<String>,
    pub infrastructure: Option<AzureManagedCluster>,
    pub pools: Vec<PoolObject>,
    /// What is in Azure, by id in lower case.
    pub states: BTreeMap<String, ResourceState>,
    /// What we made in Azure, by id in lower case.
    pub made: BTreeMap<String, ResourceKind>,
    /// What belongs to another, by id in lower case.
    pub foreign: BTreeMap<String, Foreign>,
    /// What was there and is gone, though nothing here deleted it, by id in lower case.
    pub vanished: BTreeSet<String>,
    /// How long to wait for a pool object before a default pool is made.
    pub pool_timeout: Duration,
}

impl Observed {
    pub fn facts(&self) -> Facts<'_> {
        Facts {
            plane: &self.plane,
            cluster_name: &self.cluster_name,
            subscription: &self.subscription,
            services: self.services.first().map(String::as_str),
            pods: self.pods.first().map(String::as_str),
        }
    }

    pub fn cluster_state(&self) -> &ResourceState {
        state_of(&self.states, &ids::managed_cluster(&self.facts()))
    }

    fn is_ours(&self, id: &str) -> bool {
        tags::is_owned(&state_of(&self.states, id).tags(), &self.cluster_name) && self.foreign(id).is_none()
    }

    /// Why a resource is another's.
    pub fn foreign(&self, id: &str) -> Option<&Foreign> {
        self.foreign.get(&id.to_lowercase())
    }

    /// The wait for whoever owns a resource.
    fn owned_by_another(&self, id: &str) -> Option<Waiting> {
        self.foreign(id).map(|foreign| Waiting::OwnedByAnother {
            id: id.to_owned(),
            foreign: foreign.clone(),
        })
    }

    /// Whether the user asked for a vanished AKS cluster to be created again, empty.
    fn recreates(&self) -> bool {
        let annotations = self.plane.metadata.annotations.as_ref();
        annotations.is_some_and(|all| all.get(RECREATE).is_some_and(|value| value == "true"))
    }

    fn made_by_us(&self, id: &str) -> bool {
        self.made.contains_key(&id.to_lowercase()) && self.foreign(id).is_none()
    }

    /// Whether AKS has ever brought the cluster up: it says so, or it said so when the endpoint was stored.
    pub fn has_come_up(&self) -> bool {
        let found = self.cluster_state();
        found.body().is_some()
            && (self.plane.spec.control_plane_endpoint.is_some()
                || found.provisioning_state() == Some("Succeeded"))
    }
}

/// The name under which AKS shows the API server: the private one where there is no public one.
pub fn endpoint(plane: &AzureManagedControlPlane, cluster: &ResourceState) -> Option<(String, i32)> {
    let profile = plane.spec.class.api_server_access_profile.as_ref();
    let private = profile.is_some_and(|profile| {
        profile.enable_private_cluster == Some(true)
            && profile.enable_private_cluster_public_fqdn != Some(true)
    });
    let names = if private {
        ["privateFQDN", "fqdn"]
    } else {
        ["fqdn", "privateFQDN"]
    };
    let host = names.iter().find_map(|name| cluster.property(name))?;
    Some((host.to_owned(), PORT))
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    if observed.plane.metadata.deletion_timestamp.is_some() {
        return delete(observed);
    }
    let facts = observed.facts();
    // Another's cluster is left alone with all that is around it, its kubeconfig included.
    let cluster_id = ids::managed_cluster(&facts);
    if let Some(waiting) = observed.owned_by_another(&cluster_id) {
        return vec![Action::Wait(waiting)];
    }
    let mut plan = Plan::new();
    let below = |kind: ResourceKind, manifest: Value| -> DesiredResource {
        let id = id_of(&facts, &manifest);
        DesiredResource { kind, id, manifest }
    };
    // Who runs the cluster's workloads keeps its kubeconfig, whatever becomes of the next change.
    if observed.has_come_up()
        && let Some((host, port)) = endpoint(&observed.plane, observed.cluster_state())
    {
        let known = observed.plane.spec.control_plane_endpoint.as_ref();
        if known.is_none_or(|known| known.host != host || known.port != port) {
            plan.push(Action::SetEndpoint { host, port });
        }
        plan.push(Action::WriteKubeconfigs);
    }
    for group in network::resource_groups(&facts) {
        push_if_ours(
            observed,
            &mut plan,
            below(ResourceKind::ResourceGroup, group),
            false,
        );
    }
    let network = below(ResourceKind::VirtualNetwork, network::virtual_network(&facts));
    let network_is_brought =
        state_of(&observed.states, &network.id).body().is_some() && !observed.is_ours(&network.id);
    push_if_ours(observed, &mut plan, network, false);
    let subnet = below(ResourceKind::Subnet, network::subnet(&facts));
    let subnet_is_absent = state_of(&observed.states, &subnet.id).is_absent();
    if !network_is_brought || subnet_is_absent || observed.made_by_us(&subnet.id) {
        push(observed, &mut plan, subnet);
    }
    if observed.vanished.contains(&cluster_id.to_lowercase()) && !observed.recreates() {
        plan.push(Action::Wait(Waiting::Vanished { id: cluster_id }));
        return plan;
    }
    let cluster = match desired_cluster(observed, now) {
        Ok(manifest) => below(ResourceKind::ManagedCluster, manifest),
        Err(waiting) => {
            // Nothing below the cluster can be, and what is above it need not wait.
            plan.push(Action::Wait(waiting));
            return plan;
        }
    };
    push_if_ours(observed, &mut plan, cluster, true);
    let mut desired = Vec::new();
    for (kind, manifest) in optional(&facts) {
        let resource = below(kind, manifest);
        desired.push(resource.id.to_lowercase());
        // An endpoint that somebody else made is used as it is; the others can only be this cluster's.
        push_if_ours(
            observed,
            &mut plan,
            resource,
            kind != ResourceKind::PrivateEndpoint,
        );
    }
    // What the spec no longer names goes, if we made it.
    for (id, kind) in &observed.made {
        if OPTIONAL.contains(kind) && !desired.contains(id) {
            push_deletion(observed, &mut plan, *kind, id.clone(), true);
        }
    }
    plan
}

/// What a cluster may have or not have.
pub const OPTIONAL: [ResourceKind; 3] = [
    ResourceKind::PrivateEndpoint,
    ResourceKind::FleetMember,
    ResourceKind::Extension,
];

/// Whether the spec names any of an optional kind, or one that we made is still to go.
pub fn has(observed: &Observed, kind: ResourceKind) -> bool {
    let made = observed.made.values().any(|made| *made == kind);
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

fn push_deletion(observed: &Observed, plan: &mut Plan, kind: ResourceKind, id: String, ours: bool) {
    match state_of(&observed.states, &id) {
        ResourceState::Unknown => plan.push(Action::Wait(Waiting::ForAzure { id })),
        ResourceState::Present(_) if ours && observed.foreign(&id).is_none() => {
            plan.push(Action::Delete { kind, id });
        }
        // Gone, but still on our list: deleting it again takes it off.
        ResourceState::Absent if observed.plane.metadata.deletion_timestamp.is_none() && ours => {
            plan.push(Action::Delete { kind, id });
        }
        ResourceState::Absent | ResourceState::Present(_) => {}
    }
}

/// A resource is made, or made again after its loss was reported.
fn push(observed: &Observed, plan: &mut Plan, desired: DesiredResource) {
    if observed.vanished.contains(&desired.id.to_lowercase()) {
        let DesiredResource { kind, id, .. } = desired;
        plan.push(Action::AcceptVanished { kind, id });
    } else {
        plan.push(Action::Ensure(desired));
    }
}

/// A resource that exists and is not marked as ours is used as it is, unless it can only be ours.
fn push_if_ours(observed: &Observed, plan: &mut Plan, desired: DesiredResource, always_ours: bool) {
    match state_of(&observed.states, &desired.id) {
        ResourceState::Unknown => plan.push(Action::Wait(Waiting::ForAzure { id: desired.id })),
        ResourceState::Absent => push(observed, plan, desired),
        ResourceState::Present(_) if always_ours && observed.foreign(&desired.id).is_some() => {
            plan.extend(observed.owned_by_another(&desired.id).map(Action::Wait));
        }
        ResourceState::Present(_) if always_ours || observed.is_ours(&desired.id) => {
            plan.push(Action::Ensure(desired));
        }
        ResourceState::Present(_) => {}
    }
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

/// Deletion in the opposite order, of what is ours and there. What is brought stays.
fn delete(observed: &Observed) -> Plan {
    if is_deleted_for_move(&observed.plane.metadata) {
        return vec![Action::RemoveFinalizer];
    }
    let facts = observed.facts();
    let mut plan = Plan::new();
    let mut steps: Vec<(ResourceKind, String, bool)> = resources(&facts)
        .into_iter()
        .map(|(kind, manifest)| {
            let id = id_of(&facts, &manifest);
            let ours = match kind {
                ResourceKind::ResourceGroup
                | ResourceKind::VirtualNetwork
                | ResourceKind::PrivateEndpoint => observed.is_ours(&id),
                ResourceKind::Subnet => {
                    observed.made_by_us(&id) || observed.is_ours(&ids::virtual_network(&facts))
                }
                // The others are parts of the cluster, and go or stay with it.
                _ => observed.foreign(&ids::managed_cluster(&facts)).is_none(),
            };
            (kind, id, ours)
        })
        .collect();
    for (id, kind) in &observed.made {
        if OPTIONAL.contains(kind) && !steps.iter().any(|(_, known, _)| known.eq_ignore_ascii_case(id)) {
            steps.push((*kind, id.clone(), true));
        }
    }
    // A manifest that cannot be made must not keep the cluster from being deleted: only its id is needed.
    steps.push((ResourceKind::ManagedCluster, ids::managed_cluster(&facts), true));
    steps.sort_by_key(|(kind, ..)| *kind);
    for (kind, id, ours) in steps.into_iter().rev() {
        push_deletion(observed, &mut plan, kind, id, ours);
    }
    if plan.is_empty() {
        plan.push(Action::RemoveFinalizer);
    }
    plan
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

impl From<RenderError> for Waiting {
    fn from(error: RenderError) -> Self {
        Self::ForTheUser(error)
    }
}
