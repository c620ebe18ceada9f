//! What a small package renders to.

use std::{path::PathBuf, sync::Arc};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use slipway_runtime::{
    admission::{Operation, Phase, Verdict},
    conversion::Conversion,
    provider::NamedPort,
};

use super::*;

fn crd(group: &str) -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "metadata": {"name": format!("boats.{group}"), "labels": {"cluster.x-k8s.io/v1beta2": "v1"}},
        "spec": {
            "group": group,
            "names": {"kind": "Boat", "plural": "boats"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true}],
        },
    }))
    .unwrap()
}

fn package(group: &str) -> Package {
    let mut package = Package::new(PackageKind::Infrastructure, "toy");
    package.name_prefix = Some("capt");
    package.crds = vec![crd(group)];
    package.rbac = vec![
        Rule::new(group_name(group), &["boats"], Rule::READ),
        Rule::new(group_name(group), &["boats"], &["patch"]),
        Rule::new(group_name(group), &["boats/status"], &["patch"]),
    ];
    package.admission = vec![Admission {
        phase: Phase::Validating,
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: "Boat".to_owned(),
        plural: "boats".to_owned(),
        operations: vec![Operation::Create, Operation::Delete],
        handler: Arc::new(|_, _| Box::pin(async { Verdict::allowed() })),
    }];
    package.conversion = vec![Conversion::new(format!("boats.{group}"), |object, _| Ok(object))];
    package.arguments = vec!["--feature-gates=Hoist=${EXP_HOIST:=false}".to_owned()];
    package
}

fn group_name(group: &str) -> &'static str {
    match group {
        "example.dev" => "example.dev",
        _ => "infrastructure.cluster.x-k8s.io",
    }
}

fn release() -> Release {
    Release {
        version: "v0.1.0".to_owned(),
        image: "registry.example/slipway/manager:v0.1.0".to_owned(),
    }
}

fn find<'object>(objects: &'object [Value], kind: &str) -> &'object Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn a_package_renders_to_what_clusterctl_wants() {
    let packages = [package("example.dev")];
    let bundles = Bundle::join(&packages).unwrap();
    let objects = bundles[0].objects(&release());
    for object in &objects {
        assert_eq!(
            object["metadata"]["labels"][PROVIDER_LABEL], "infrastructure-toy",
            "{object}"
        );
        let namespace = object["metadata"]["namespace"].as_str();
        assert!(
            namespace.is_none_or(|namespace| namespace == "capt-system"),
            "{object}"
        );
    }
    assert_eq!(
        objects
            .iter()
            .filter(|object| object["kind"] == "Namespace")
            .count(),
        1
    );
    let deployment = find(&objects, "Deployment");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["name"], "manager");
    assert_eq!(container["image"], "registry.example/slipway/manager:v0.1.0");
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(
        container["securityContext"]["capabilities"]["drop"],
        json!(["ALL"])
    );
    let arguments = container["args"].as_array().unwrap();
    for argument in [
        "--providers=infrastructure-toy",
        "--diagnostics-address=${CAPT_DIAGNOSTICS_ADDRESS:=:8443}",
        "--feature-gates=Hoist=${EXP_HOIST:=false}",
    ] {
        assert!(
            arguments.contains(&json!(argument)),
            "{argument} is not in {arguments:?}"
        );
    }
    assert_eq!(
        deployment["spec"]["template"]["metadata"]["labels"],
        find(&objects, "Service")["spec"]["selector"]
    );
    assert_eq!(
        find(&objects, "Certificate")["spec"]["dnsNames"][0],
        "capt-webhook-service.capt-system.svc"
    );
    let crd = find(&objects, "CustomResourceDefinition");
    assert_eq!(
        crd["metadata"]["annotations"]["cert-manager.io/inject-ca-from"],
        "capt-system/capt-serving-cert"
    );
    assert_eq!(crd["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"], "v1");
    assert_eq!(
        crd["spec"]["conversion"]["webhook"]["clientConfig"]["service"],
        json!({"name": "capt-webhook-service", "namespace": "capt-system", "path": "/convert"})
    );
    let webhook = &find(&objects, "ValidatingWebhookConfiguration")["webhooks"][0];
    assert_eq!(webhook["name"], "validation.boat.v1.example.dev");
    assert_eq!(webhook["rules"][0]["operations"], json!(["CREATE", "DELETE"]));
    assert_eq!(
        webhook["clientConfig"]["service"]["path"],
        "/validate-example-dev-v1-boat"
    );
}

