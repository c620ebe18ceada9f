//! Validation of AzureManagedClusters and their templates: the pool a cluster starts with.

use slipway_runtime::admission::{
    Admission, Change, Verdict,
    field::{FieldError, Path},
};

use crate::{
    admit::handler::{CREATE_UPDATE, new_errors},
    api::{AzureManagedCluster, DefaultPoolTemplate, MODE_SYSTEM},
    pool::admit as pool,
};

/// The name of a default pool that was not given one.
pub const DEFAULT_POOL_NAME: &str = "default";

pub fn validate(root: &Path, template: Option<&DefaultPoolTemplate>) -> Vec<FieldError> {
    let Some(template) = template else {
        return Vec::new();
    };
    let path = root.child("defaultPoolTemplate");
    match (&template.spec, &template.machine_pool_ref) {
        (None, None) => vec![FieldError::required(
            &path,
            "one of spec and machinePoolRef must be set",
        )],
        (Some(_), Some(_)) => vec![FieldError::forbidden(
            &path,
            "only one of spec and machinePoolRef may be set",
        )],
        (None, Some(_)) => template
            .replicas
            .map(|_| {
                FieldError::forbidden(
                    &path.child("replicas"),
                    "the referenced pool's MachinePool has the replicas",
                )
            })
            .into_iter()
            .collect(),
        (Some(class), None) => {
            let mut errors = pool::validate(&path.child("spec"), class, DEFAULT_POOL_NAME);
            if class.mode != MODE_SYSTEM {
                errors.push(FieldError::invalid(
                    &path.child("spec").child("mode"),
                    class.mode.as_str(),
                    "must be System: a cluster cannot start with a User pool",
                ));
            }
            errors
        }
    }
}

pub fn verdict(change: &Change<AzureManagedCluster>) -> Verdict {
    let errors = |cluster: &AzureManagedCluster| {
        validate(&Path::new("spec"), cluster.spec.default_pool_template.as_ref())
    };
    Verdict::from_errors(new_errors(change, errors), Vec::new())
}

pub fn validating() -> Admission {
    Admission::validating::<AzureManagedCluster>(CREATE_UPDATE, verdict)
}
