//! ClusterUpgrades: what is written to a cluster over time, in golden files.

use std::fmt::Write as _;

use serde_json::json;
use slipway_edge::{
    api::Image,
    cluster_upgrade::{
        api::{ClusterUpgradePhase, ClusterUpgradeSpec, VersionedImage},
        plan::{Action, Asked, ClusterFacts, Decision, Facts, MachinesFacts, decide},
    },
};

use crate::golden::golden;

fn image(version: &str) -> Image {
    let minor: u32 = version[3..5].parse().expect("a minor version");
    Image {
        reference: "registry.example.com/nodes/k3s".to_owned(),
        digest: format!("sha256:{minor:0>2}{}", "0".repeat(62)),
    }
}

fn asked(version: &str) -> Asked {
    Asked {
        version: version.to_owned(),
        image: Some(image(version)),
    }
}

fn machines(name: &str, version: &str, replicas: i32) -> MachinesFacts {
    MachinesFacts {
        name: name.to_owned(),
        asked: asked(version),
        replicas,
        up_to_date: replicas,
        available: replicas,
        oldest: version.parse().ok(),
    }
}

fn facts(from: &str, to: &[&str]) -> Facts {
    Facts {
        spec: ClusterUpgradeSpec {
            cluster_name: "edge".to_owned(),
            version: (*to.last().expect("a version")).to_owned(),
            images: to
                .iter()
                .map(|version| VersionedImage {
                    version: (*version).to_owned(),
                    image: image(version),
                })
                .collect(),
            canary: Some("workers-b".to_owned()),
            ..ClusterUpgradeSpec::default()
        },
        cluster: Some(ClusterFacts {
            control_plane: machines("servers", from, 3),
            deployments: vec![
                machines("workers-a", from, 2),
                machines("workers-b", from, 1),
                machines("workers-c", from, 4),
            ],
            ..ClusterFacts::default()
        }),
        ..Facts::default()
    }
}

fn cluster(facts: &mut Facts) -> &mut ClusterFacts {
    facts.cluster.as_mut().expect("a cluster")
}

fn write(machines: &mut MachinesFacts, asked: Asked) {
    if machines.asked != asked {
        machines.asked = asked;
        machines.up_to_date = 0;
    }
}

/// What is written is rolled out, a machine at a time; a topology writes to its parts.
fn roll(facts: &mut Facts, decision: &Decision) {
    let cluster = cluster(facts);
    for action in decision.plan.actions() {
        match action {
            Action::WriteTopology { version, image } => {
                cluster.topology = Some(Asked {
                    version: version.clone(),
                    image: Some(image.clone()),
                });
            }
            Action::WriteControlPlane { version, image } => write(
                &mut cluster.control_plane,
                Asked {
                    version: version.clone(),
                    image: Some(image.clone()),
                },
            ),
            Action::WriteDeployment { name, version, image } => {
                let found = cluster.deployments.iter_mut().find(|one| one.name == *name);
                let asked = Asked {
                    version: version.clone(),
                    image: Some(image.clone()),
                };
                write(found.expect("a deployment"), asked);
            }
        }
    }
    if let Some(topology) = cluster.topology.clone() {
        write(&mut cluster.control_plane, topology.clone());
        if cluster.control_plane.up_to_date == cluster.control_plane.replicas {
            for deployment in &mut cluster.deployments {
                write(deployment, topology.clone());
            }
        }
    }
    for machines in std::iter::once(&mut cluster.control_plane).chain(&mut cluster.deployments) {
        if machines.up_to_date < machines.replicas {
            machines.up_to_date += 1;
        }
        if machines.up_to_date == machines.replicas {
            machines.oldest = machines.asked.version.parse().ok();
        }
    }
}

fn story(facts: &mut Facts) -> String {
    let (mut text, mut last) = (String::new(), String::new());
    for _ in 0..100 {
        let decision = decide(facts);
        let told = decision.to_string();
        if told != last {
            let _ = writeln!(text, "{told}");
        }
        last = told;
        if decision.phase == ClusterUpgradePhase::Done {
            return text;
        }
        roll(facts, &decision);
    }
    panic!("it never ended:\n{text}");
}

