//! The registration: what this provider brings to the manager and to its manifests. The permissions are those of the
//! parts that stand; a part that comes brings its own.

use slipway_runtime::{Package, PackageKind, Provider, Rule};

use crate::{admit::admission, api::GROUP, api::crd::crds};

/// Admission reads the Cluster for its network and its deletion, and lists the other pools of a Cluster.
const RBAC: &[Rule] = &[
    Rule::new("cluster.x-k8s.io", &["clusters"], Rule::READ),
    Rule::new(GROUP, &["azuremanagedmachinepools"], Rule::READ),
];

/// AKS clusters. Adds to the package `infrastructure-azure`, under the names that package has always had.
pub fn provider() -> Provider {
    let mut package = Package::new(PackageKind::Infrastructure, "azure");
    package.name_prefix = Some("capz");
    package.crds = crds();
    package.rbac = RBAC.to_vec();
    package.admission = admission();
    let mut provider = Provider::new("aks");
    provider.packages = vec![package];
    provider
}
