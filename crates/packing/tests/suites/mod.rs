//! Karpenter's own test suites, case by case, as data: `data/suites/*.cases` names every case of a suite and either
//! plays it, or says why it has no meaning for pure functions (`skip`), or that it is still to be done (`open`).
//!
//! A case is a few lines. `context` names a place in the suite, and its `always` lines are played before each of its
//! cases. Pods wait until the first question about them, then all are placed together. What a plan asks for is
//! launched as the suites' fake provider does it: it has joined, but it is not initialized.

mod catalog;
mod disruption;
mod environment;
mod expect;
mod names;
mod nodes;
mod pods;
mod pools;
mod storage;
mod words;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::report;
use environment::Environment;

/// A suite of Karpenter v1.15.0, how many cases it has, and how many of them are played.
struct Suite {
    name: &'static str,
    /// Below `pkg/controllers`.
    sources: &'static [&'static str],
    total: usize,
    played: usize,
}

const SUITES: [Suite; 13] = [
    Suite {
        name: "scheduling",
        sources: &["provisioning/scheduling/suite_test.go"],
        total: 220,
        played: 203,
    },
    Suite {
        name: "topology",
        sources: &["provisioning/scheduling/topology_test.go"],
        total: 103,
        played: 102,
    },
    Suite {
        name: "instance-selection",
        sources: &["provisioning/scheduling/instance_selection_test.go"],
        total: 36,
        played: 36,
    },
    Suite {
        name: "provisioning",
        sources: &["provisioning/suite_test.go"],
        total: 118,
        played: 106,
    },
    Suite {
        name: "default-constraints",
        sources: &["provisioning/scheduling/defaultconstraints_test.go"],
        total: 23,
        played: 22,
    },
    Suite {
        name: "reserved",
        sources: &[
            "provisioning/scheduling/reservationmanager_test.go",
            "provisioning/scheduling/reserved_fallback_test.go",
        ],
        total: 32,
        played: 7,
    },
    Suite {
        name: "consolidation",
        sources: &["disruption/consolidation_test.go"],
        total: 110,
        played: 110,
    },
    Suite {
        name: "emptiness",
        sources: &["disruption/emptiness_test.go"],
        total: 26,
        played: 26,
    },
    Suite {
        name: "drift",
        sources: &["disruption/drift_test.go"],
        total: 24,
        played: 23,
    },
    Suite {
        name: "disruption",
        sources: &["disruption/suite_test.go"],
        total: 66,
        played: 58,
    },
    Suite {
        name: "balanced",
        sources: &[
            "disruption/balanced_integration_test.go",
            "disruption/balanced_scoring_test.go",
            "disruption/balanced_test.go",
            "disruption/balanced_adversarial_test.go",
        ],
        total: 58,
        played: 47,
    },
    Suite {
        name: "single-node",
        sources: &["disruption/singlenodeconsolidation_test.go"],
        total: 5,
        played: 2,
    },
    Suite {
        name: "disruption-controllers",
        sources: &[
            "disruption/validation_test.go",
            "disruption/staticdrift_test.go",
            "disruption/terminatefirst_test.go",
            "disruption/queue_test.go",
            "disruption/repair_test.go",
            "disruption/repair_terminatefirst_test.go",
            "disruption/repair_history_test.go",
            "disruption/consolidation_dra_test.go",
        ],
        total: 153,
        played: 108,
    },
];

#[derive(Default)]
struct Case {
    place: String,
    context: String,
    name: String,
    lines: Vec<(String, String)>,
    skip: Option<String>,
    open: bool,
}

fn read(suite: &str) -> Vec<Case> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/suites");
    let mut files: Vec<_> = std::fs::read_dir(&directory)
        .expect("the suites")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let name = name.trim_end_matches(|last: char| last.is_ascii_digit());
            name.trim_end_matches('-') == suite
        })
        .collect();
    files.sort();
    let mut cases: Vec<Case> = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a suite's file");
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let (mut context, mut always) = (String::new(), Vec::new());
        for (number, line) in text.lines().enumerate() {
            let place = format!("{name}:{}", number + 1);
            let line = line.trim();
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "" | "#" => {}
                "context" => {
                    rest.clone_into(&mut context);
                    always.clear();
                }
                "always" => always.push((place, rest.to_owned())),
                "case" => cases.push(Case {
                    place,
                    context: context.clone(),
                    name: rest.to_owned(),
                    lines: always.clone(),
                    ..Case::default()
                }),
                "skip" => cases.last_mut().expect("a case").skip = Some(rest.to_owned()),
                "open" => cases.last_mut().expect("a case").open = true,
                _ => cases
                    .last_mut()
                    .expect("a case")
                    .lines
                    .push((place, line.to_owned())),
            }
        }
    }
    cases
}

/// Plays a case; the problem, if there is one.
fn play(case: &Case) -> Option<String> {
    let mut at = case.place.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut environment = Environment::new();
        for (place, line) in &case.lines {
            at.clone_from(place);
            let words: Vec<&str> = line.split_whitespace().collect();
            let known =
                environment.set_up(&words) || environment.expect(&words) || environment.disruption(&words);
            assert!(known, "unknown line {line:?}");
        }
        assert!(environment.asked > 0, "the case asks nothing");
    }));
    let panic = outcome.err()?;
    let message = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default();
    Some(format!("{} > {} ({at}): {message}", case.context, case.name))
}

/// Plays a suite. `SLIPWAY_CASE` picks cases by a part of their name.
fn suite(name: &str) {
    let suite = SUITES.iter().find(|suite| suite.name == name).expect("a suite");
    let cases = read(name);
    assert_eq!(cases.len(), suite.total, "{name}: every case is listed once");
    for case in &cases {
        let why = case.skip.as_ref().is_none_or(|why| why.len() > 10);
        assert!(why, "{} does not say why it is skipped", case.place);
    }
    let played: Vec<&Case> = cases
        .iter()
        .filter(|case| case.skip.is_none() && !case.open)
        .collect();
    let only = std::env::var("SLIPWAY_CASE").unwrap_or_default();
    let problems: Vec<String> = played
        .iter()
        .filter(|case| case.name.contains(&only))
        .filter_map(|case| play(case))
        .collect();
    assert!(
        problems.is_empty(),
        "{} cases fail:\n{}",
        problems.len(),
        problems.join("\n")
    );
    let skipped = cases.iter().filter(|case| case.skip.is_some()).count();
    println!(
        "report: packing oracle {name} suite: {skipped} of {} do not apply",
        suite.total
    );
    report::oracle(&format!("{name} suite"), played.len(), suite.total, suite.played);
}

#[test]
fn scheduling() {
    suite("scheduling");
}

#[test]
fn topology() {
    suite("topology");
}

#[test]
fn instance_selection() {
    suite("instance-selection");
}

#[test]
fn provisioning() {
    suite("provisioning");
}

#[test]
fn default_constraints() {
    suite("default-constraints");
}

#[test]
fn reserved() {
    suite("reserved");
}

#[test]
fn consolidation() {
    suite("consolidation");
}

#[test]
fn emptiness() {
    suite("emptiness");
}

#[test]
fn drift() {
    suite("drift");
}

#[test]
fn disruption_suite() {
    suite("disruption");
}

#[test]
fn balanced() {
    suite("balanced");
}

#[test]
fn single_node() {
    suite("single-node");
}

#[test]
fn disruption_controllers() {
    suite("disruption-controllers");
}
