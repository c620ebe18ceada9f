//! Who may reach the API server: validation of Entra ID, local accounts, identities, keys, private clusters.

use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::STANDARD};
use regex::Regex;
use serde_json::json;
use slipway_runtime::admission::field::{FieldError, Path};

use super::ssh;
use crate::{
    admit::address::Range,
    api::{AzureManagedControlPlaneSpec, ControlPlaneClass},
};

pub const DNS_PREFIX_PATTERN: &str = "^[a-zA-Z0-9]([a-zA-Z0-9-]{0,52}[a-zA-Z0-9])?$";
pub const PRIVATE_ZONE_PROBLEM: &str = "invalid privateDnsZone resource ID. Each label the private dns zone name should be in either of these formats: 'private.<location>.azmk8s.io,privatelink.<location>.azmk8s.io,[a-zA-Z0-9-]{1,32}.private.<location>.azmk8s.io,[a-zA-Z0-9-]{1,32}.privatelink.<location>.azmk8s.io'";

static DNS_PREFIX: LazyLock<Regex> = LazyLock::new(|| Regex::new(DNS_PREFIX_PATTERN).expect("a pattern"));
static PRIVATE_ZONE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^([a-zA-Z0-9-]{1,32}\.)?(privatelink|private)\.[a-zA-Z0-9]+\.azmk8s\.io$")
        .expect("a pattern")
});

/// The key itself is never repeated in an error.
pub fn ssh_key(spec: &AzureManagedControlPlaneSpec) -> Option<FieldError> {
    let key = spec.ssh_public_key.as_deref().filter(|key| !key.is_empty())?;
    let path = Path::new("spec").child("sshPublicKey");
    let Ok(decoded) = STANDARD.decode(key) else {
        return Some(FieldError::invalid(
            &path,
            "…",
            "the SSH public key is not properly base64 encoded",
        ));
    };
    let valid = std::str::from_utf8(&decoded).is_ok_and(ssh::is_authorized_key);
    (!valid).then(|| FieldError::invalid(&path, "…", "the SSH public key is not valid"))
}

pub fn identity(root: &Path, class: &ControlPlaneClass) -> Option<FieldError> {
    let identity = class.identity.as_ref()?;
    let path = root.child("identity").child("userAssignedIdentityResourceID");
    let id = identity
        .user_assigned_identity_resource_id
        .as_deref()
        .unwrap_or_default();
    match (identity.type_.as_deref() == Some("UserAssigned"), id.is_empty()) {
        (true, true) => Some(FieldError::invalid(
            &path,
            id,
            "cannot be empty if Identity.Type is UserAssigned",
        )),
        (false, false) => Some(FieldError::invalid(
            &path,
            id,
            "should be empty if Identity.Type is SystemAssigned",
        )),
        _ => None,
    }
}

pub fn dns_prefix(spec: &AzureManagedControlPlaneSpec) -> Option<FieldError> {
    let prefix = spec.dns_prefix.as_deref()?;
    (!DNS_PREFIX.is_match(prefix)).then(|| {
        FieldError::invalid(
            &Path::new("spec").child("dnsPrefix"),
            prefix,
            format!("DNSPrefix is invalid, does not match regex: {DNS_PREFIX_PATTERN}"),
        )
    })
}

pub fn local_accounts(root: &Path, class: &ControlPlaneClass) -> Option<FieldError> {
    let disabled = class.disable_local_accounts?;
    class.aad_profile.is_none().then(|| {
        FieldError::invalid(
            &root.child("disableLocalAccounts"),
            disabled,
            "DisableLocalAccounts should be set only for AAD enabled clusters",
        )
    })
}

pub fn api_server(root: &Path, class: &ControlPlaneClass) -> Vec<FieldError> {
    let Some(profile) = &class.api_server_access_profile else {
        return Vec::new();
    };
    let path = root.child("apiServerAccessProfile");
    let mut errors: Vec<FieldError> = profile
        .authorized_ip_ranges
        .iter()
        .filter(|range| Range::parse(range).is_none())
        .map(|range| FieldError::invalid(&path, range.as_str(), "invalid CIDR format"))
        .collect();
    let zone = profile.private_dns_zone.as_deref().map(str::to_lowercase);
    let Some(zone) = zone.filter(|zone| zone != "system" && zone != "none") else {
        return errors;
    };
    let marker = "privatednszones/";
    let Some(start) = zone.find(marker) else {
        errors.push(FieldError::invalid(&path, zone, "invalid private DNS zone"));
        return errors;
    };
    if profile.enable_private_cluster != Some(true) {
        errors.push(FieldError::invalid(
            &path,
            json!(profile.enable_private_cluster),
            "Private Cluster should be enabled to use PrivateDNSZone",
        ));
        return errors;
    }
    if !PRIVATE_ZONE.is_match(&zone[start + marker.len()..]) {
        errors.push(FieldError::invalid(&path, zone.as_str(), PRIVATE_ZONE_PROBLEM));
    }
    errors
}

pub fn aad_update(root: &Path, old: &ControlPlaneClass, new: &ControlPlaneClass) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let path = root.child("aadProfile");
    match (&old.aad_profile, &new.aad_profile) {
        (Some(_), None) => {
            errors.push(FieldError::invalid(
                &path,
                json!(null),
                "field cannot be nil, cannot disable AADProfile",
            ));
        }
        (Some(old), Some(new)) => {
            if old.managed && !new.managed {
                errors.push(FieldError::invalid(
                    &path.child("managed"),
                    false,
                    "cannot set AADProfile.Managed to false",
                ));
            }
            if new.admin_group_object_ids.is_empty() {
                errors.push(FieldError::invalid(
                    &path.child("adminGroupObjectIDs"),
                    json!(new.admin_group_object_ids),
                    "length of AADProfile.AdminGroupObjectIDs cannot be zero",
                ));
            }
        }
        (None, _) => {}
    }
    errors
}
