//! Cluster extensions: what they need, and what of them cannot change.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::json;
use slipway_runtime::admission::field::{FieldError, Path};

use crate::{admit::immutable::CHANGED, api::Extension};

pub fn validate(path: &Path, extensions: &[Extension]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut names = BTreeSet::new();
    for (index, extension) in extensions.iter().enumerate() {
        if !names.insert(&extension.name) {
            errors.push(FieldError::duplicate(
                &path.index(index).child("name"),
                extension.name.as_str(),
            ));
        }
        let at = path.index(index);
        let raises_itself = extension.auto_upgrade_minor_version.unwrap_or(true);
        if extension.version.is_some() && raises_itself {
            errors.push(FieldError::forbidden(
                &at.child("version"),
                "Version must not be given if AutoUpgradeMinorVersion is true (or not provided, as it is true by default)",
            ));
        }
        if extension.release_train.is_some() && !raises_itself {
            errors.push(FieldError::forbidden(
                &at.child("releaseTrain"),
                "ReleaseTrain must not be given if AutoUpgradeMinorVersion is false",
            ));
        }
        let Some(scope) = &extension.scope else { continue };
        let release = scope.release_namespace.as_deref().unwrap_or_default();
        let target = scope.target_namespace.as_deref().unwrap_or_default();
        let at = at.child("scope");
        match scope.scope_type.as_str() {
            "Cluster" => {
                if release.is_empty() {
                    errors.push(FieldError::required(
                        &at.child("releaseNamespace"),
                        "ReleaseNamespace must be provided if Scope is Cluster",
                    ));
                }
                if !target.is_empty() {
                    errors.push(FieldError::forbidden(
                        &at.child("targetNamespace"),
                        "TargetNamespace can only be given if Scope is Namespace",
                    ));
                }
            }
            "Namespace" => {
                if target.is_empty() {
                    errors.push(FieldError::required(
                        &at.child("targetNamespace"),
                        "TargetNamespace must be provided if Scope is Namespace",
                    ));
                }
                if !release.is_empty() {
                    errors.push(FieldError::forbidden(
                        &at.child("releaseNamespace"),
                        "ReleaseNamespace can only be given if Scope is Cluster",
                    ));
                }
            }
            _ => {}
        }
    }
    errors
}

/// What of an extension cannot change. What both sides must have is compared only then, because it may be filled in later.
pub fn validate_update(root: &Path, old: &[Extension], new: &[Extension]) -> Vec<FieldError> {
    fn differ<T: PartialEq>(old: Option<&T>, new: Option<&T>) -> bool {
        matches!((old, new), (Some(old), Some(new)) if old != new)
    }
    fn error(path: &Path, index: usize, name: &str, value: &impl Serialize) -> FieldError {
        FieldError::invalid(&path.index(index).child(name), json!(value), CHANGED)
    }
    let path = root.child("extensions");
    let known: BTreeMap<&str, &Extension> = old
        .iter()
        .map(|extension| (extension.name.as_str(), extension))
        .collect();
    let mut errors = Vec::new();
    for (index, extension) in new.iter().enumerate() {
        let Some(old) = known.get(extension.name.as_str()) else {
            continue;
        };
        if !extension.extension_type.is_empty()
            && !old.extension_type.is_empty()
            && extension.extension_type != old.extension_type
        {
            errors.push(error(&path, index, "extensionType", &extension.extension_type));
        }
        if differ(old.plan.as_ref(), extension.plan.as_ref()) {
            errors.push(error(&path, index, "plan", &extension.plan));
        }
        if old.scope != extension.scope {
            errors.push(error(&path, index, "scope", &extension.scope));
        }
        if differ(old.release_train.as_ref(), extension.release_train.as_ref()) {
            errors.push(error(&path, index, "releaseTrain", &extension.release_train));
        }
        if differ(old.version.as_ref(), extension.version.as_ref()) {
            errors.push(error(&path, index, "version", &extension.version));
        }
        if old.identity != extension.identity {
            errors.push(error(&path, index, "identity", &extension.identity));
        }
    }
    errors
}
