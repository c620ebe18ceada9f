//! ClusterUpgrades: what is written to a cluster over time, in golden files.

use std::fmt::Write as _;

use serde_json::json;
use slipway_edge::{
    api::Image,
    cluster_upgrade::{
        api::{ClusterUpgradePhase, ClusterUpgradeSpec, VersionedImage},
        facts::{Asked, ClusterFacts, Facts, HostUpgradeFacts, MachineFacts, MachinesFacts},
        plan::{Action, Decision, decide},
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

fn machine(version: &str) -> MachineFacts {
    MachineFacts {
        version: version.to_owned(),
        image: Some(image(version)),
        is_updating: false,
    }
}

fn machines(name: &str, version: &str, replicas: i32) -> MachinesFacts {
    MachinesFacts {
        name: name.to_owned(),
        asked: asked(version),
        replicas,
        counted: replicas,
        is_current: true,
        available: replicas,
        machines: (0..replicas).map(|_| machine(version)).collect(),
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

/// One machine becomes what is asked for; its owner counts it.
fn roll_one(machines: &mut MachinesFacts) {
    let asked = machines.asked.clone();
    let is_new = |machine: &MachineFacts| machine.version == asked.version && machine.image == asked.image;
    if let Some(old) = machines.machines.iter_mut().find(|machine| !is_new(machine)) {
        old.version.clone_from(&asked.version);
        old.image.clone_from(&asked.image);
    }
    let counted = machines.machines.iter().filter(|machine| is_new(machine)).count();
    machines.counted = i32::try_from(counted).expect("a few");
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
            Action::WriteControlPlane { version, image } => {
                cluster.control_plane.asked = Asked {
                    version: version.clone(),
                    image: Some(image.clone()),
                };
            }
            Action::WriteDeployment { name, version, image } => {
                let found = cluster.deployments.iter_mut().find(|one| one.name == *name);
                found.expect("a deployment").asked = Asked {
                    version: version.clone(),
                    image: Some(image.clone()),
                };
            }
        }
    }
    if let Some(topology) = cluster.topology.clone() {
        cluster.control_plane.asked = topology.clone();
        if cluster.control_plane.is_settled() {
            for deployment in &mut cluster.deployments {
                deployment.asked = topology.clone();
            }
        }
    }
    for machines in std::iter::once(&mut cluster.control_plane).chain(&mut cluster.deployments) {
        roll_one(machines);
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

fn went_back(machine: &str, version: &str) -> HostUpgradeFacts {
    HostUpgradeFacts {
        machine: machine.to_owned(),
        digest: image(version).digest,
        created: "2026-11-18T01:00:00Z".parse().ok(),
        went_back: true,
        ..HostUpgradeFacts::default()
    }
}

#[test]
fn e55_a_fleet_that_is_stopped_gets_nothing_new_until_it_is_resumed() {
    let mut facts = facts("v1.34.2+k3s1", &["v1.34.3+k3s1"]);
    let first = decide(&facts);
    roll(&mut facts, &first);
    facts.upgrades = vec![went_back("m-0", "v1.34.3+k3s1")];
    for _ in 0..10 {
        let decision = decide(&facts);
        assert_eq!(
            (decision.phase, decision.plan.actions().count()),
            (ClusterUpgradePhase::Halted, 0)
        );
        roll(&mut facts, &decision);
    }
    // A person has seen it, and takes it away.
    facts.upgrades[0].is_deleting = true;
    facts.spec.paused = true;
    assert_eq!(decide(&facts).phase, ClusterUpgradePhase::Paused);
    facts.spec.paused = false;
    story(&mut facts);
}

/// What keeps the next machine is told by the ClusterUpgrade too, as long as that machine goes to the image that is taken.
#[test]
fn e55_what_is_not_well_is_named_while_the_cluster_waits_for_it() {
    let mut facts = facts("v1.34.2+k3s1", &["v1.34.3+k3s1"]);
    let first = decide(&facts);
    assert_eq!(first.phase, ClusterUpgradePhase::ControlPlane);
    cluster(&mut facts).control_plane.asked = asked("v1.34.3+k3s1");
    let told = |facts: &Facts| {
        let decision = decide(facts);
        let wait = decision
            .plan
            .waits()
            .next()
            .map(|(wait, why)| format!("{}: {why}", wait.reason));
        wait.unwrap_or_default()
    };
    let rolls = told(&facts);
    assert!(
        rolls.starts_with("RollingOut: the control plane rolls out"),
        "{rolls}"
    );
    facts.upgrades = vec![HostUpgradeFacts {
        machine: "m-2".to_owned(),
        digest: image("v1.34.3+k3s1").digest,
        waits_for_health: Some("StatefulSet shop/db is not available: 2 of 3 Pods are".to_owned()),
        ..HostUpgradeFacts::default()
    }];
    assert_eq!(
        told(&facts),
        format!(
            "NotHealthy: {}; machine m-2 waits: StatefulSet shop/db is not available: 2 of 3 Pods are",
            rolls.trim_start_matches("RollingOut: ")
        )
    );
    facts.upgrades[0].digest = image("v1.33.2+k3s1").digest;
    assert_eq!(told(&facts), rolls);
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

/// Which upgrades of hosts stop the cluster's, and which do not.
#[test]
fn e55_what_went_back_counts_once_a_machine_for_an_image_that_is_asked_for() {
    let later = |upgrade: HostUpgradeFacts, went_back: bool| HostUpgradeFacts {
        created: "2026-11-18T02:00:00Z".parse().ok(),
        went_back,
        ..upgrade
    };
    let new = "v1.34.3+k3s1";
    let two = json!({"stopAfterRollbacks": 2});
    let table = [
        ("nobody went back", json!({}), vec![], None),
        (
            "one is enough",
            json!({}),
            vec![went_back("m-0", new)],
            Some("1 machine went back from this image (m-0)"),
        ),
        (
            "not where two are asked for",
            two.clone(),
            vec![went_back("m-0", new)],
            None,
        ),
        (
            "two of two",
            two.clone(),
            vec![went_back("m-0", new), went_back("m-1", new)],
            Some("2 machines went back from this image (m-0, m-1)"),
        ),
        (
            "the same machine twice is one",
            two,
            vec![went_back("m-0", new), later(went_back("m-0", new), true)],
            None,
        ),
        (
            "it has the image by now",
            json!({}),
            vec![went_back("m-0", new), later(went_back("m-0", new), false)],
            None,
        ),
        (
            "the order in which they are listed does not matter",
            json!({}),
            vec![
                later(went_back("m-0", new), true),
                HostUpgradeFacts {
                    went_back: false,
                    ..went_back("m-0", new)
                },
            ],
            Some("1 machine"),
        ),
        (
            "another image",
            json!({}),
            vec![went_back("m-0", "v1.33.5+k3s1")],
            None,
        ),
        (
            "another policy",
            json!({}),
            vec![HostUpgradeFacts {
                policy_name: Some("other".to_owned()),
                ..went_back("m-0", new)
            }],
            None,
        ),
        (
            "it is taken away",
            json!({}),
            vec![HostUpgradeFacts {
                is_deleting: true,
                ..went_back("m-0", new)
            }],
            None,
        ),
    ];
    for (case, policy, upgrades, expected) in table {
        let mut facts = facts("v1.34.2+k3s1", &[new]);
        facts.policy = serde_json::from_value(policy).expect("a policy");
        facts.upgrades = upgrades;
        let decision = decide(&facts);
        match expected {
            Some(message) => {
                assert_eq!(decision.phase, ClusterUpgradePhase::Halted, "{case}");
                assert!(
                    decision.message.starts_with(message),
                    "{case}: {}",
                    decision.message
                );
            }
            None => assert_eq!(decision.phase, ClusterUpgradePhase::ControlPlane, "{case}"),
        }
    }
}

/// Who is waited for: the owner's count, the kubelet, the host and Cluster API have to agree.
#[test]
fn a_machine_is_up_to_date_when_everybody_says_so() {
    let new = "v1.34.3+k3s1";
    let up_to_date = |change: &dyn Fn(&mut MachinesFacts)| {
        let mut machines = machines("servers", new, 3);
        change(&mut machines);
        (machines.up_to_date(), machines.is_settled())
    };
    assert_eq!(up_to_date(&|_| {}), (3, true));
    assert_eq!(
        up_to_date(&|machines| machines.counted = 2),
        (2, false),
        "its owner"
    );
    assert_eq!(
        up_to_date(&|machines| machines.is_current = false),
        (0, false),
        "by an older spec"
    );
    assert_eq!(
        up_to_date(&|machines| "v1.34.2+k3s1".clone_into(&mut machines.machines[1].version)),
        (2, false),
        "its kubelet"
    );
    assert_eq!(
        up_to_date(&|machines| machines.machines[1].image = None),
        (2, false),
        "its host"
    );
    assert_eq!(
        up_to_date(&|machines| machines.machines[1].is_updating = true),
        (2, false),
        "Cluster API"
    );
    assert_eq!(
        up_to_date(&|machines| machines.available = 2),
        (3, false),
        "it is not there"
    );
    let mut mixed = machines("servers", new, 3);
    "v1.33.5+k3s1".clone_into(&mut mixed.machines[2].version);
    assert_eq!(mixed.oldest(), "v1.33.5+k3s1".parse().ok());
    mixed.machines.clear();
    assert_eq!(mixed.oldest(), None);
}

/// What holds an upgrade up before its first write, each with the word that its condition has.
#[test]
fn what_has_to_be_there_first() {
    let new = "v1.34.3+k3s1";
    let reason = |change: &dyn Fn(&mut Facts)| {
        let mut facts = facts("v1.34.2+k3s1", &[new]);
        change(&mut facts);
        let decision = decide(&facts);
        assert_eq!(decision.plan.actions().count(), 0);
        let wait = decision.plan.waits().next().map(|(wait, _)| wait.reason.clone());
        (format!("{:?}", decision.phase), wait.expect("it waits"))
    };
    let told = |phase: &str, reason: &str| (phase.to_owned(), reason.to_owned());
    assert_eq!(
        reason(&|facts| facts.cluster = None),
        told("Pending", "NoCluster")
    );
    assert_eq!(
        reason(&|facts| facts.is_policy_missing = true),
        told("Blocked", "NoPolicy")
    );
    assert_eq!(
        reason(&|facts| cluster(facts).control_plane.asked.version.clear()),
        told("Blocked", "NoControlPlane")
    );
    assert_eq!(
        reason(&|facts| cluster(facts).is_paused = true),
        told("Paused", "Paused")
    );
    assert_eq!(
        reason(&|facts| facts.spec.paused = true),
        told("Paused", "Paused")
    );
    assert_eq!(
        reason(&|facts| facts.upgrades = vec![went_back("m-0", new)]),
        told("Halted", "Halted")
    );
    // A cluster that is there already is not held up by anything.
    let mut done = facts(new, &[new]);
    done.upgrades = vec![went_back("m-0", new)];
    done.spec.paused = true;
    assert_eq!(decide(&done).phase, ClusterUpgradePhase::Done);
}