#[test]
fn the_control_plane_goes_first_and_the_canary_before_the_other_workers() {
    golden(
        "cluster-upgrade.golden",
        &story(&mut facts("v1.34.2+k3s1", &["v1.34.3+k3s1"])),
    );
}

#[test]
fn e58_over_two_minor_versions_the_control_plane_takes_both_and_workers_the_last() {
    golden(
        "cluster-upgrade-chained.golden",
        &story(&mut facts("v1.33.5+k3s1", &["v1.34.3+k3s1", "v1.35.1+k3s1"])),
    );
}

#[test]
fn of_a_topology_nothing_else_is_written() {
    let mut facts = facts("v1.33.5+k3s1", &["v1.34.3+k3s1", "v1.35.1+k3s1"]);
    cluster(&mut facts).topology = Some(asked("v1.33.5+k3s1"));
    let text = story(&mut facts);
    assert!(
        !text.contains("set the control plane") && !text.contains("set MachineDeployment"),
        "{text}"
    );
    golden("cluster-upgrade-topology.golden", &text);
}

#[test]
fn the_same_version_with_another_image_is_an_upgrade_too() {
    let mut facts = facts("v1.34.3+k3s1", &["v1.34.3+k3s1"]);
    facts.spec.images[0].image.digest = format!("sha256:{}", "f".repeat(64));
    let text = story(&mut facts);
    let written: Vec<&str> = text.lines().filter(|line| line.contains("set ")).collect();
    assert_eq!(written.len(), 4, "{text}");
    assert!(
        written[0].contains("control plane") && written[1].contains("workers-b"),
        "{text}"
    );
}

#[test]
fn e55_a_fleet_that_is_stopped_gets_nothing_new_until_it_is_resumed() {
    let mut facts = facts("v1.34.2+k3s1", &["v1.34.3+k3s1"]);
    let first = decide(&facts);
    roll(&mut facts, &first);
    facts.halted = Some("1 machine went back from this image (m-0)".to_owned());
    for _ in 0..10 {
        let decision = decide(&facts);
        assert_eq!(
            (decision.phase, decision.plan.actions().count()),
            (ClusterUpgradePhase::Halted, 0)
        );
        roll(&mut facts, &decision);
    }
    facts.halted = None;
    facts.spec.paused = true;
    assert_eq!(decide(&facts).phase, ClusterUpgradePhase::Paused);
    facts.spec.paused = false;
    story(&mut facts);
}

#[test]
fn what_is_missing_on_the_way_is_said_before_anything_is_written() {
    let told = |facts: &Facts| {
        let decision = decide(facts);
        assert_eq!(decision.plan.actions().count(), 0);
        format!("{:?}: {}", decision.phase, decision.message)
    };
    assert_eq!(
        told(&facts("v1.33.5+k3s1", &["v1.35.1+k3s1"])),
        "Blocked: no version of v1.34 is known on the way from v1.33.5+k3s1 to v1.35.1+k3s1: add one to knownVersions of the \
         UpgradePolicy, and its image"
    );
    let mut known = facts("v1.33.5+k3s1", &["v1.35.1+k3s1"]);
    known.policy = serde_json::from_value(json!({"knownVersions": ["v1.34.3+k3s1"]})).expect("a policy");
    assert_eq!(
        told(&known),
        "Blocked: spec.images has no image of v1.34.3+k3s1, which is on the way to v1.35.1+k3s1: add it"
    );
    assert!(told(&facts("v1.35.0+k3s1", &["v1.34.3+k3s1"])).contains("upgrades never go back"));
    let nowhere = Facts {
        cluster: None,
        ..facts("v1.34.2+k3s1", &["v1.34.3+k3s1"])
    };
    assert_eq!(told(&nowhere), "Pending: there is no Cluster edge");
}
