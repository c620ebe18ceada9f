//! `slipway upgrade explain`: what a change would do to machines, in the words of the hooks.

use std::process::ExitCode;

use serde_json::{Value, json};
use slipway_edge::hooks::{
    can_update::STRATEGY,
    command,
    explain::{Explained, Fate, Objects},
};

fn digest(letter: char) -> String {
    format!("sha256:{}", letter.to_string().repeat(64))
}

fn template(name: &str, image: char, processors: u32) -> Value {
    json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "EdgeMachineTemplate", "metadata": {"name": name},
        "spec": {"template": {"spec": {"image": {"reference": "registry.example.com/k3s", "digest": digest(image)},
            "minimum": {"processors": processors}}}}})
}

fn deployment(template: &str, version: &str, strategy: Option<&str>) -> Value {
    let annotations = strategy.map_or(json!({}), |strategy| json!({(STRATEGY): strategy}));
    json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
        "metadata": {"name": "workers", "annotations": annotations},
        "spec": {"clusterName": "north", "replicas": 2,
            "rollout": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
            "template": {"spec": {"clusterName": "north", "version": version, "infrastructureRef":
                {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "EdgeMachineTemplate", "name": template}}}}})
}

fn explained(change: &[Value], strategy: Option<&str>) -> Explained {
    let current = vec![template("a", 'a', 4), deployment("a", "v1.34.2+k3s1", strategy)];
    let mut all = Objects::new(change, current).explain();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn e7_e8_each_strategy_says_what_it_does_with_the_same_change() {
    let upgrade = |strategy| [template("b", 'b', 4), deployment("b", "v1.34.3+k3s1", strategy)];
    let found = explained(&upgrade(Some("External")), Some("External"));
    assert_eq!(
        found.to_string(),
        "MachineDeployment workers: its machines are updated in place\n\
         \x20 EdgeMachineTemplate /spec/template/spec/image/digest: in place\n\
         \x20 MachineSet /spec/template/spec/version: in place\n"
    );
    let found = explained(&upgrade(None), None);
    assert_eq!(found.fate, Fate::Replaced);
    assert!(found.notes[0].starts_with("it could be done in place: annotation slipway.dev/update-strategy"));
    let larger = |strategy| [template("b", 'b', 8), deployment("b", "v1.34.3+k3s1", strategy)];
    let found = explained(&larger(Some("External")), Some("External"));
    assert_eq!(
        found.to_string(),
        "MachineDeployment workers: refused: its machines stay as they are\n\
         \x20 EdgeMachineTemplate /spec/template/spec/image/digest: in place\n\
         \x20 EdgeMachineTemplate /spec/template/spec/minimum/processors: not in place\n\
         \x20 MachineSet /spec/template/spec/version: in place\n\
         \x20 external strategy: cannot update in place: EdgeMachineTemplate /spec/template/spec/minimum/processors\n"
    );
    assert_eq!(
        explained(&larger(Some("InPlace")), Some("InPlace")).fate,
        Fate::Replaced
    );
    let found = explained(&[deployment("a", "v1.34.2+k3s1", None)], None);
    assert_eq!((found.fate.clone(), found.is_harmless()), (Fate::Unchanged, true));
}

#[test]
fn what_cluster_api_does_beside_is_told_before() {
    let mut change = deployment("b", "v1.34.3+k3s1", Some("InPlace"));
    change["spec"]["rollout"]["strategy"]["rollingUpdate"]["maxSurge"] = json!(1);
    let found = explained(&[template("b", 'b', 4), change.clone()], Some("InPlace"));
    assert_eq!(found.fate, Fate::InPlace);
    assert!(found.notes[0].contains("makes a machine more"), "{found}");
    change["spec"]["rollout"]["strategy"]["type"] = json!("OnDelete");
    let found = explained(&[template("b", 'b', 4), change], Some("InPlace"));
    assert_eq!(found.fate, Fate::Replaced);
    assert!(found.notes[0].contains("never asks"), "{found}");
    let missing = explained(
        &[deployment("c", "v1.34.3+k3s1", Some("InPlace"))],
        Some("InPlace"),
    );
    assert_eq!(
        missing.notes,
        ["EdgeMachineTemplate c is neither in the file nor there"]
    );
    let new = Objects::new(&[deployment("a", "v1.34.2+k3s1", None)], Vec::new()).explain();
    assert_eq!((&new[0].fate, new[0].is_harmless()), (&Fate::Unknown, false));
}

/// Control planes are put as their providers put them: the strategy of ours is a field, that of kubeadm's an annotation of its machines.
#[test]
fn control_planes_are_explained_by_their_machines() {
    let infrastructure = |name: &str| json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "EdgeMachineTemplate", "name": name});
    let ours = |template: &str, version: &str, strategy: &str, token: &str| {
        json!({"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KThreesControlPlane", "metadata": {"name": "north"},
            "spec": {"replicas": 1, "version": version, "rolloutStrategy": {"type": strategy}, "kthreesConfigSpec": {"token": token},
                "machineTemplate": {"spec": {"infrastructureRef": infrastructure(template)}}}})
    };
    let fate = |strategy: &str, token: &str| {
        let current = vec![template("a", 'a', 4), ours("a", "v1.34.2+k3s1", strategy, "one")];
        let change = [template("b", 'b', 4), ours("b", "v1.34.3+k3s1", strategy, token)];
        Objects::new(&change, current).explain().remove(0).fate
    };
    assert_eq!(fate("External", "one"), Fate::InPlace);
    assert_eq!(fate("External", "two"), Fate::Refused);
    assert_eq!(fate("InPlace", "two"), Fate::Replaced);
    assert_eq!(fate("RollingUpdate", "one"), Fate::Replaced);
    let kubeadm = |template: &str, version: &str| {
        json!({"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane", "metadata": {"name": "north"},
            "spec": {"replicas": 3, "version": version, "machineTemplate": {"metadata": {"annotations": {(STRATEGY): "External"}},
                "spec": {"infrastructureRef": infrastructure(template)}}}})
    };
    let current = vec![template("a", 'a', 4), kubeadm("a", "v1.34.2")];
    let found = Objects::new(&[template("b", 'b', 4), kubeadm("b", "v1.34.3")], current)
        .explain()
        .remove(0);
    assert_eq!(found.fate, Fate::InPlace);
    assert!(found.notes[0].contains("makes a machine more before"), "{found}");
}

