//! Validation of AzureManagedControlPlanes and their templates.

use std::{collections::BTreeSet, sync::LazyLock};

use kube::ResourceExt;
use regex::Regex;
use slipway_runtime::admission::field::{FieldError, Path};

use super::{ClusterNetworkFact, access, autoscaler, extension, names, network, patches, security};
use crate::api::{
    AzureManagedControlPlane, AzureManagedControlPlaneTemplate, ControlPlaneClass, FleetMember,
};

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
    errors.extend(shared(
        &root,
        class,
        &plane.name_any(),
        fact,
        &root.child("aksExtensions"),
    ));
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

/// Everything a template must fulfil whenever it is written.
pub fn validate_template(
    template: &AzureManagedControlPlaneTemplate,
    fact: &ClusterNetworkFact,
) -> Vec<FieldError> {
    let root = Path::new("spec").child("template").child("spec");
    let class = &template.spec.template.spec;
    let mut errors = Vec::new();
    errors.extend(access::identity(&root, class));
    errors.extend(network::plugin_mode(&root, class));
    errors.extend(access::local_accounts(&root, class));
    errors.extend(shared(
        &root,
        class,
        &template.name_any(),
        fact,
        &Path::new("spec").child("extensions"),
    ));
    errors
}

fn shared(
    root: &Path,
    class: &ControlPlaneClass,
    name: &str,
    fact: &ClusterNetworkFact,
    extensions: &Path,
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
            &Path::new("name").child("Name"),
            name,
            "cluster name is invalid because 'MICROSOFT' and 'WINDOWS' can't be used as either a whole word or a substring in the name",
        ));
    }
    errors.extend(autoscaler::validate(root, class));
    errors.extend(extension::validate(extensions, &class.extensions));
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
            &root.child("fleetsMember").child("Name"),
            name,
            format!("Name must match {MEMBER_PATTERN}"),
        )
    })
}
