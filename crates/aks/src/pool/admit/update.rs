//! What of a pool cannot change, and when a system pool may go.

use serde_json::json;
use slipway_runtime::admission::field::{FieldError, Path};

use super::OtherSystemPools;
use crate::{
    admit::{
        existing::Existing,
        immutable::{CHANGED, immutable, immutable_fields, unless_before},
    },
    api::{MODE_SYSTEM, PoolClass},
};

/// Fields that AKS fixes when a pool is made.
pub const FIXED: &[&str] = &[
    "name",
    "osType",
    "sku",
    "osDiskSizeGB",
    "maxPods",
    "osDiskType",
    "scaleSetPriority",
    "enableUltraSSD",
    "enableNodePublicIP",
    "nodePublicIPPrefixID",
    "kubeletConfig",
    "kubeletDiskType",
    "linuxOSConfig",
];

/// Fields that cannot change once they are set.
pub const FIXED_ONCE_SET: &[&str] = &["subnetName", "enableFIPS", "enableEncryptionAtHost"];

pub const LAST_SYSTEM_POOL: &str = "AKS Cluster must have at least one system pool";
pub const MODE_PROBLEM: &str =
    "Cannot change node pool mode to User, you must have at least one System node pool in your cluster";

pub const ENCRYPTION_PROBLEM: &str =
    "cannot be enabled on a node pool that exists, create another pool with it";

/// What a change of a pool that exists breaks and the pool before did not: its own rules, and what cannot change.
pub fn validate(root: &Path, old: &PoolClass, new: &PoolClass, others: &OtherSystemPools) -> Vec<FieldError> {
    let mut errors = changed(root, old, new, others);
    errors.extend(unless_before(state(root, new), &state(root, old)));
    errors
}

/// The same of a pool that may not exist yet, and then may become any other.
pub fn validate_pool(
    root: &Path,
    (old, new): (&PoolClass, &PoolClass),
    object_name: &str,
    existing: Existing,
    others: &OtherSystemPools,
) -> Vec<FieldError> {
    if existing == Existing::Made {
        return validate(root, old, new, others);
    }
    unless_before(
        super::validate(root, new, object_name),
        &super::validate(root, old, object_name),
    )
}

fn state(root: &Path, class: &PoolClass) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = super::node_labels(root, class).into_iter().collect();
    errors.extend(super::always(root, class));
    errors
}

fn changed(root: &Path, old: &PoolClass, new: &PoolClass, others: &OtherSystemPools) -> Vec<FieldError> {
    let mut errors = immutable_fields(root, FIXED, old, new);
    let (old_json, new_json) = (json!(old), json!(new));
    for name in FIXED_ONCE_SET {
        if !old_json[*name].is_null() {
            errors.extend(immutable(&root.child(name), &old_json[*name], &new_json[*name]));
        }
    }
    if old.enable_encryption_at_host.is_none() && new.enable_encryption_at_host == Some(true) {
        // Let in, AKS would refuse it and nothing could take it back.
        errors.push(FieldError::invalid(
            &root.child("enableEncryptionAtHost"),
            true,
            ENCRYPTION_PROBLEM,
        ));
    }
    let sorted = |class: &PoolClass| {
        let mut zones = class.availability_zones.clone();
        zones.sort();
        zones
    };
    if sorted(old) != sorted(new) {
        errors.push(FieldError::invalid(
            &root.child("availabilityZones"),
            json!(new.availability_zones),
            CHANGED,
        ));
    }
    if old.mode == MODE_SYSTEM && new.mode != MODE_SYSTEM && keeps_last_system_pool(others).is_err() {
        errors.push(FieldError::forbidden(&root.child("mode"), MODE_PROBLEM));
    }
    errors
}

/// Whether a system pool may stop being one.
pub fn keeps_last_system_pool(others: &OtherSystemPools) -> Result<(), String> {
    match others {
        OtherSystemPools::Unreadable(problem) => Err(problem.clone()),
        OtherSystemPools::Count(0) => Err(format!(
            "{LAST_SYSTEM_POOL}; delete the Cluster to delete them all, or add another system pool first. If the delete was triggered via the owner MachinePool, it goes on by itself once another system pool exists"
        )),
        OtherSystemPools::NotNeeded | OtherSystemPools::Count(_) => Ok(()),
    }
}
