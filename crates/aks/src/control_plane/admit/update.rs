//! What of a control plane cannot change, or only in one direction.

use kube::ResourceExt;
use serde_json::{Value, json};
use slipway_runtime::admission::field::{FieldError, Path};

use super::{access::aad_update, extension, security};
use crate::{
    admit::{
        existing::Existing,
        immutable::{immutable, immutable_fields},
    },
    api::{AzureManagedControlPlane, ControlPlaneClass, PrivateEndpoint},
    version,
};

/// Fields that AKS, or the place where everything lives, fixes at creation.
pub const FIXED: &[&str] = &[
    "subscriptionID",
    "resourceGroupName",
    "nodeResourceGroupName",
    "location",
    "sshPublicKey",
    "dnsServiceIP",
    "networkPlugin",
    "networkPolicy",
    "networkDataplane",
    "loadBalancerSKU",
    "httpProxyConfig",
    "azureEnvironment",
    "outboundType",
];

/// Of these, what says where things are: fixed as soon as a resource group or a network is there.
pub const PLACE: &[&str] = &[
    "subscriptionID",
    "resourceGroupName",
    "location",
    "azureEnvironment",
];

/// The parts of the virtual network that cannot change: where, and what the message calls them.
const NETWORK: &[(&str, &str)] = &[
    ("name", "Virtual Network Name is immutable"),
    ("cidrBlock", "Virtual Network CIDRBlock is immutable"),
    ("subnet.name", "Subnet Name is immutable"),
    ("subnet.cidrBlock", "Subnet CIDRBlock is immutable"),
    ("resourceGroup", "Virtual Network Resource Group is immutable"),
];

pub(crate) fn virtual_network(
    root: &Path,
    old: &ControlPlaneClass,
    new: &ControlPlaneClass,
    parts: &[&str],
) -> Vec<FieldError> {
    let (old, new) = (json!(old.virtual_network), json!(new.virtual_network));
    let at = |value: &Value, part: &str| -> Value {
        value
            .pointer(&format!("/{}", part.replace('.', "/")))
            .cloned()
            .unwrap_or_else(|| json!(""))
    };
    NETWORK
        .iter()
        .filter(|(part, _)| parts.contains(part) && at(&old, part) != at(&new, part))
        .map(|(part, problem)| {
            FieldError::invalid(
                &root.child("virtualNetwork").child(part),
                at(&new, part),
                *problem,
            )
        })
        .collect()
}

/// An endpoint stays where it is.
fn endpoint_locations(root: &Path, old: &ControlPlaneClass, new: &ControlPlaneClass) -> Vec<FieldError> {
    let path = root
        .child("virtualNetwork")
        .child("subnet")
        .child("privateEndpoints");
    let location = |class: &ControlPlaneClass, endpoint: &PrivateEndpoint| {
        endpoint
            .location
            .clone()
            .filter(|location| !location.is_empty())
            .unwrap_or_else(|| class.location.clone())
    };
    let before = &old.virtual_network.subnet.private_endpoints;
    new.virtual_network
        .subnet
        .private_endpoints
        .iter()
        .enumerate()
        .filter_map(|(index, endpoint)| {
            let known = before.iter().find(|known| known.name == endpoint.name)?;
            immutable(
                &path.index(index).child("location"),
                &location(old, known),
                &location(new, endpoint),
            )
        })
        .collect()
}

/// How the API server is reached, without its ranges, which may change.
pub(crate) fn network_access(class: &ControlPlaneClass) -> (Option<bool>, Option<String>, Option<bool>) {
    class
        .api_server_access_profile
        .as_ref()
        .map_or((None, None, None), |profile| {
            (
                profile.enable_private_cluster,
                profile.private_dns_zone.clone(),
                profile.enable_private_cluster_public_fqdn,
            )
        })
}

/// A version below the one that AKS runs. The wish before is nothing to go back from: AKS may have refused it.
fn downgraded(
    root: &Path,
    old: &AzureManagedControlPlane,
    new: &AzureManagedControlPlane,
) -> Option<FieldError> {
    let desired = new.spec.class.version.as_str();
    let runs = old
        .status
        .as_ref()
        .and_then(|status| status.version.as_deref())
        .filter(|version| !version.is_empty());
    match runs {
        None => version_update(root, &old.spec.class, &new.spec.class),
        Some(runs) => (desired != old.spec.class.version
            && version::compare(desired, runs) == std::cmp::Ordering::Less)
            .then(|| {
                FieldError::invalid(
                    &root.child("version"),
                    desired,
                    format!("field version cannot be downgraded: AKS runs {runs}"),
                )
            }),
    }
}

pub(crate) fn version_update(
    root: &Path,
    old: &ControlPlaneClass,
    new: &ControlPlaneClass,
) -> Option<FieldError> {
    (version::newer(&new.version, &old.version) != new.version).then(|| {
        FieldError::invalid(
            &root.child("version"),
            new.version.as_str(),
            "field version cannot be downgraded",
        )
    })
}

