//! The CRDs on the wire: names, versions, labels, columns, and the paths of both contracts.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;
use slipway_k3s::api::crd;

fn all() -> Vec<CustomResourceDefinition> {
    crd::bootstrap().into_iter().chain(crd::control_plane()).collect()
}

fn schema(crd: &CustomResourceDefinition, version: &str) -> Value {
    let version = crd
        .spec
        .versions
        .iter()
        .find(|entry| entry.name == version)
        .expect("the version is served");
    serde_json::to_value(
        version
            .schema
            .as_ref()
            .and_then(|schema| schema.open_api_v3_schema.as_ref()),
    )
    .expect("JSON")
}

fn has(schema: &Value, path: &str) -> bool {
    let pointer = format!("/properties/{}", path.replace('.', "/properties/"));
    schema.pointer(&pointer).is_some()
}

#[test]
fn the_kinds_are_the_peers() {
    let found: Vec<(String, Vec<String>, bool, bool)> = all()
        .iter()
        .map(|crd| {
            (
                crd.metadata.name.clone().expect("a name"),
                crd.spec
                    .versions
                    .iter()
                    .map(|version| version.name.clone())
                    .collect(),
                crd.spec
                    .versions
                    .iter()
                    .all(|version| version.served && version.storage == (version.name == "v1beta2")),
                crd.spec.scope == "Namespaced",
            )
        })
        .collect();
    let both = || vec!["v1beta2".to_owned(), "v1beta1".to_owned()];
    assert_eq!(
        found,
        [
            (
                "kthreesconfigs.bootstrap.cluster.x-k8s.io".into(),
                both(),
                true,
                true
            ),
            (
                "kthreesconfigtemplates.bootstrap.cluster.x-k8s.io".into(),
                both(),
                true,
                true
            ),
            (
                "kthreescontrolplanes.controlplane.cluster.x-k8s.io".into(),
                both(),
                true,
                true
            ),
            (
                "kthreescontrolplanetemplates.controlplane.cluster.x-k8s.io".into(),
                vec!["v1beta2".to_owned()],
                true,
                true
            ),
        ]
    );
    for crd in all() {
        let labels = crd.metadata.labels.expect("labels");
        // Each version speaks one contract, of the same name: Cluster API asks from both sides.
        for version in ["v1beta1", "v1beta2"] {
            let is_served = crd.spec.versions.iter().any(|one| one.name == version);
            let labelled = labels.get(&format!("cluster.x-k8s.io/{version}"));
            assert_eq!(labelled.map(String::as_str), is_served.then_some(version));
        }
        assert_eq!(labels["clusterctl.cluster.x-k8s.io"], "");
    }
}

#[test]
fn the_control_plane_has_its_columns_and_scale() {
    let crd = &crd::control_plane()[0];
    for version in &crd.spec.versions {
        let columns: Vec<_> = version
            .additional_printer_columns
            .iter()
            .flatten()
            .map(|column| (column.name.as_str(), column.json_path.as_str()))
            .collect();
        assert_eq!(
            columns,
            [
                ("Initialized", ".status.initialized"),
                ("API Server Available", ".status.ready"),
                ("Version", ".spec.version"),
                ("Replicas", ".status.replicas"),
                ("Ready", ".status.readyReplicas"),
                ("Updated", ".status.updatedReplicas"),
                ("Unavailable", ".status.unavailableReplicas"),
                ("Cluster", r".metadata.labels['cluster\.x-k8s\.io/cluster-name']"),
                ("Desired", ".spec.replicas"),
                ("Age", ".metadata.creationTimestamp"),
            ]
        );
        let scale = version
            .subresources
            .as_ref()
            .and_then(|subresources| subresources.scale.as_ref())
            .expect("scale");
        assert_eq!(scale.spec_replicas_path, ".spec.replicas");
        assert_eq!(scale.status_replicas_path, ".status.replicas");
        assert_eq!(scale.label_selector_path.as_deref(), Some(".status.selector"));
    }
}

/// S-63: the paths Cluster API reads, of both contracts.
#[test]
fn both_contracts_find_their_fields() {
    let control_plane = schema(&crd::control_plane()[0], "v1beta2");
    for path in [
        "spec.replicas",
        "spec.version",
        "spec.rollout.after",
        "spec.rolloutAfter",
        "spec.machineTemplate.metadata.labels",
        "spec.machineTemplate.infrastructureRef.name",
        "spec.machineTemplate.nodeDrainTimeout",
        "spec.machineTemplate.spec.infrastructureRef.apiGroup",
        "spec.machineTemplate.spec.deletion.nodeDrainTimeoutSeconds",
        "spec.machineTemplate.spec.deletion.nodeVolumeDetachTimeoutSeconds",
        "spec.machineTemplate.spec.deletion.nodeDeletionTimeoutSeconds",
        "spec.machineTemplate.spec.readinessGates",
        "spec.machineTemplate.spec.taints",
        "status.selector",
        "status.replicas",
        "status.version",
        "status.versions",
        "status.initialized",
        "status.ready",
        "status.updatedReplicas",
        "status.upToDateReplicas",
        "status.readyReplicas",
        "status.availableReplicas",
        "status.unavailableReplicas",
        "status.failureReason",
        "status.failureMessage",
        "status.conditions",
        "status.initialization.controlPlaneInitialized",
        "status.v1beta2.conditions",
        "status.lastRemediation.retryCount",
    ] {
        assert!(has(&control_plane, path), "KThreesControlPlane has no {path}");
    }
    let config = schema(&crd::bootstrap()[0], "v1beta2");
    for path in [
        "spec.serverConfig.kubeAPIServerArg",
        "spec.preK3sCommands",
        "status.ready",
        "status.dataSecretName",
        "status.initialization.dataSecretCreated",
        "status.v1beta2.conditions",
        "status.conditions",
    ] {
        assert!(has(&config, path), "KThreesConfig has no {path}");
    }
    let v1beta1 = schema(&crd::control_plane()[0], "v1beta1");
    for path in [
        "spec.infrastructureTemplate.name",
        "spec.nodeDrainTimeout",
        "spec.upgradeAfter",
    ] {
        assert!(has(&v1beta1, path), "KThreesControlPlane v1beta1 has no {path}");
    }
    assert!(!has(&v1beta1, "spec.rolloutAfter"));
}
