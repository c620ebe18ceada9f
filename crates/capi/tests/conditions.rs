//! Summary, aggregate and mirror, by the rules that Cluster API documents for them.

use jiff::Timestamp;
use slipway_capi::condition::{
    Aggregate, Condition, Fallback, Owner, Priority, Reasons, Report, Status, Summary, mirror, set,
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

fn conditions(list: &[(&str, Status, &str, &str)]) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for (type_, status, reason, message) in list {
        set(
            &mut conditions,
            &Report::new(type_, *status, reason, *message),
            None,
            at(0),
        );
    }
    conditions
}

use Status::{False, True, Unknown};

#[test]
fn a_summary_tells_every_issue_in_the_order_of_relevance() {
    struct Case {
        name: &'static str,
        conditions: Vec<Condition>,
        expected: (Status, &'static str, &'static str),
    }
    let cases = [
        Case {
            name: "one issue",
            conditions: conditions(&[
                ("B", False, "Reason-B", "Message-B"),
                ("A", True, "Reason-A", ""),
                ("!C", False, "Reason-!C", ""),
            ]),
            expected: (False, "NotReady", "* B: Message-B"),
        },
        Case {
            name: "issues before unknowns do not change the order of types",
            conditions: conditions(&[
                ("B", False, "Reason-B", "Message-B"),
                ("A", Unknown, "Reason-A", "Message-A"),
                ("!C", True, "Reason-!C", "Message-!C"),
            ]),
            expected: (
                False,
                "NotReady",
                "* A: Message-A\n* B: Message-B\n* !C: Message-!C",
            ),
        },
        Case {
            name: "unknown only",
            conditions: conditions(&[
                ("B", Unknown, "Reason-B", ""),
                ("A", True, "Reason-A", "Message-A"),
                ("!C", False, "Reason-!C", ""),
            ]),
            expected: (Unknown, "ReadyUnknown", "* B: Reason-B"),
        },
        Case {
            name: "information is told only when all is well, and only if it says something",
            conditions: conditions(&[
                ("B", True, "Reason-B", ""),
                ("A", True, "Reason-A", "Message-A"),
                ("!C", False, "Reason-!C", "Message-!C"),
            ]),
            expected: (True, "Ready", "* A: Message-A\n* !C: Message-!C"),
        },
        Case {
            name: "what is missing is unknown",
            conditions: conditions(&[("B", True, "Reason-B", ""), ("!C", False, "Reason-!C", "")]),
            expected: (Unknown, "ReadyUnknown", "* A: Condition not yet reported"),
        },
        Case {
            name: "nested lists are indented",
            conditions: conditions(&[
                ("B", False, "Reason-B", "* Machine a: broken\n* Machine b: broken"),
                ("A", True, "Reason-A", ""),
                ("!C", False, "Reason-!C", ""),
            ]),
            expected: (
                False,
                "NotReady",
                "* B:\n  * Machine a: broken\n  * Machine b: broken",
            ),
        },
        Case {
            name: "conditions outside the scope do not count",
            conditions: conditions(&[
                ("D", False, "Reason-D", "Message-D"),
                ("A", True, "Reason-A", ""),
                ("B", True, "Reason-B", ""),
                ("!C", False, "Reason-!C", ""),
            ]),
            expected: (True, "Ready", ""),
        },
    ];
    for case in cases {
        let summary = Summary {
            negative: &["!C"],
            ..Summary::new("Ready", &["A", "B", "!C"], Reasons::READY)
        };
        let report = summary
            .of(&Owner::new("Thing", "t"), &case.conditions)
            .expect(case.name);
        assert_eq!(
            (report.status, report.reason.as_str(), report.message.as_str()),
            case.expected,
            "{}",
            case.name
        );
    }
}