pub fn validate(
    old: &AzureManagedControlPlane,
    new: &AzureManagedControlPlane,
    existing: Existing,
) -> Vec<FieldError> {
    let root = Path::new("spec");
    let (old_class, new_class) = (&old.spec.class, &new.spec.class);
    let all: Vec<&str> = NETWORK.iter().map(|(part, _)| *part).collect();
    match existing {
        Existing::Nothing => return Vec::new(),
        Existing::Surroundings => {
            let mut errors = immutable_fields(&root, PLACE, &old.spec, &new.spec);
            errors.extend(virtual_network(&root, old_class, new_class, &all));
            return errors;
        }
        Existing::Made => {}
    }
    let mut errors = immutable_fields(&root, FIXED, &old.spec, &new.spec);
    if let Some(prefix) = &new.spec.dns_prefix {
        // Controllers before the field was defaulted left it out and AKS took the name.
        let before = old.spec.dns_prefix.clone().unwrap_or_else(|| old.name_any());
        errors.extend(immutable(&root.child("dnsPrefix"), &before, prefix));
    }
    errors.extend(virtual_network(&root, old_class, new_class, &all));
    errors.extend(endpoint_locations(&root, old_class, new_class));
    for (index, addon) in old_class.addon_profiles.iter().enumerate() {
        if !new_class
            .addon_profiles
            .iter()
            .any(|kept| kept.name == addon.name)
        {
            errors.push(FieldError::invalid(
                &root.child("addonProfiles"),
                json!(new_class.addon_profiles),
                format!(
                    "cannot remove addonProfile {}, To disable this AddonProfile, update Spec.AddonProfiles[{index}].Enabled to false",
                    addon.name
                ),
            ));
        }
    }
    if network_access(old_class) != network_access(new_class) {
        errors.push(FieldError::invalid(
            &root.child("apiServerAccessProfile"),
            json!(new_class.api_server_access_profile),
            "fields (except for AuthorizedIPRanges) are immutable",
        ));
    }
    let overlay = |class: &ControlPlaneClass| class.network_plugin_mode.as_deref() == Some("overlay");
    if !overlay(old_class) && overlay(new_class) && old_class.network_policy.is_some() {
        errors.push(FieldError::forbidden(
            &root.child("networkPluginMode"),
            "\"overlay\" NetworkPluginMode cannot be enabled when NetworkPolicy is set",
        ));
    }
    if overlay(old_class) && !overlay(new_class) {
        // AKS has no way back.
        errors.push(FieldError::forbidden(
            &root.child("networkPluginMode"),
            "\"overlay\" NetworkPluginMode cannot be disabled",
        ));
    }
    errors.extend(aad_update(&root, old_class, new_class));
    errors.extend(local_accounts(&root, old_class, new_class));
    errors.extend(upgrade_channel(&root, old_class, new_class));
    errors.extend(downgraded(&root, old, new));
    errors.extend(auto_upgraded(&root, old, new));
    let issuer = |class: &ControlPlaneClass| {
        class
            .oidc_issuer_profile
            .as_ref()
            .and_then(|issuer| issuer.enabled)
    };
    if issuer(old_class) == Some(true) && issuer(new_class) != Some(true) {
        errors.push(FieldError::forbidden(
            &root.child("oidcIssuerProfile").child("enabled"),
            "cannot be disabled",
        ));
    }
    if let (Some(old), Some(new)) = (&old_class.fleets_member, &new_class.fleets_member)
        && old.name.as_deref().is_some_and(|name| !name.is_empty())
        && old.name != new.name
    {
        errors.push(FieldError::forbidden(
            &root.child("fleetsMember").child("name"),
            "Name is immutable",
        ));
    }
    errors.extend(extension::validate_update(
        &root,
        &old_class.extensions,
        &new_class.extensions,
    ));
    errors.extend(security::validate_update(&root, old_class, new_class));
    errors
}

fn local_accounts(root: &Path, old: &ControlPlaneClass, new: &ControlPlaneClass) -> Option<FieldError> {
    let path = root.child("disableLocalAccounts");
    match (old.disable_local_accounts, new.disable_local_accounts) {
        (None, Some(disabled)) if new.aad_profile.is_none() => Some(FieldError::invalid(
            &path,
            disabled,
            "DisableLocalAccounts can be set only for AAD enabled clusters",
        )),
        (Some(before), after) => immutable(&path, &before, &after),
        _ => None,
    }
}

fn upgrade_channel(root: &Path, old: &ControlPlaneClass, new: &ControlPlaneClass) -> Option<FieldError> {
    let channel = |class: &ControlPlaneClass| {
        class
            .auto_upgrade_profile
            .as_ref()
            .and_then(|profile| profile.upgrade_channel.clone())
    };
    let before = channel(old)?;
    channel(new).is_none().then(|| {
        FieldError::invalid(
            &root.child("autoUpgradeProfile").child("upgradeChannel"),
            before,
            "field cannot be set to nil, to disable auto upgrades set the channel to none.",
        )
    })
}

fn auto_upgraded(
    root: &Path,
    old: &AzureManagedControlPlane,
    new: &AzureManagedControlPlane,
) -> Option<FieldError> {
    let reached = old
        .status
        .as_ref()?
        .auto_upgrade_version
        .as_deref()
        .filter(|version| !version.is_empty())?;
    let desired = new.spec.class.version.as_str();
    (desired != old.spec.class.version && version::newer(desired, reached) != desired).then(|| {
        FieldError::invalid(
            &root.child("version"),
            desired,
            format!("version is auto-upgraded to {reached}, cannot be downgraded"),
        )
    })
}
