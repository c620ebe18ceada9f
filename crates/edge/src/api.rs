//! What the kinds share: their groups, the image of a host, and the list of all definitions.

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::CustomResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use slipway_capi::names::label;
use slipway_runtime::admission::field::{FieldError, Path};
use slipway_slots::Digest;

pub use crate::{
    cluster::api::{EdgeCluster, EdgeClusterTemplate},
    cluster_upgrade::api::ClusterUpgrade,
    host::api::EdgeHost,
    host_image::api::HostImage,
    machine::api::{EdgeMachine, EdgeMachineTemplate},
    node_upgrade::api::NodeUpgrade,
    upgrade_policy::api::UpgradePolicy,
};

pub const INFRASTRUCTURE_GROUP: &str = "infrastructure.cluster.x-k8s.io";
pub const GROUP: &str = "edge.slipway.dev";
pub const VERSION: &str = "v1alpha1";

/// A node image in a registry. The digest is its identity; the reference says where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Registry and repository, e.g. registry.example.com/nodes/k3s.
    #[schemars(extend("minLength" = 1, "maxLength" = 512, "pattern" = "^[^\\s]+$"))]
    pub reference: String,
    /// The image's identity: sha256: and 64 hexadecimal digits.
    #[schemars(extend("pattern" = "^sha256:[0-9a-f]{64}$"))]
    pub digest: String,
}

impl Image {
    /// What is wrong with it.
    pub fn errors(&self, path: &Path) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if self.reference.is_empty() || self.reference.contains(char::is_whitespace) {
            errors.push(FieldError::invalid(
                &path.child("reference"),
                self.reference.as_str(),
                "must name a registry and a repository, e.g. registry.example.com/nodes/k3s",
            ));
        }
        errors.extend(digest_error(&self.digest, &path.child("digest")));
        errors
    }

    /// Enough to tell two images apart in a sentence.
    pub fn short(&self) -> String {
        self.digest
            .parse::<Digest>()
            .map_or_else(|_| self.digest.clone(), |digest| digest.short())
    }
}

pub fn digest_error(digest: &str, path: &Path) -> Option<FieldError> {
    let error = digest.parse::<Digest>().err()?;
    let detail = error.to_string();
    Some(FieldError::invalid(
        path,
        digest,
        detail.split_once(": ").map_or("", |(_, rest)| rest).to_owned(),
    ))
}

/// How many of `of` are meant: a number, or a share that is rounded up. `None`: it is neither.
pub fn resolve(amount: &IntOrString, of: usize) -> Option<usize> {
    match amount {
        IntOrString::Int(number) => usize::try_from(*number).ok(),
        IntOrString::String(text) => {
            let share: usize = text.strip_suffix('%')?.parse().ok()?;
            (share <= 100).then(|| (of * share).div_ceil(100))
        }
    }
}

pub fn amount_error(amount: &IntOrString, path: &Path) -> Option<FieldError> {
    const DETAIL: &str = "must be a number that is not negative, or a share from 0% to 100%";
    if resolve(amount, 100).is_some() {
        return None;
    }
    Some(match amount {
        IntOrString::Int(number) => FieldError::invalid(path, *number, DETAIL),
        IntOrString::String(text) => FieldError::invalid(path, text.as_str(), DETAIL),
    })
}

/// One rule that the apiserver itself checks.
pub(crate) fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message})
}

/// Definitions of the infrastructure package. Core finds them by the contract's label, clusterctl by its own.
pub fn infrastructure() -> Vec<CustomResourceDefinition> {
    [
        EdgeCluster::crd(),
        EdgeClusterTemplate::crd(),
        EdgeMachine::crd(),
        EdgeMachineTemplate::crd(),
    ]
    .map(|crd| labelled(crd, true))
    .into()
}

/// EdgeHost. It moves with `clusterctl move`: a claim is in the spec of its host.
pub fn hosts() -> Vec<CustomResourceDefinition> {
    vec![labelled(EdgeHost::crd(), false)]
}

/// Definitions of upgrades. They move with `clusterctl move`.
pub fn upgrades() -> Vec<CustomResourceDefinition> {
    [ClusterUpgrade::crd(), NodeUpgrade::crd(), UpgradePolicy::crd()]
        .map(|crd| labelled(crd, false))
        .into()
}

/// HostImage, which moves too.
pub fn images() -> Vec<CustomResourceDefinition> {
    vec![labelled(HostImage::crd(), false)]
}

fn labelled(mut crd: CustomResourceDefinition, speaks_contract: bool) -> CustomResourceDefinition {
    let labels = crd.metadata.labels.get_or_insert_default();
    if speaks_contract {
        labels.insert(format!("{}v1beta2", label::CONTRACT_PREFIX), VERSION.into());
    }
    labels.insert("clusterctl.cluster.x-k8s.io".into(), String::new());
    if !speaks_contract {
        labels.insert(label::MOVE.into(), String::new());
    }
    crd
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_numbers_or_shares_that_are_rounded_up() {
        let share = |text: &str| IntOrString::String(text.to_owned());
        for (amount, of, expected) in [
            (IntOrString::Int(3), 10, Some(3)),
            (IntOrString::Int(0), 10, Some(0)),
            (IntOrString::Int(-1), 10, None),
            (share("25%"), 10, Some(3)),
            (share("0%"), 10, Some(0)),
            (share("1%"), 1, Some(1)),
            (share("101%"), 10, None),
            (share("25"), 10, None),
            (share("%"), 10, None),
        ] {
            assert_eq!(resolve(&amount, of), expected, "{amount:?} of {of}");
        }
    }
}