#[test]
fn rules_are_joined_and_foreign_groups_are_opened_to_cluster_api() {
    let packages = [package("example.dev")];
    let objects = Bundle::join(&packages).unwrap()[0].objects(&release());
    let roles: Vec<&Value> = objects
        .iter()
        .filter(|object| object["kind"] == "ClusterRole")
        .collect();
    assert!(roles[0]["rules"].as_array().unwrap().contains(&json!(
        {"apiGroups": ["example.dev"], "resources": ["boats"], "verbs": ["get", "list", "patch", "watch"]}
    )));
    assert_eq!(
        roles[1]["metadata"]["labels"]["cluster.x-k8s.io/aggregate-to-manager"],
        "true"
    );
    let packages = [package("infrastructure.cluster.x-k8s.io")];
    let objects = Bundle::join(&packages).unwrap()[0].objects(&release());
    assert_eq!(
        objects
            .iter()
            .filter(|object| object["kind"] == "ClusterRole")
            .count(),
        1
    );
}

#[test]
fn what_others_need_is_lent_to_their_service_accounts() {
    const RULES: &[Rule] = &[Rule::new(
        "infrastructure.cluster.x-k8s.io",
        &["boats"],
        Rule::READ,
    )];
    let mut package = package("infrastructure.cluster.x-k8s.io");
    package.cluster_role = Some("slipway");
    package.role_grants = vec![RoleGrant {
        name: "pilot",
        namespace: "harbour-system",
        rules: RULES,
    }];
    let objects = Bundle::join(&[package]).unwrap()[0].objects(&release());
    let called =
        |kind: &str| -> Vec<&Value> { objects.iter().filter(|object| object["kind"] == kind).collect() };
    let names = |kind: &str| -> Vec<&str> {
        let found = called(kind).into_iter();
        found
            .filter_map(|object| object["metadata"]["name"].as_str())
            .collect()
    };
    assert_eq!(names("ClusterRole"), ["capt-slipway-role", "capt-pilot-role"]);
    assert_eq!(
        names("ClusterRoleBinding"),
        ["capt-slipway-rolebinding", "capt-pilot-rolebinding"]
    );
    assert_eq!(
        called("ClusterRole")[1]["rules"],
        json!([{"apiGroups": ["infrastructure.cluster.x-k8s.io"], "resources": ["boats"],
            "verbs": ["get", "list", "watch"]}])
    );
    let bindings = called("ClusterRoleBinding");
    assert_eq!(bindings[0]["roleRef"]["name"], "capt-slipway-role");
    assert_eq!(bindings[1]["roleRef"]["name"], "capt-pilot-role");
    assert_eq!(
        bindings[1]["subjects"],
        json!([{"kind": "Group", "name": "system:serviceaccounts:harbour-system",
            "apiGroup": "rbac.authorization.k8s.io"}]),
        "no namespace that clusterctl would move"
    );
}

#[test]
fn two_providers_join_in_one_package() {
    let mut second = Package::new(PackageKind::Infrastructure, "toy");
    second.name_prefix = Some("capt");
    second.crds = vec![crd("other.dev")];
    let packages = [package("example.dev"), second];
    let files = files(&packages, &release()).unwrap();
    let names: Vec<_> = files.keys().collect();
    assert_eq!(
        names,
        [
            &PathBuf::from("clusterctl/infrastructure-toy/v0.1.0/infrastructure-components.yaml"),
            &PathBuf::from("clusterctl/infrastructure-toy/v0.1.0/metadata.yaml"),
            &PathBuf::from("helm/slipway/Chart.yaml"),
            &PathBuf::from("helm/slipway/templates/infrastructure-toy.yaml"),
            &PathBuf::from("helm/slipway/templates/page.yaml"),
            &PathBuf::from("helm/slipway/values.yaml"),
        ]
    );
    assert!(
        files[names[0]].contains("name: boats.other.dev")
            && files[names[0]].contains("name: boats.example.dev")
    );
    assert_eq!(
        files[names[1]],
        "apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3\nkind: Metadata\nreleaseSeries:\n- contract: v1beta2\n  major: 0\n  minor: 1\n"
    );
    let mut third = Package::new(PackageKind::Infrastructure, "toy");
    third.name_prefix = None;
    let packages = [package("example.dev"), third];
    assert!(matches!(Bundle::join(&packages), Err(RenderError::Prefix { .. })));
}

