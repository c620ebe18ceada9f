//! UpgradePolicies: waves, windows, concurrency, what stops a fleet, and over which versions it goes.

use std::{cmp::Ordering, collections::BTreeMap};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use proptest::prelude::*;
use serde_json::{Value, json};
use slipway_edge::{
    hooks::upgrade_plan,
    upgrade_policy::{
        api::{HealthGate, UpgradePolicy, UpgradePolicySpec},
        health::{self, Found},
        judge::{Member, Standing, Verdict, assign, judge},
        path::{self, Journey},
        plan::{Observed, plan},
        status::status,
    },
    version::Version,
};

fn policy(value: Value) -> UpgradePolicySpec {
    serde_json::from_value(value).expect("a policy")
}

fn now() -> Timestamp {
    "2026-11-18T12:00:00Z".parse().expect("a time")
}

fn fleet(standings: &[(&str, &str, Standing)]) -> Vec<Member> {
    standings
        .iter()
        .map(|(name, site, standing)| Member {
            name: (*name).to_owned(),
            labels: [("site".to_owned(), (*site).to_owned())].into(),
            standing: standing.clone(),
        })
        .collect()
}

fn told(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Go => "go".to_owned(),
        Verdict::Wait { reason, message, .. } => format!("{reason}: {message}"),
        Verdict::Halted { message } => format!("halted: {message}"),
    }
}

fn verdicts(policy: &UpgradePolicySpec, members: &[Member], now: Timestamp) -> Vec<String> {
    members
        .iter()
        .map(|member| {
            format!(
                "{} {}",
                member.name,
                told(&judge(policy, members, &member.name, now))
            )
        })
        .collect()
}

#[test]
fn e55_waves_go_one_after_the_other_with_time_between_them() {
    let policy = policy(json!({
        "waves": [
            {"name": "canary", "size": 1},
            {"name": "north", "selector": {"matchLabels": {"site": "north"}}},
        ],
        "soakMinutes": 60, "maxConcurrent": "50%",
    }));
    let mut members = fleet(&[
        ("a", "south", Standing::Waiting),
        ("b", "north", Standing::Waiting),
        ("c", "north", Standing::Waiting),
        ("d", "south", Standing::Waiting),
    ]);
    let waves: BTreeMap<String, usize> = assign(&policy, &members);
    assert_eq!(waves.values().copied().collect::<Vec<_>>(), [0, 1, 1, 2]);
    assert_eq!(
        verdicts(&policy, &members, now()),
        [
            "a go",
            "b WaitingForWave: wave canary is not finished: machine a is not upgraded yet",
            "c WaitingForWave: wave canary is not finished: machine a is not upgraded yet",
            "d WaitingForWave: wave canary is not finished: machine a is not upgraded yet",
        ]
    );
    members[0].standing = Standing::Done(now());
    let soon = now() + SignedDuration::from_mins(59);
    assert_eq!(
        told(&judge(&policy, &members, "b", soon)),
        "Soaking: the wave before runs well until 2026-11-18T13:00:00Z, or not"
    );
    let later = now() + SignedDuration::from_mins(60);
    assert_eq!(told(&judge(&policy, &members, "b", later)), "go");
    assert_eq!(told(&judge(&policy, &members, "c", later)), "go");
    members[1].standing = Standing::Disturbed;
    members[2].standing = Standing::Disturbed;
    assert_eq!(
        told(&judge(&policy, &members, "d", later)),
        "WaitingForWave: wave north is not finished: machine b is not upgraded yet"
    );
    assert_eq!(
        told(&judge(&policy, &members, "b", later)),
        "go",
        "what has begun is finished"
    );
}

#[test]
fn e55_rollbacks_of_an_image_stop_the_fleet() {
    let mut members = fleet(&[
        ("a", "x", Standing::RolledBack),
        ("b", "x", Standing::Waiting),
        ("c", "x", Standing::Disturbed),
    ]);
    let by_default = UpgradePolicySpec::default();
    assert_eq!(
        told(&judge(&by_default, &members, "b", now())),
        "halted: 1 machine went back from this image (a), which stops the upgrade: choose another image, or resume it"
    );
    assert_eq!(told(&judge(&by_default, &members, "c", now())), "go");
    let patient = policy(json!({"stopAfterRollbacks": 2, "maxConcurrent": 2}));
    assert_eq!(told(&judge(&patient, &members, "b", now())), "go");
    members[2].standing = Standing::RolledBack;
    assert!(
        told(&judge(&patient, &members, "b", now()))
            .starts_with("halted: 2 machines went back from this image (a, c)")
    );
}

