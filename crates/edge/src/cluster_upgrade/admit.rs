//! Validation of ClusterUpgrade.

use std::collections::BTreeSet;

use slipway_runtime::admission::{
    Change, Verdict,
    field::{FieldError, Path},
};

use super::api::ClusterUpgrade;
use crate::version::Version;

pub fn validate(change: &Change<ClusterUpgrade>) -> Verdict {
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    let (spec, path) = (&new.spec, Path::new("spec"));
    let mut errors = Vec::new();
    if spec.cluster_name.is_empty() {
        errors.push(FieldError::required(
            &path.child("clusterName"),
            "names the Cluster to upgrade",
        ));
    }
    if change
        .old
        .as_ref()
        .is_some_and(|old| old.spec.cluster_name != spec.cluster_name)
    {
        errors.push(FieldError::forbidden(
            &path.child("clusterName"),
            "cannot be changed: make a ClusterUpgrade for the other Cluster",
        ));
    }
    let version_error = |version: &str, path: &Path| {
        let error = version.parse::<Version>().err()?;
        Some(FieldError::invalid(path, version, error.to_string()))
    };
    errors.extend(version_error(&spec.version, &path.child("version")));
    let mut seen = BTreeSet::new();
    for (index, image) in spec.images.iter().enumerate() {
        let path = path.child("images").index(index);
        errors.extend(version_error(&image.version, &path.child("version")));
        errors.extend(image.image.errors(&path));
        if !seen.insert(image.version.as_str()) {
            errors.push(FieldError::duplicate(
                &path.child("version"),
                image.version.as_str(),
            ));
        }
    }
    if !seen.contains(spec.version.as_str()) {
        errors.push(FieldError::required(
            &path.child("images"),
            format!("has no image of {}, the version that is asked for", spec.version),
        ));
    }
    Verdict::from_errors(errors, Vec::new())
}