#[test]
fn local_objects_call_a_url() {
    let objects = local_objects(&[package("example.dev")], "https://127.0.0.1:9443/", "PEM").unwrap();
    assert_eq!(objects.len(), 2);
    let conversion = &objects[0].data["spec"]["conversion"]["webhook"]["clientConfig"];
    assert_eq!(
        *conversion,
        json!({"url": "https://127.0.0.1:9443/convert", "caBundle": "UEVN"})
    );
    assert_eq!(objects[0].metadata.annotations, None);
    let webhook = &objects[1].data["webhooks"][0]["clientConfig"];
    assert_eq!(
        *webhook,
        json!({"url": "https://127.0.0.1:9443/validate-example-dev-v1-boat", "caBundle": "UEVN"})
    );
}

#[test]
fn mistakes_in_a_registration_are_named() {
    let mut lost = package("example.dev");
    lost.conversion = vec![Conversion::new("ships.example.dev", |object, _| Ok(object))];
    assert_eq!(
        Bundle::join([&lost]).unwrap_err().to_string(),
        "infrastructure-toy: conversion is registered for ships.example.dev, which is not among its CRDs"
    );
    let mut variable = package("example.dev");
    variable.crds[0].spec.names.singular = Some("${boat}".to_owned());
    assert!(matches!(
        Bundle::join([&variable]),
        Err(RenderError::Variable { .. })
    ));
    let wrong = Release {
        version: "0.1".to_owned(),
        ..release()
    };
    assert!(matches!(
        files([&package("example.dev")], &wrong),
        Err(RenderError::Version { .. })
    ));
    for image in ["manager", "slipway/manager:v1", ""] {
        let short = Release {
            image: image.to_owned(),
            ..release()
        };
        assert_eq!(
            files([&package("example.dev")], &short).unwrap_err().to_string(),
            format!(
                "the image {image:?} names no registry, and clusterctl takes no such image: write it like \
                 registry.example/slipway/manager:v1.2.3"
            )
        );
    }
    let local = Release {
        image: "localhost:5000/manager".to_owned(),
        ..release()
    };
    assert!(files([&package("example.dev")], &local).is_ok());
}

#[test]
fn drift_is_found_and_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let rendered = files([&package("example.dev")], &release()).unwrap();
    let drift = Drift::find(&rendered, folder.path()).unwrap();
    assert_eq!(drift.missing.len(), 6);
    drift.repair(&rendered, folder.path()).unwrap();
    assert!(Drift::find(&rendered, folder.path()).unwrap().is_empty());

    let place = folder.path().join("clusterctl/infrastructure-toy/v0.1.0");
    std::fs::write(place.join("metadata.yaml"), "edited").unwrap();
    std::fs::write(place.join("cluster-template.yaml"), "by hand").unwrap();
    std::fs::create_dir_all(folder.path().join("clusterctl/bootstrap-gone/v0.1.0")).unwrap();
    std::fs::write(
        folder
            .path()
            .join("clusterctl/bootstrap-gone/v0.1.0/metadata.yaml"),
        "",
    )
    .unwrap();
    let drift = Drift::find(&rendered, folder.path()).unwrap();
    assert_eq!(
        drift.to_string(),
        "clusterctl/infrastructure-toy/v0.1.0/metadata.yaml: changed\n\
         clusterctl/bootstrap-gone/v0.1.0/metadata.yaml: no longer rendered\n"
    );
    drift.repair(&rendered, folder.path()).unwrap();
    assert!(Drift::find(&rendered, folder.path()).unwrap().is_empty());
    assert!(place.join("cluster-template.yaml").exists());
}