#[test]
fn the_command_ends_with_what_it_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, objects: &[Value]| {
        let text: Vec<String> = objects.iter().map(ToString::to_string).collect();
        let path = folder.path().join(name);
        std::fs::write(&path, text.join("\n---\n")).expect("a file");
        path.display().to_string()
    };
    let current = write(
        "current.yaml",
        &[
            template("a", 'a', 4),
            deployment("a", "v1.34.2+k3s1", Some("External")),
        ],
    );
    let run = |change: &str| {
        let subcommand = command::subcommand();
        let arguments = ["upgrade", "explain", "-f", change, "--current", &current];
        let matches = subcommand
            .command
            .clone()
            .try_get_matches_from(arguments)
            .expect("arguments");
        format!("{:?}", (subcommand.run)(&matches))
    };
    let upgrade = [
        template("b", 'b', 4),
        deployment("b", "v1.34.3+k3s1", Some("External")),
    ];
    assert_eq!(
        run(&write("good.yaml", &upgrade)),
        format!("{:?}", ExitCode::SUCCESS)
    );
    let larger = [
        template("b", 'b', 8),
        deployment("b", "v1.34.3+k3s1", Some("External")),
    ];
    assert_eq!(
        run(&write("bad.yaml", &larger)),
        format!("{:?}", ExitCode::from(2))
    );
    assert_eq!(
        run(&write("none.yaml", &[template("b", 'b', 8)])),
        format!("{:?}", ExitCode::FAILURE)
    );
    assert_eq!(run("/nonesuch"), format!("{:?}", ExitCode::FAILURE));
}
