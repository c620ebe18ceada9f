//! Validation of EdgeMachine and its template. Image and selector may change while a machine lives, as updates in place need it:
//! Cluster API takes a refusal for "replace the machine".

use slipway_capi::topology;
use slipway_runtime::admission::{
    Change, Verdict,
    field::{FieldError, Path},
};

use super::{
    api::{EdgeMachine, EdgeMachineSpec, EdgeMachineTemplate},
    provider_id::ProviderId,
};
use crate::selector;

pub fn validate(change: &Change<EdgeMachine>) -> Verdict {
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    let path = Path::new("spec");
    let mut errors = spec_errors(&new.spec, &path);
    if let Some(old) = &change.old {
        let given = |id: &Option<String>| id.clone().filter(|id| !id.is_empty());
        if given(&old.spec.provider_id).is_some() {
            if given(&old.spec.provider_id) != given(&new.spec.provider_id) {
                errors.push(FieldError::forbidden(
                    &path.child("providerID"),
                    "cannot be changed: the node has it",
                ));
            }
            if old.spec.host_name != new.spec.host_name {
                errors.push(FieldError::forbidden(
                    &path.child("hostName"),
                    "cannot be changed: the machine runs on that host",
                ));
            }
        }
        if old.spec.image.is_some() && new.spec.image.is_none() {
            errors.push(FieldError::required(
                &path.child("image"),
                "cannot be taken away: it says what the host is to run",
            ));
        }
    }
    Verdict::from_errors(errors, Vec::new())
}

pub fn validate_template(change: &Change<EdgeMachineTemplate>) -> Verdict {
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    let path = Path::new("spec").child("template").child("spec");
    let spec = &new.spec.template.spec;
    let mut errors = spec_errors(spec, &path);
    for (name, is_set) in [
        ("providerID", spec.provider_id.is_some()),
        ("hostName", spec.host_name.is_some()),
    ] {
        if is_set {
            errors.push(FieldError::forbidden(
                &path.child(name),
                "belongs to one machine, not to a template",
            ));
        }
    }
    let is_asked_only = topology::is_dry_run_of(change.dry_run, &new.metadata);
    if !is_asked_only && change.old.as_ref().is_some_and(|old| old.spec != new.spec) {
        errors.push(FieldError::forbidden(
            &Path::new("spec"),
            "cannot be changed: make a template of another name and refer to it",
        ));
    }
    Verdict::from_errors(errors, Vec::new())
}

fn spec_errors(spec: &EdgeMachineSpec, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(image) = &spec.image {
        errors.extend(image.errors(&path.child("image")));
    }
    errors.extend(selector::error(
        spec.host_selector.as_ref(),
        &path.child("hostSelector"),
    ));
    if let Some(id) = spec.provider_id.as_deref().filter(|id| !id.is_empty())
        && id.parse::<ProviderId>().is_err()
    {
        errors.push(FieldError::invalid(
            &path.child("providerID"),
            id,
            "must be edge://namespace/host/claim",
        ));
    }
    errors
}