#[test]
fn a_repository_names_its_packages_the_way_clusterctl_reads_them() {
    let mut helm = Package::new(PackageKind::HelmOnly, "autoscaler");
    helm.crds = vec![crd("example.dev")];
    let packages = [package("infrastructure.cluster.x-k8s.io"), helm];
    let files = repository(&packages, &release(), std::path::Path::new("/srv/slipway")).unwrap();
    let paths: Vec<String> = files.keys().map(|path| path.display().to_string()).collect();
    assert_eq!(
        paths,
        [
            "clusterctl.yaml",
            "infrastructure-toy/v0.1.0/infrastructure-components.yaml",
            "infrastructure-toy/v0.1.0/metadata.yaml",
        ],
        "clusterctl has no word for what ships by Helm"
    );
    assert_eq!(
        files[&PathBuf::from("clusterctl.yaml")],
        "providers:\n- name: toy\n  type: InfrastructureProvider\n  \
         url: /srv/slipway/infrastructure-toy/latest/infrastructure-components.yaml\n"
    );
}

#[test]
fn metadata_keeps_naming_the_series_one_may_upgrade_from() {
    let next = Release {
        version: "v0.2.0".to_owned(),
        image: "registry.example/slipway/manager:v0.2.0".to_owned(),
    };
    let files = files(&[package("infrastructure.cluster.x-k8s.io")], &next).unwrap();
    let metadata = &files[&PathBuf::from("clusterctl/infrastructure-toy/v0.2.0/metadata.yaml")];
    let read: Value = serde_saphyr::from_str(metadata).unwrap();
    assert_eq!(
        read["releaseSeries"],
        json!([
            {"major": 0, "minor": 1, "contract": "v1beta2"},
            {"major": 0, "minor": 2, "contract": "v1beta2"},
        ])
    );
}

#[test]
fn a_package_with_hooks_is_made_known_to_core() {
    let mut package = package("example.dev");
    assert!(
        Bundle::join([&package]).unwrap()[0]
            .objects(&release())
            .iter()
            .all(|object| object["kind"] != "ExtensionConfig")
    );
    package.hooks = vec![slipway_runtime::hook::Hook {
        hook: "UpdateMachine",
        name: "hoist",
        api_version: "hooks.runtime.cluster.x-k8s.io/v1alpha1",
        timeout_seconds: 5,
        fail_open: false,
        gate: None,
        handler: Arc::new(|_, _| Box::pin(async { json!({}) })),
    }];
    let objects = Bundle::join([&package]).unwrap()[0].objects(&release());
    let config = find(&objects, "ExtensionConfig");
    let service = find(&objects, "Service");
    let secret = &find(&objects, "Certificate")["spec"]["secretName"];
    assert_eq!(config["apiVersion"], "runtime.cluster.x-k8s.io/v1beta2");
    assert_eq!(
        config["spec"]["clientConfig"]["service"],
        json!({"name": service["metadata"]["name"], "namespace": service["metadata"]["namespace"], "port": 443})
    );
    assert_eq!(
        config["metadata"]["annotations"]["runtime.cluster.x-k8s.io/inject-ca-from-secret"],
        format!("capt-system/{}", secret.as_str().unwrap())
    );
    // A manager on somebody's machine is not registered with core.
    let local = local_objects([&package], "https://127.0.0.1:9443", "CA").unwrap();
    assert!(
        local
            .iter()
            .all(|object| object.types.as_ref().unwrap().kind != "ExtensionConfig")
    );
}

