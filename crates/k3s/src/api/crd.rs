//! The CRDs: both versions of a kind in one definition, with the labels by which Cluster API finds the version
//! that speaks its contract and clusterctl finds what to move.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceSubresourceStatus,
    CustomResourceSubresources,
};
use kube::{CustomResourceExt, core::crd::merge_crds};

use super::{VERSION, v1beta1};
use crate::{bootstrap::api as config, control_plane::api as control_plane};

fn merged(
    v1beta2: CustomResourceDefinition,
    v1beta1: Option<CustomResourceDefinition>,
) -> CustomResourceDefinition {
    let speaks_v1beta1 = v1beta1.is_some();
    let mut crds = vec![v1beta2];
    crds.extend(v1beta1);
    let mut crd = merge_crds(crds, VERSION).expect("the versions agree on group, kind and scope");
    let labels = crd.metadata.labels.get_or_insert_default();
    // One contract to a version, although v1beta2 carries the fields of both: the topology controller asks which contract
    // a version speaks, and of two it would take one today and the other tomorrow.
    if speaks_v1beta1 {
        labels.insert("cluster.x-k8s.io/v1beta1".into(), "v1beta1".into());
    }
    labels.insert("cluster.x-k8s.io/v1beta2".into(), VERSION.into());
    labels.insert("clusterctl.cluster.x-k8s.io".into(), String::new());
    crd
}

/// A short name, and columns beside those that the versions declare.
fn shown(
    mut crd: CustomResourceDefinition,
    short_name: &str,
    columns: &[(&str, &str, &str)],
) -> CustomResourceDefinition {
    crd.spec.names.short_names = Some(vec![short_name.to_owned()]);
    for version in &mut crd.spec.versions {
        let added = columns
            .iter()
            .map(|(name, type_, path)| CustomResourceColumnDefinition {
                name: (*name).to_owned(),
                type_: (*type_).to_owned(),
                json_path: (*path).to_owned(),
                ..CustomResourceColumnDefinition::default()
            });
        version
            .additional_printer_columns
            .get_or_insert_default()
            .extend(added);
    }
    crd
}

const CLUSTER: (&str, &str, &str) = (
    "Cluster",
    "string",
    r".metadata.labels['cluster\.x-k8s\.io/cluster-name']",
);
const AGE: (&str, &str, &str) = ("Age", "date", ".metadata.creationTimestamp");

/// The kinds of `bootstrap-k3s`.
pub fn bootstrap() -> Vec<CustomResourceDefinition> {
    let config = merged(config::KThreesConfig::crd(), Some(v1beta1::KThreesConfig::crd()));
    let template = merged(
        config::KThreesConfigTemplate::crd(),
        Some(v1beta1::KThreesConfigTemplate::crd()),
    );
    vec![
        shown(
            config,
            "ktc",
            &[CLUSTER, ("Ready", "boolean", ".status.ready"), AGE],
        ),
        shown(template, "ktct", &[AGE]),
    ]
}

/// The kinds of `control-plane-k3s`.
pub fn control_plane() -> Vec<CustomResourceDefinition> {
    let mut template = merged(control_plane::KThreesControlPlaneTemplate::crd(), None);
    for version in &mut template.spec.versions {
        // cluster-api-k3s declares the subresource although the kind has no status.
        version.subresources = Some(CustomResourceSubresources {
            status: Some(CustomResourceSubresourceStatus(serde_json::json!({}))),
            ..CustomResourceSubresources::default()
        });
    }
    let plane = merged(
        control_plane::KThreesControlPlane::crd(),
        Some(v1beta1::KThreesControlPlane::crd()),
    );
    vec![
        shown(
            plane,
            "ktcp",
            &[CLUSTER, ("Desired", "integer", ".spec.replicas"), AGE],
        ),
        shown(template, "ktcpt", &[AGE]),
    ]
}
