//! Validation of UpgradePolicy.

use std::collections::BTreeSet;

use slipway_runtime::admission::{
    Change, Verdict,
    field::{FieldError, Path},
};

use super::api::{HealthGateKind, UpgradePolicy, UpgradePolicySpec};
use crate::{api::amount_error, selector, version::Version, window};

pub fn validate(change: &Change<UpgradePolicy>) -> Verdict {
    let Some(new) = &change.new else {
        return Verdict::allowed();
    };
    Verdict::from_errors(errors(&new.spec), warnings(&new.spec))
}

/// What is wrong with a policy, and where: also of one that nobody was asked about when it was written.
pub fn errors(spec: &UpgradePolicySpec) -> Vec<FieldError> {
    let path = Path::new("spec");
    let mut errors = window::errors(&spec.windows, &path.child("windows"));
    let mut seen = BTreeSet::new();
    for (index, wave) in spec.waves.iter().enumerate() {
        let path = path.child("waves").index(index);
        if wave.name.is_empty() {
            errors.push(FieldError::required(
                &path.child("name"),
                "names the wave in messages",
            ));
        } else if !seen.insert(wave.name.as_str()) {
            errors.push(FieldError::duplicate(&path.child("name"), wave.name.as_str()));
        }
        errors.extend(selector::error(wave.selector.as_ref(), &path.child("selector")));
        errors.extend(
            wave.size
                .as_ref()
                .and_then(|size| amount_error(size, &path.child("size"))),
        );
    }
    errors.extend(
        spec.max_concurrent
            .as_ref()
            .and_then(|amount| amount_error(amount, &path.child("maxConcurrent"))),
    );
    if spec.stop_after_rollbacks == Some(0) {
        errors.push(FieldError::invalid(
            &path.child("stopAfterRollbacks"),
            0,
            "must be at least 1: an upgrade that has not begun cannot be stopped by its rollbacks",
        ));
    }
    for (index, gate) in spec.health_gates.iter().enumerate() {
        let path = path.child("healthGates").index(index);
        errors.extend(selector::error(gate.selector.as_ref(), &path.child("selector")));
        if gate.kind == HealthGateKind::Node && gate.namespace.is_some() {
            errors.push(FieldError::forbidden(
                &path.child("namespace"),
                "Nodes are in no namespace",
            ));
        }
    }
    for (name, versions) in [
        ("mandatoryVersions", &spec.mandatory_versions),
        ("knownVersions", &spec.known_versions),
    ] {
        for (index, version) in versions.iter().enumerate() {
            if let Err(error) = version.parse::<Version>() {
                errors.push(FieldError::invalid(
                    &path.child(name).index(index),
                    version.as_str(),
                    error.to_string(),
                ));
            }
        }
    }
    errors
}

/// What is allowed, and hardly meant.
pub fn warnings(spec: &UpgradePolicySpec) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(open) = spec
        .waves
        .iter()
        .position(|wave| wave.selector.is_none() && wave.size.is_none())
        && open + 1 < spec.waves.len()
    {
        warnings.push(format!(
            "spec.waves[{open}] takes every machine: nothing is left for the waves after it"
        ));
    }
    warnings
}
