//! A toy provider that uses every part of the runtime: a Fleet, which is the infrastructure of a Cluster, owns Vessels.
//! It has two versions with conversion, defaulting, validation, a finalizer, pausing and conditions, and may sail under
//! a Secret. Annotations make a reconcile misbehave, to show that this harms nobody else and does not go unnoticed.

mod fleet;
mod vessel;

use kube::{CustomResourceExt, core::crd::merge_crds};
use slipway_runtime::{
    Package, PackageKind, Provider, Rule,
    admission::{Admission, Operation},
    conversion::Conversion,
    manager::duration_flag,
    provider::Example,
};

pub use self::fleet::{CHARTER, FINALIZER, MISBEHAVE};

use self::{
    api::{Fleet, GROUP, Vessel, v1beta1},
    fleet::{admit, convert},
};

/// The kinds.
pub mod api {
    pub use super::{fleet::api::*, vessel::api::*};
}

const RULES: &[Rule] = &[
    Rule::new("", &["secrets"], &["get"]),
    Rule::new("cluster.x-k8s.io", &["clusters"], &["list", "watch"]),
    Rule::new(GROUP, &["fleets"], &["list", "patch", "watch"]),
    Rule::new(GROUP, &["vessels"], &["create", "delete", "list", "watch"]),
    Rule::new(GROUP, &["fleets/status", "vessels/status"], &["patch"]),
];

/// The provider as a provider crate would export it.
pub fn provider() -> Provider {
    storing("v1beta2")
}

/// The provider as it was when Fleets were still stored in their older version.
pub fn earlier_provider() -> Provider {
    storing("v1beta1")
}

fn storing(version: &str) -> Provider {
    let mut package = Package::new(PackageKind::Infrastructure, "toy");
    package.name_prefix = Some("capt");
    package.crds = vec![
        merge_crds(vec![v1beta1::Fleet::crd(), Fleet::crd()], version).expect("the versions are of one kind"),
        Vessel::crd(),
    ];
    package.rbac = RULES.to_vec();
    package.admission = vec![
        Admission::defaulting::<Fleet>(admit::default),
        Admission::validating::<Fleet>(&[Operation::Create, Operation::Update], admit::validate),
    ];
    package.conversion = vec![Conversion::new(Fleet::crd_name(), convert::convert)];
    package.controllers = vec![fleet::registration(), vessel::registration()];
    let mut provider = Provider::new("toy");
    provider.packages = vec![package];
    provider.flags = vec![duration_flag(
        "toy-timeout",
        "5s",
        "Read by nothing, to show that it is read",
    )];
    provider.examples = vec![Example {
        title: "A fleet of two vessels",
        objects: vec![serde_json::json!({
            "apiVersion": format!("{GROUP}/v1beta2"),
            "kind": "Fleet",
            "metadata": {"name": "regatta", "namespace": "default"},
            "spec": {"vessels": 2},
        })],
        becomes: vec![(0, "Ready")],
        follows: &[],
    }];
    provider
}