#[test]
fn a_summary_can_leave_out_what_may_be_missing_and_override_what_is_there() {
    let owner = Owner::new("Thing", "t");
    let stored = conditions(&[("A", False, "Reason-A", "raw")]);
    let overrides = [Report::new("A", False, "Reason-A", "told better")];
    let summary = Summary {
        ignore_if_missing: &["B"],
        overrides: &overrides,
        ..Summary::new("Ready", &["A", "B"], Reasons::default())
    };
    let report = summary.of(&owner, &stored).expect("summary");
    assert_eq!(
        (report.reason.as_str(), report.message.as_str()),
        ("IssuesReported", "* A: told better")
    );

    let nothing = Summary {
        ignore_if_missing: &["B"],
        ..Summary::new("Ready", &["B"], Reasons::default())
    };
    assert!(nothing.of(&owner, &[]).is_err());
    assert!(
        Summary::new("Ready", &["Ready"], Reasons::default())
            .of(&owner, &stored)
            .is_err()
    );
    let absent = [Report::new("B", False, "R", "")];
    let wrong = Summary {
        overrides: &absent,
        ..Summary::new("Ready", &["A", "B"], Reasons::default())
    };
    assert_eq!(
        wrong.of(&owner, &stored).expect_err("must exist").to_string(),
        "cannot merge conditions into Ready: the overridden condition B is not reported"
    );
}

/// Builds an aggregate of `Available` over Machines given as (name, control plane, status, message).
fn aggregate(machines: &[(&str, bool, Status, &str)]) -> (Status, String, String) {
    let stored: Vec<_> = machines
        .iter()
        .map(|(name, is_control_plane, status, message)| {
            (
                Owner::machine(name, *is_control_plane),
                conditions(&[("Available", *status, "Reason", message)]),
            )
        })
        .collect();
    let report = Aggregate::new("MachinesAvailable", "Available", Reasons::default())
        .of(stored
            .iter()
            .map(|(owner, conditions)| (owner.clone(), conditions.as_slice())))
        .expect("there are machines");
    assert_eq!(report.type_, "MachinesAvailable");
    (report.status, report.reason, report.message)
}

#[test]
fn an_aggregate_groups_equal_messages() {
    let one = aggregate(&[("a", false, False, "broken")]);
    assert_eq!(
        one,
        (False, "IssuesReported".into(), "* Machine a: broken".into())
    );

    let three = aggregate(&[
        ("c", false, False, "broken"),
        ("a", false, False, "broken"),
        ("b", false, False, "broken"),
    ]);
    assert_eq!(three.2, "* Machines a, b, c: broken");

    let five = aggregate(&[
        ("e", false, False, "broken"),
        ("d", false, False, "broken"),
        ("c", false, False, "broken"),
        ("b", false, False, "broken"),
        ("a", false, False, "broken"),
    ]);
    assert_eq!(five.2, "* Machines a, b, c, ... (2 more): broken");
}

#[test]
fn an_aggregate_tells_three_messages_and_counts_the_rest() {
    let many = aggregate(&[
        ("a", false, False, "message 1"),
        ("b", false, False, "message 2"),
        ("c", false, False, "message 2"),
        ("d", false, False, "message 3"),
        ("e", false, False, "message 4"),
        ("f", false, Unknown, "message 5"),
        ("g", false, Unknown, "message 6"),
        ("h", false, True, "fine"),
    ]);
    assert_eq!(
        many,
        (
            False,
            "IssuesReported".into(),
            "* Machines b, c: message 2\n* Machine a: message 1\n* Machine d: message 3\nAnd 1 Machine with other \
             issues\nAnd 2 Machines with status unknown"
                .into()
        )
    );
}

#[test]
fn control_plane_machines_go_first_and_issues_before_unknowns() {
    let mixed = aggregate(&[
        ("worker-1", false, False, "common"),
        ("worker-2", false, False, "common"),
        ("worker-3", false, Unknown, "lost"),
        ("server-1", true, Unknown, "lost"),
    ]);
    assert_eq!(
        mixed.2,
        "* Machines server-1, worker-3: lost\n* Machines worker-1, worker-2: common"
    );
    let unknown = aggregate(&[("a", false, Unknown, "lost"), ("b", false, True, "fine")]);
    assert_eq!(
        unknown,
        (Unknown, "UnknownReported".into(), "* Machine a: lost".into())
    );
}

