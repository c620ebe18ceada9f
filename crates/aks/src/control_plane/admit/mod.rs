//! Admission of AzureManagedControlPlanes: what must hold whenever one is written, and the handlers that fetch the facts.

pub mod access;
pub mod autoscaler;
pub mod defaults;
pub mod extension;
pub mod network;
pub mod security;
pub mod ssh;
pub mod update;
pub mod upgrades;

use std::{collections::BTreeSet, sync::LazyLock};

use kube::{Api, Client, Resource, ResourceExt};
use regex::Regex;
use slipway_capi::{topology, view::Cluster};
use slipway_runtime::admission::{
    Admission, Change, Verdict,
    field::{FieldError, Path},
};

use crate::{
    admit::{
        existing,
        handler::{CREATE_UPDATE, cluster_key, is_leaving, new_errors, validating_with},
        names, patches,
    },
    api::{AzureManagedControlPlane, ControlPlaneClass, FleetMember},
};

/// What validation of a control plane must know of its Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterNetworkFact {
    /// The object names no Cluster.
    NoCluster,
    /// The Cluster cannot be read.
    Unreadable(String),
    /// The ranges of services and pods.
    Known {
        services: Vec<String>,
        pods: Vec<String>,
    },
}

pub const MEMBER_PATTERN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
const CLOUDS: &[&str] = &["AzurePublicCloud", "AzureChinaCloud", "AzureUSGovernmentCloud"];

static VERSION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)([-0-9a-zA-Z_\.+]*)?$")
        .expect("a pattern")
});
static MEMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(MEMBER_PATTERN).expect("a pattern"));
static CLUSTER_NAME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("^[a-zA-Z0-9]([-_a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$").expect("a pattern"));

/// Everything a control plane must fulfil whenever it is written.
pub fn validate(plane: &AzureManagedControlPlane, fact: &ClusterNetworkFact) -> Vec<FieldError> {
    let root = Path::new("spec");
    let class = &plane.spec.class;
    let mut errors = Vec::new();
    errors.extend(access::ssh_key(&plane.spec));
    errors.extend(access::identity(&root, class));
    errors.extend(network::plugin_mode(&root, class));
    errors.extend(access::dns_prefix(&plane.spec));
    errors.extend(access::local_accounts(&root, class));
    errors.extend(shared(&root, class, &plane.name_any(), fact));
    errors.extend(fleet_member(&root, class.fleets_member.as_ref()));
    // Not of a template, where a class's patches may still have to put the words.
    errors.extend(names::place(&root, class));
    errors.extend(names::group(
        &root.child("resourceGroupName"),
        &class.resource_group_name,
        90,
    ));
    errors.extend(names::group(
        &root.child("nodeResourceGroupName"),
        plane.spec.node_resource_group_name.as_deref().unwrap_or_default(),
        80,
    ));
    errors
}

/// What AKS asks of the name of a new cluster. Not asked of one that exists.
pub fn validate_name(plane: &AzureManagedControlPlane) -> Option<FieldError> {
    let name = plane.name_any();
    (!CLUSTER_NAME.is_match(&name)).then(|| {
        FieldError::invalid(
            &Path::new("metadata").child("name"),
            name,
            "must be a name that AKS takes: up to 63 letters, digits, '-' and '_', beginning and ending with a letter or digit",
        )
    })
}

/// What control planes and their templates must fulfil.
pub(crate) fn shared(
    root: &Path,
    class: &ControlPlaneClass,
    name: &str,
    fact: &ClusterNetworkFact,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !VERSION.is_match(&class.version) {
        errors.push(FieldError::invalid(
            &root.child("version"),
            class.version.as_str(),
            "must be a valid semantic version",
        ));
    }
    errors.extend(network::load_balancer(root, class));
    errors.extend(network::cluster_network(root, class, fact));
    let lower = name.to_lowercase();
    if lower.contains("microsoft") || lower.contains("windows") {
        errors.push(FieldError::invalid(
            &Path::new("metadata").child("name"),
            name,
            "cluster name is invalid because 'MICROSOFT' and 'WINDOWS' can't be used as either a whole word or a substring in the name",
        ));
    }
    errors.extend(autoscaler::validate(root, class));
    errors.extend(extension::validate(&root.child("extensions"), &class.extensions));
    errors.extend(security::validate(root, class));
    errors.extend(network::policy_and_dataplane(root, class));
    errors.extend(access::api_server(root, class));
    errors.extend(network::virtual_network(root, class));
    errors.extend(patches::validate(
        &root.child("asoManagedClusterPatches"),
        &class.aso_managed_cluster_patches,
    ));
    let mut addons = BTreeSet::new();
    for (index, addon) in class.addon_profiles.iter().enumerate() {
        if !addons.insert(&addon.name) {
            let path = root.child("addonProfiles").index(index).child("name");
            errors.push(FieldError::duplicate(&path, addon.name.as_str()));
        }
    }
    let cloud = class.azure_environment.as_deref().unwrap_or_default();
    if !cloud.is_empty() && !CLOUDS.contains(&cloud) {
        errors.push(FieldError::not_supported(
            &root.child("azureEnvironment"),
            cloud,
            CLOUDS,
        ));
    }
    errors
}

fn fleet_member(root: &Path, member: Option<&FleetMember>) -> Option<FieldError> {
    let name = member?.name.as_deref().filter(|name| !name.is_empty())?;
    (!MEMBER.is_match(name)).then(|| {
        FieldError::invalid(
            &root.child("fleetsMember").child("name"),
            name,
            format!("Name must match {MEMBER_PATTERN}"),
        )
    })
}

pub fn verdict(
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
        Some(old) => update::validate(old, new, existing::of_control_plane(old)),
        None => validate_name(new).into_iter().collect(),
    };
    if errors.is_empty() {
        errors = new_errors(change, |plane| validate(plane, fact));
    }
    let warnings = change
        .old
        .as_ref()
        .and_then(|old| upgrades::warning(old, new))
        .into_iter()
        .collect();
    Verdict::from_errors(errors, warnings)
}

/// The ranges of the Cluster that an object belongs to.
pub(crate) async fn network_of<K: Resource<DynamicType = ()>>(
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

pub fn defaulting() -> Admission {
    Admission::defaulting::<AzureManagedControlPlane>(|new, old| {
        defaults::control_plane(new, old, ssh::generate);
    })
}

pub fn validating() -> Admission {
    validating_with::<AzureManagedControlPlane, _>(CREATE_UPDATE, |request, change, client| async move {
        let fact = network_of(change.new.as_ref(), &client).await;
        verdict(&change, &fact, topology::is_dry_run(&request))
    })
}