#[test]
fn e55_windows_hold_up_what_has_not_begun() {
    let policy = policy(json!({"windows": [{"start": "02:00", "minutes": 60, "timeZone": "Europe/Berlin"}]}));
    let members = fleet(&[("a", "x", Standing::Waiting)]);
    assert_eq!(
        judge(&policy, &members, "a", now()),
        Verdict::Wait {
            reason: "OutsideWindow",
            message: "the next window opens at 2026-11-19T01:00:00Z".to_owned(),
            until: "2026-11-19T01:00:00Z".parse().ok(),
        }
    );
    let open: Timestamp = "2026-11-19T01:59:59Z".parse().expect("a time");
    assert_eq!(told(&judge(&policy, &members, "a", open)), "go");
    let running = fleet(&[("a", "x", Standing::Disturbed)]);
    assert_eq!(told(&judge(&policy, &running, "a", now())), "go");
}

fn standing() -> impl Strategy<Value = Standing> {
    prop_oneof![
        3 => Just(Standing::Waiting),
        2 => Just(Standing::Disturbed),
        1 => Just(Standing::Done(Timestamp::UNIX_EPOCH)),
        1 => Just(Standing::Failed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Everybody who is asked says go to no more machines than may be disturbed at once, also where some see others as they were before.
    #[test]
    fn e55_no_more_than_allowed_are_disturbed_however_stale_the_facts_are(
        standings in proptest::collection::vec((standing(), any::<bool>()), 1..12),
        most in 1..5_i32,
    ) {
        let policy = UpgradePolicySpec { max_concurrent: Some(IntOrString::Int(most)), ..UpgradePolicySpec::default() };
        let member = |number: usize, standing: &Standing| Member {
            name: format!("m-{number:02}"),
            labels: BTreeMap::new(),
            standing: standing.clone(),
        };
        let current: Vec<Member> = standings.iter().enumerate().map(|(number, (standing, _))| member(number, standing)).collect();
        // One that has just begun is still seen as waiting by some.
        let stale: Vec<Member> = standings.iter().enumerate().map(|(number, (standing, is_stale))| {
            let seen = if *is_stale && *standing == Standing::Disturbed { Standing::Waiting } else { standing.clone() };
            member(number, &seen)
        }).collect();
        let disturbed = current.iter().filter(|member| member.standing == Standing::Disturbed).count();
        // Those that began in turn, which is how they come to be disturbed at all.
        let in_turn = current.iter().filter(|member| member.standing == Standing::Disturbed).all(|member| {
            judge(&policy, &stale, &member.name, now()) == Verdict::Go
        });
        prop_assume!(in_turn && disturbed <= most as usize);
        let going = current.iter().zip(&stale).filter(|(_, seen)| {
            seen.standing == Standing::Waiting && judge(&policy, &stale, &seen.name, now()) == Verdict::Go
        }).filter(|(member, _)| member.standing == Standing::Waiting).count();
        prop_assert!(disturbed + going <= most as usize, "{disturbed} are disturbed and {going} more go");
    }

    /// The rules by which Cluster API's core checks a plan that it is given.
    #[test]
    fn e58_every_path_keeps_to_the_rules_on_version_skew(
        from in 28..34_u64,
        behind in 0..3_u64,
        ahead in 0..7_u64,
        patch in 0..3_u64,
        mandatory in proptest::collection::vec((28..40_u64, 0..3_u64), 0..4),
    ) {
        let version = |minor: u64, patch: u64| -> Version { format!("v1.{minor}.{patch}+k3s1").parse().unwrap() };
        let (control_plane, to) = (version(from, 0), version(from + ahead, patch));
        let workers = version(from - behind, 0);
        let known: Vec<Version> = (20..50).map(|minor| version(minor, 5)).collect();
        let mandatory: Vec<Version> = mandatory.into_iter().map(|(minor, patch)| version(minor, patch)).collect();
        let path = path::plan(&Journey { control_plane: &control_plane, workers: Some(&workers), to: &to, mandatory: &mandatory, known: &known }).unwrap();
        let mut at = control_plane.clone();
        for next in &path.control_plane {
            prop_assert!(next.compare(&at) == Ordering::Greater && (0..=1).contains(&at.minors_to(next)), "{path}");
            at = next.clone();
        }
        prop_assert_eq!(&at, &to);
        for stop in &mandatory {
            let between = stop.compare(&control_plane) == Ordering::Greater && stop.compare(&to) == Ordering::Less;
            prop_assert!(!between || path.control_plane.iter().any(|taken| taken.compare(stop) == Ordering::Equal), "{stop} is left out of {path}");
        }
        let mut at = workers.clone();
        for next in &path.workers {
            prop_assert!(next.compare(&at) == Ordering::Greater && (0..=3).contains(&at.minors_to(next)), "{path}");
            prop_assert!(path.control_plane.contains(next) || *next == control_plane, "{path}");
            at = next.clone();
        }
        prop_assert_eq!(at.compare(&to), Ordering::Equal);
        // At no moment is a worker more than three minor versions behind the control plane.
        let mut worker = workers.clone();
        for stop in std::iter::once(&control_plane).chain(&path.control_plane) {
            prop_assert!(worker.minors_to(stop) <= 3, "workers at {worker} while the control plane takes {stop}: {path}");
            if path.workers.contains(stop) {
                worker = stop.clone();
            }
        }
    }
}

#[test]
fn e58_an_upgrade_goes_by_way_of_mandatory_versions_and_says_what_is_missing() {
    let plan = |from: &str, workers: &str, to: &str, policy: &UpgradePolicySpec| {
        upgrade_plan::answer(
            &json!({
                "kind": "GenerateUpgradePlanRequest", "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1",
                "cluster": {"metadata": {"name": "edge"}},
                "fromControlPlaneKubernetesVersion": from, "fromWorkersKubernetesVersion": workers, "toKubernetesVersion": to,
            }),
            policy,
        )
    };
    let floors = policy(json!({
        "mandatoryVersions": ["v1.33.7+k3s1"], "knownVersions": ["v1.33.9+k3s1", "v1.34.2+k3s1", "v1.34.5+k3s1"],
    }));
    assert_eq!(
        plan("v1.32.1+k3s1", "v1.32.1+k3s1", "v1.35.0+k3s1", &floors),
        json!({
            "status": "Success",
            "controlPlaneUpgrades": [{"version": "v1.33.7+k3s1"}, {"version": "v1.34.5+k3s1"}, {"version": "v1.35.0+k3s1"}],
            "workersUpgrades": [{"version": "v1.33.7+k3s1"}, {"version": "v1.35.0+k3s1"}],
        })
    );
    let none = UpgradePolicySpec::default();
    assert_eq!(
        plan("v1.33.0", "", "v1.34.0", &none),
        json!({"status": "Success", "controlPlaneUpgrades": [{"version": "v1.34.0"}], "workersUpgrades": []})
    );
    assert_eq!(
        plan("v1.33.0", "v1.33.0", "v1.35.0", &none),
        json!({"status": "Failure", "message": "no version of v1.34 is known on the way from v1.33.0 to v1.35.0: add one to \
            knownVersions of the UpgradePolicy, and its image"})
    );
    assert_eq!(
        plan("v1.35.0", "v1.33.0", "v1.34.0", &none)["message"],
        "v1.34.0 is older than v1.35.0: upgrades never go back"
    );
    assert_eq!(
        plan("latest", "", "v1.34.0", &none)["message"],
        "fromControlPlaneKubernetesVersion \"latest\": must be a version of Kubernetes with a leading v, e.g. v1.34.1 or v1.34.1+k3s1"
    );
}

/// What a policy says of itself: whether upgrades can go by it, what is wrong where, and who goes by it.
#[test]
fn a_policy_says_what_is_wrong_with_it_and_who_goes_by_it() {
    let said = |spec: Value, upgrades: usize| {
        let mut object = UpgradePolicy::new("slow", policy(spec));
        object.metadata.generation = Some(4);
        let observed = Observed {
            object,
            cluster_upgrades: vec!["to-1-35".to_owned()],
            node_upgrades: upgrades,
        };
        let status = status(&observed, &plan(&observed), now());
        assert_eq!(status.observed_generation, Some(4));
        assert_eq!(
            (status.cluster_upgrades.len(), status.node_upgrades),
            (1, i32::try_from(upgrades).expect("few"))
        );
        let ready = &status.conditions[0];
        assert_eq!(ready.observed_generation, Some(4));
        format!(
            "{} {} {}: {}",
            ready.type_, ready.status, ready.reason, ready.message
        )
    };
    for (spec, upgrades, expected) in [
        (json!({}), 0, "Ready True Ready: "),
        (
            json!({"waves": [{"name": "all"}, {"name": "never"}]}),
            3,
            "Ready True Ready: spec.waves[0] takes every machine: nothing is left for the waves after it",
        ),
        (
            json!({"maxConcurrent": "many"}),
            0,
            "Ready False Invalid: correct spec.maxConcurrent: Invalid value: \"many\": must be a number that is not negative, or a share \
             from 0% to 100%",
        ),
        (
            json!({"stopAfterRollbacks": 0, "knownVersions": ["latest"]}),
            2,
            "Ready False Invalid: correct spec.stopAfterRollbacks: Invalid value: 0: must be at least 1: an upgrade that has not begun \
             cannot be stopped by its rollbacks; spec.knownVersions[0]: Invalid value: \"latest\": ",
        ),
    ] {
        let said = said(spec, upgrades);
        assert!(said.starts_with(expected), "{said}");
        assert_eq!(
            said.ends_with("; 2 upgrades wait for it"),
            upgrades == 2,
            "{said}"
        );
    }
}

/// What of a cluster is not well, by gate: one row each.
#[test]
fn e55_health_gates_name_what_is_not_well() {
    fn told<K: serde::de::DeserializeOwned>(
        objects: &[Value],
        found: fn(Vec<K>) -> Found,
        kind: &str,
    ) -> String {
        let objects = objects
            .iter()
            .map(|object| serde_json::from_value(object.clone()).expect("an object"));
        let gate: HealthGate =
            serde_json::from_value(json!({"kind": kind, "namespace": "shop"})).expect("a gate");
        // One machine is being upgraded.
        health::message(&health::unhealthy(&gate, &found(objects.collect()), 1))
    }
    let metadata = json!({"name": "web", "namespace": "shop", "generation": 2});
    let deployment = |observed: i32, available: &str, pods: i32| {
        json!({"metadata": metadata, "spec": {"replicas": 3, "selector": {}, "template": {}}, "status": {
            "observedGeneration": observed, "availableReplicas": pods,
            "conditions": [{"type": "Progressing", "status": "True"}, {"type": "Available", "status": available}]}})
    };
    let deployments = |objects: &[Value]| told(objects, Found::Deployments, "Deployment");
    assert_eq!(
        deployments(&[deployment(2, "True", 2)]),
        "",
        "as its own strategy has it"
    );
    assert_eq!(
        deployments(&[deployment(2, "False", 1)]),
        "Deployment shop/web is not available: 1 of 3 Pods are"
    );
    assert_eq!(
        deployments(&[deployment(1, "True", 3)]),
        "Deployment shop/web has not been looked at by its controller"
    );
    assert_eq!(
        deployments(&[]),
        "there is no Deployment in namespace shop that a health gate selects"
    );
    let many = vec![deployment(2, "False", 0); 5];
    assert!(
        deployments(&many).ends_with("; and 2 more"),
        "{}",
        deployments(&many)
    );

    let stateful = |available: i32| {
        json!({"metadata": metadata, "spec": {"replicas": 3, "serviceName": "db", "selector": {}, "template": {}},
            "status": {"observedGeneration": 2, "replicas": 3, "availableReplicas": available}})
    };
    let stateful_sets = |available| told(&[stateful(available)], Found::StatefulSets, "StatefulSet");
    assert_eq!(stateful_sets(3), "");
    assert_eq!(
        stateful_sets(2),
        "StatefulSet shop/web is not available: 2 of 3 Pods are"
    );

    let daemon = |available: i32| {
        json!({"metadata": metadata, "spec": {"selector": {}, "template": {}}, "status": {"observedGeneration": 2,
            "currentNumberScheduled": 4, "desiredNumberScheduled": 4, "numberMisscheduled": 0, "numberReady": available,
            "numberAvailable": available}})
    };
    let daemon_sets = |available| told(&[daemon(available)], Found::DaemonSets, "DaemonSet");
    assert_eq!(daemon_sets(3), "", "that of the machine that is being upgraded");
    assert_eq!(
        daemon_sets(2),
        "DaemonSet shop/web is not available: 2 of 4 Pods are"
    );

    let node = |name: &str, ready: &str| json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}});
    let nodes = |objects: &[Value]| told(objects, Found::Nodes, "Node");
    assert_eq!(nodes(&[node("a", "True"), node("b", "Unknown")]), "");
    assert_eq!(
        nodes(&[node("a", "False"), node("b", "Unknown"), node("c", "True")]),
        "Node a is not ready; Node b is not ready"
    );
}