#[test]
fn an_aggregate_of_good_news_is_quiet_about_empty_messages() {
    let quiet = aggregate(&[("a", false, True, ""), ("b", false, True, "")]);
    assert_eq!(quiet, (True, "InfoReported".into(), String::new()));
    let telling = aggregate(&[("a", false, True, "soon done"), ("b", false, True, "")]);
    assert_eq!(telling.2, "* Machine a: soon done");
    let multi = aggregate(&[("a", false, False, "* Node: x\n* Disk: y")]);
    assert_eq!(multi.2, "* Machine a:\n  * Node: x\n  * Disk: y");
}

#[test]
fn a_missing_condition_is_unknown_in_an_aggregate() {
    let report = Aggregate::new("Available", "Available", Reasons::AVAILABLE)
        .of([(Owner::machine("a", false), [].as_slice())])
        .expect("aggregate");
    assert_eq!(
        (report.status, report.reason.as_str(), report.message.as_str()),
        (
            Unknown,
            "AvailableUnknown",
            "* Machine a: Condition Available not yet reported"
        )
    );
    let none: [(Owner, &[Condition]); 0] = [];
    assert!(Aggregate::new("A", "A", Reasons::default()).of(none).is_err());
}

#[test]
fn bad_news_of_a_negative_condition_stays_bad_news() {
    let scaling = conditions(&[("ScalingUp", True, "ScalingUp", "to 3")]);
    let resting = conditions(&[("ScalingUp", False, "NotScalingUp", "")]);
    let aggregate = Aggregate::of_negative("ScalingUp", &["ScalingUp"], Reasons::default());
    let both = aggregate
        .of([
            (Owner::new("MachineSet", "a"), scaling.as_slice()),
            (Owner::new("MachineSet", "b"), resting.as_slice()),
        ])
        .expect("aggregate");
    assert_eq!(
        (both.status, both.message.as_str()),
        (True, "* MachineSet a: to 3")
    );
    let rest = aggregate
        .of([(Owner::new("MachineSet", "b"), resting.as_slice())])
        .expect("aggregate");
    assert_eq!(rest.status, False);
}

#[test]
fn a_caller_can_weigh_conditions_itself() {
    let stored = conditions(&[("A", False, "Deleting", "going"), ("B", True, "Fine", "")]);
    let weigh = |owned: &slipway_capi::condition::Owned| {
        if owned.report.reason == "Deleting" {
            Priority::Info
        } else {
            Priority::Unknown
        }
    };
    let mut summary = Summary::new("Ready", &["A", "B"], Reasons::default());
    summary.merge.priority = Some(&weigh);
    let report = summary.of(&Owner::new("T", "t"), &stored).expect("summary");
    assert_eq!((report.status, report.message.as_str()), (Unknown, "* B: Fine"));
}

#[test]
fn a_mirror_keeps_what_the_source_says_and_since_when() {
    let mut source = Vec::new();
    set(
        &mut source,
        &Report::new("Ready", False, "NotReady", "why"),
        Some(4),
        at(42),
    );
    let mirrored = mirror(&source, "Ready", "InfrastructureReady", None);
    assert_eq!(
        mirrored,
        Report {
            type_: "InfrastructureReady".into(),
            status: False,
            reason: "NotReady".into(),
            message: "why".into(),
            since: Some(at(42)),
        }
    );
    let mut target = Vec::new();
    set(&mut target, &mirrored, Some(1), at(100));
    assert_eq!(target[0].last_transition_time.0, at(42));

    let missing = mirror(&[], "Ready", "InfrastructureReady", None);
    assert_eq!(
        (missing.status, missing.reason.as_str(), missing.message.as_str()),
        (Unknown, "NotYetReported", "Condition Ready not yet reported")
    );
    let fallback = Fallback {
        status: False,
        reason: "NotProvisioned",
        message: "EdgeCluster status.initialization.provisioned is false",
    };
    let fallen_back = mirror(&[], "Ready", "InfrastructureReady", Some(fallback));
    assert_eq!(
        (fallen_back.status, fallen_back.reason.as_str()),
        (False, "NotProvisioned")
    );
}
