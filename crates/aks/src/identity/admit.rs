//! Validation of AzureClusterIdentities.

use slipway_runtime::admission::{
    Admission, Change, Verdict,
    field::{FieldError, Path},
};

use crate::{
    admit::{
        handler::{CREATE_UPDATE, new_errors},
        immutable::immutable,
    },
    api::AzureClusterIdentity,
};

pub fn validate(identity: &AzureClusterIdentity) -> Vec<FieldError> {
    let spec = &identity.spec;
    let root = Path::new("spec");
    let set = |value: &Option<String>| value.as_deref().is_some_and(|value| !value.is_empty());
    let mut errors = Vec::new();
    if spec.type_ != "UserAssignedMSI" && set(&spec.resource_id) {
        let id = spec.resource_id.clone().unwrap_or_default();
        errors.push(FieldError::forbidden(&root.child("resourceID"), id));
    }
    let path = &spec.user_assigned_identity_credentials_path;
    let cloud = &spec.user_assigned_identity_credentials_cloud_type;
    if spec.type_ != "UserAssignedIdentityCredential" && (set(path) || set(cloud)) {
        for (name, value) in [
            ("userAssignedIdentityCredentialsPath", path),
            ("userAssignedIdentityCredentialsCloudType", cloud),
        ] {
            let value = value.as_deref().unwrap_or_default();
            errors.push(FieldError::forbidden(
                &root.child(name),
                format!("{value} can only be set when AzureClusterIdentity is of type UserAssignedIdentityCredential"),
            ));
        }
    }
    errors
}

pub fn validate_update(old: &AzureClusterIdentity, new: &AzureClusterIdentity) -> Option<FieldError> {
    immutable(&Path::new("spec").child("type"), &old.spec.type_, &new.spec.type_)
}

pub fn verdict(change: &Change<AzureClusterIdentity>) -> Verdict {
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    let mut errors: Vec<FieldError> = change
        .old
        .as_ref()
        .and_then(|old| validate_update(old, new))
        .into_iter()
        .collect();
    if errors.is_empty() {
        errors = new_errors(change, validate);
    }
    Verdict::from_errors(errors, Vec::new())
}

pub fn validating() -> Admission {
    Admission::validating::<AzureClusterIdentity>(CREATE_UPDATE, verdict)
}
