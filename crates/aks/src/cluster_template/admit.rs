//! Validation of AzureManagedClusterTemplates.

use slipway_runtime::admission::{Admission, Change, Verdict, field::Path};

use crate::{
    admit::handler::{CREATE_UPDATE, new_errors},
    api::AzureManagedClusterTemplate,
    cluster::admit::validate,
};

pub fn verdict(change: &Change<AzureManagedClusterTemplate>) -> Verdict {
    let root = Path::new("spec").child("template").child("spec");
    let errors = |template: &AzureManagedClusterTemplate| {
        validate(&root, template.spec.template.spec.default_pool_template.as_ref())
    };
    Verdict::from_errors(new_errors(change, errors), Vec::new())
}

pub fn validating() -> Admission {
    Admission::validating::<AzureManagedClusterTemplate>(CREATE_UPDATE, verdict)
}
