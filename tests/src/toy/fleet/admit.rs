//! Defaulting and validation of a Fleet.

use slipway_runtime::admission::{
    Change, Verdict,
    field::{FieldError, Path},
};

use super::api::Fleet;

pub fn default(fleet: &mut Fleet, _old: Option<&Fleet>) {
    fleet.spec.vessels.get_or_insert(1);
    fleet.spec.harbour.get_or_insert_with(|| "home".to_owned());
}

pub fn validate(change: &Change<Fleet>) -> Verdict {
    let spec = Path::new("spec");
    let mut errors = Vec::new();
    if let Some(fleet) = &change.new {
        let vessels = fleet.spec.vessels.unwrap_or_default();
        if !(0..=10).contains(&vessels) {
            errors.push(FieldError::invalid(
                &spec.child("vessels"),
                vessels,
                "must be between 0 and 10",
            ));
        }
        if let Some(old) = &change.old
            && old.spec.harbour != fleet.spec.harbour
        {
            errors.push(FieldError::forbidden(
                &spec.child("harbour"),
                "a fleet stays in its harbour",
            ));
        }
    }
    Verdict::from_errors(errors, Vec::new())
}