#[test]
fn what_a_package_adds_to_its_pods_is_there_once() {
    let token = json!({"name": "token", "projected": {"sources": []}});
    let mount = json!({"name": "token", "mountPath": "/token"});
    let mut one = package("example.dev");
    one.volumes = vec![token.clone()];
    one.volume_mounts = vec![mount.clone()];
    one.pod_labels = vec![("example.dev/use", "true")];
    let mut other = Package::new(PackageKind::Infrastructure, "toy");
    other.name_prefix = Some("capt");
    other.volumes = vec![token.clone()];
    other.volume_mounts = vec![mount.clone()];
    let objects = Bundle::join([&one, &other]).unwrap()[0].objects(&release());
    let deployment = find(&objects, "Deployment");
    let pod = &deployment["spec"]["template"];
    let count =
        |list: &Value, item: &Value| list.as_array().unwrap().iter().filter(|one| *one == item).count();
    assert_eq!(count(&pod["spec"]["volumes"], &token), 1);
    assert_eq!(count(&pod["spec"]["containers"][0]["volumeMounts"], &mount), 1);
    assert_eq!(pod["metadata"]["labels"]["example.dev/use"], "true");
    assert_eq!(
        deployment["spec"]["selector"]["matchLabels"],
        find(&objects, "Service")["spec"]["selector"],
        "what is selected by stays"
    );
    assert!(
        pod["spec"]["containers"][0]["args"]
            .as_array()
            .unwrap()
            .contains(&json!("--v=${CAPT_LOG_LEVEL:=2}"))
    );
}

/// A drop-in that goes by somebody else's names altogether, and that nobody gets who did not ask for it.
#[test]
fn a_package_may_go_by_another_projects_names() {
    let port = |name, number| NamedPort { name, number };
    let mut sail = Package::new(PackageKind::HelmOnly, "sail");
    sail.name_prefix = Some("canvas");
    sail.on_request = true;
    sail.crds = vec![crd("example.dev")];
    sail.names = Some(Names {
        namespace: "canvas",
        workload: "canvas",
        container: "controller",
        lease: "canvas-leader-election",
        labels: &[("app.kubernetes.io/name", "canvas")],
        metrics: port("http-metrics", 8080),
        health: port("http", 8081),
    });
    let objects = Bundle::join([&sail]).unwrap()[0].objects(&release());
    for kind in ["Deployment", "ServiceAccount", "Service"] {
        let metadata = &find(&objects, kind)["metadata"];
        assert_eq!(
            (&metadata["name"], &metadata["namespace"]),
            (&json!("canvas"), &json!("canvas")),
            "{kind}"
        );
        assert_eq!(metadata["labels"]["app.kubernetes.io/name"], "canvas");
    }
    let deployment = find(&objects, "Deployment");
    let labels = json!({"app.kubernetes.io/name": "canvas"});
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], labels);
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "canvas");
    let container = &pod["containers"][0];
    assert_eq!(container["name"], "controller");
    assert_eq!(container["livenessProbe"]["httpGet"]["port"], "http");
    for argument in [
        "--providers=sail",
        "--health-addr=:8081",
        "--diagnostics-address=${CANVAS_DIAGNOSTICS_ADDRESS:=:8080}",
        "--insecure-diagnostics=${CANVAS_INSECURE_DIAGNOSTICS:=true}",
    ] {
        let arguments = container["args"].as_array().unwrap();
        assert!(arguments.contains(&json!(argument)), "{argument}: {arguments:?}");
    }
    let service = find(&objects, "Service");
    assert_eq!(service["spec"]["selector"], labels);
    assert_eq!(
        service["spec"]["ports"],
        json!([{"name": "http-metrics", "port": 8080, "targetPort": "http-metrics"}])
    );
    let binding = find(&objects, "ClusterRoleBinding");
    assert_eq!(binding["subjects"][0]["name"], "canvas");
    assert!(
        objects
            .iter()
            .all(|object| object["metadata"]["labels"]["cluster.x-k8s.io/aggregate-to-manager"].is_null()),
        "core's manager gets no rights to it"
    );
    let files = files([&package("example.dev"), &sail], &release()).unwrap();
    let values: Value = serde_saphyr::from_str(&files[&PathBuf::from("helm/slipway/values.yaml")]).unwrap();
    assert_eq!(values["packages"]["sail"]["enabled"], false);
    assert_eq!(values["packages"]["infrastructure-toy"]["enabled"], true);
}
