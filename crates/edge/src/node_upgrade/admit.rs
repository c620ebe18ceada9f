//! Validation of NodeUpgrade.

use slipway_runtime::admission::{
    Change, Verdict,
    field::{FieldError, Path},
};

use super::api::{Distribution, NodeUpgrade, Role};
use crate::version::Version;

pub fn validate(change: &Change<NodeUpgrade>) -> Verdict {
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    let (spec, path) = (&new.spec, Path::new("spec"));
    let mut errors = spec.image.errors(&path.child("image"));
    for (name, value) in [
        ("machineName", &spec.machine_name),
        ("machineUID", &spec.machine_uid),
        ("hostName", &spec.host_name),
    ] {
        if value.is_empty() {
            errors.push(FieldError::required(
                &path.child(name),
                "says which machine and host are meant",
            ));
        }
    }
    if let Err(error) = spec.version.parse::<Version>() {
        errors.push(FieldError::invalid(
            &path.child("version"),
            spec.version.as_str(),
            error.to_string(),
        ));
    }
    if change.old.as_ref().is_some_and(|old| old.spec != *spec) {
        errors.push(FieldError::forbidden(
            &path,
            "cannot be changed: a newer NodeUpgrade of the machine takes its place",
        ));
    }
    let mut warnings = Vec::new();
    if spec.role == Role::ControlPlane
        && spec.distribution == Distribution::Kubeadm
        && spec.snapshot_command.is_empty()
    {
        warnings.push(
            "spec.snapshotCommand: without it the only server of a cluster with its own etcd is not upgraded"
                .to_owned(),
        );
    }
    Verdict::from_errors(errors, warnings)
}
