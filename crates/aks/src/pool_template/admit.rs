//! Admission of AzureManagedMachinePoolTemplates: as their pools, as far as a template says anything.

use kube::ResourceExt;
use slipway_capi::topology;
use slipway_runtime::admission::{
    Admission, Change, Verdict,
    field::{FieldError, Path},
};

use crate::{
    admit::handler::{CREATE_UPDATE, validating_with},
    api::{AzureManagedMachinePoolTemplate, LABEL_AGENT_POOL_MODE, PoolClass},
    pool::admit::{OtherSystemPools, default_class, update, validate},
};

/// What a user left open and the schema cannot fill in.
pub fn default(template: &mut AzureManagedMachinePoolTemplate) {
    let (name, mode) = (template.name_any(), template.spec.template.spec.mode.clone());
    template
        .labels_mut()
        .insert(LABEL_AGENT_POOL_MODE.to_owned(), mode);
    default_class(&mut template.spec.template.spec, &name);
}

pub fn verdict(change: &Change<AzureManagedMachinePoolTemplate>, topology_dry_run: bool) -> Verdict {
    let root = Path::new("spec").child("template").child("spec");
    let class =
        |template: &AzureManagedMachinePoolTemplate| -> PoolClass { template.spec.template.spec.clone() };
    let errors: Vec<FieldError> = match (&change.old, &change.new) {
        (Some(_), Some(_)) if topology_dry_run => Vec::new(),
        // A template is not a pool: whether a cluster keeps a system pool is asked of its pools.
        (Some(old), Some(new)) => {
            update::validate(&root, &class(old), &class(new), &OtherSystemPools::NotNeeded)
        }
        (None, Some(new)) => validate(&root, &class(new), &new.name_any()),
        _ => Vec::new(),
    };
    Verdict::from_errors(errors, Vec::new())
}

pub fn defaulting() -> Admission {
    Admission::defaulting::<AzureManagedMachinePoolTemplate>(|new, _| default(new))
}

pub fn validating() -> Admission {
    validating_with::<AzureManagedMachinePoolTemplate, _>(CREATE_UPDATE, |request, change, _| async move {
        verdict(&change, topology::is_dry_run(&request))
    })
}
