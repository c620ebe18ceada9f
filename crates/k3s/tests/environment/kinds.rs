//! The kinds there are in the management cluster: the provider's own, and those of others.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use slipway_apiserver_sim::Kinds;
use slipway_k3s::provider;
use slipway_kit::core::kinds::{INFRASTRUCTURE, beside, foreign, of_core};

pub(super) fn foreign_crds() -> Vec<CustomResourceDefinition> {
    let mut all = of_core();
    all.extend([
        foreign("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig"),
        foreign(INFRASTRUCTURE, "v1beta1", "HostMachine"),
        foreign(INFRASTRUCTURE, "v1beta1", "HostMachineTemplate"),
    ]);
    all
}

/// Every kind and webhook there is in the management cluster, read once: schemas take long to make.
pub(super) fn kinds() -> &'static Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| beside(&foreign_crds(), &provider()));
    &KINDS
}
