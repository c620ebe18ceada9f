//! Validation of HostImage.

use std::collections::BTreeSet;

use slipway_runtime::admission::{
    Change, Verdict,
    field::{FieldError, Path},
};

use super::api::HostImage;
use crate::{api::amount_error, selector, window};

pub fn validate(change: &Change<HostImage>) -> Verdict {
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    let (spec, path) = (&new.spec, Path::new("spec"));
    let mut errors = window::errors(&spec.windows, &path.child("windows"));
    if spec.images.is_empty() {
        errors.push(FieldError::required(
            &path.child("images"),
            "names the images to cache",
        ));
    }
    let mut seen = BTreeSet::new();
    for (index, cached) in spec.images.iter().enumerate() {
        let path = path.child("images").index(index);
        errors.extend(cached.image.errors(&path));
        if !seen.insert(&cached.image.digest) {
            errors.push(FieldError::duplicate(
                &path.child("digest"),
                cached.image.digest.as_str(),
            ));
        }
    }
    errors.extend(selector::error(
        spec.host_selector.as_ref(),
        &path.child("hostSelector"),
    ));
    errors.extend(
        spec.parallelism
            .as_ref()
            .and_then(|amount| amount_error(amount, &path.child("parallelism"))),
    );
    Verdict::from_errors(errors, Vec::new())
}
