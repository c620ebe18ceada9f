//! The chapter on K3s has every reason of a condition and every event, and no other.

use std::collections::BTreeSet;

use slipway_k3s::{
    api::KThreesControlPlaneStatus,
    control_plane::{plan::Plan, status::status},
};

use crate::world::World;

const PAGE: &str = include_str!("../../../docs/k3s.md");
const REASONS: &str = include_str!("../src/api/conditions.rs");
const CORE: &str = include_str!("../../capi/src/names.rs");
/// Where conditions are set.
const SETTERS: &[&str] = &[
    include_str!("../src/bootstrap/status.rs"),
    include_str!("../src/bootstrap/plan.rs"),
    include_str!("../src/control_plane/act/mod.rs"),
    include_str!("../src/control_plane/status/reports.rs"),
    include_str!("../src/control_plane/upkeep.rs"),
];

/// A section of the page.
fn section(title: &str) -> &'static str {
    let start = PAGE.find(&format!("## {title}")).expect(title);
    let rest = &PAGE[start + 3..];
    rest.split("\n## ").next().unwrap_or_default()
}

/// The words in code marks of a column of the section's tables; the first column is 1.
fn words(section: &str, column: usize) -> BTreeSet<&str> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(column));
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or_default()
}

/// The values of constants in a `mod reason`, by name.
fn constants(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let module = text.split("pub mod reason {").nth(1).unwrap_or_default();
    let lines = module.split("\n}").next().unwrap_or_default().lines();
    lines.filter_map(|line| {
        let (name, value) = line.trim().strip_prefix("pub const ")?.split_once(": &str = ")?;
        Some((name, value.trim_matches(|letter| "\";".contains(letter))))
    })
}

/// Whether a reason is used by name, and not a condition of the same name.
fn uses(text: &str, name: &str) -> bool {
    text.match_indices("reason::").any(|(at, prefix)| {
        let rest = &text[at + prefix.len()..];
        rest.strip_prefix(name)
            .is_some_and(|rest| !rest.starts_with(|next: char| next == '_' || next.is_alphanumeric()))
    })
}

#[test]
fn every_reason_of_a_condition_is_on_the_page_and_no_other() {
    let mut known: BTreeSet<&str> = constants(REASONS).map(|(_, value)| value).collect();
    for text in SETTERS.iter().map(|text| without_tests(text)) {
        known.extend(
            constants(CORE)
                .filter(|(name, _)| uses(text, name))
                .map(|(_, value)| value),
        );
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        known.extend(
            lines
                .flat_map(|line| line.split('"').skip(1).step_by(2))
                .filter(|word| {
                    word.starts_with(|first: char| first.is_ascii_uppercase())
                        && word.len() > 4
                        && word.chars().all(|letter| letter.is_ascii_alphabetic())
                        && !["False", "Unknown", "Machine", "RolloutStarted", "RolloutFinished"]
                            .contains(word)
                }),
        );
    }
    assert!(known.len() > 30, "{known:?}");
    assert_eq!(
        words(section("Conditions and their reasons"), 2),
        known,
        "left: the page"
    );
}

#[test]
fn every_event_is_on_the_page_and_no_other() {
    let actions = include_str!("../src/control_plane/plan/action.rs");
    let events = actions.split("fn event(").nth(1).unwrap_or_default();
    let events = events.split("\n    }\n").next().unwrap_or_default();
    let mut known: BTreeSet<&str> = events.split('"').skip(1).step_by(2).collect();
    let upkeep = include_str!("../src/control_plane/upkeep.rs");
    let reports = upkeep.split(".report(").skip(1);
    known.extend(reports.filter_map(|rest| rest.split('"').nth(1)));
    // The frame's own.
    known.insert("ReconcileError");
    assert!(known.len() > 8, "{known:?}");
    assert_eq!(words(section("Events"), 1), known, "left: the page");
}

/// Those by Cluster API's constants are in no text of the crate: the status itself is asked.
#[test]
fn every_condition_of_a_control_plane_is_registered_for_the_reference() {
    let mut world = World::settled(3);
    let (observed, now) = (world.observed(), world.now());
    let before = KThreesControlPlaneStatus::default();
    let status = status(&observed, &Plan::new(), &[], &before, "edge", None, now);
    let v1beta2 = status.v1beta2.and_then(|v1beta2| v1beta2.conditions);
    let types: BTreeSet<String> = v1beta2
        .into_iter()
        .flatten()
        .map(|condition| condition.type_)
        .chain(
            status
                .conditions
                .into_iter()
                .flatten()
                .map(|condition| condition.type_),
        )
        .collect();
    assert!(types.len() > 14, "{types:?}");
    let provider = slipway_k3s::provider();
    let packages = provider.packages.iter();
    let described: BTreeSet<&str> = packages
        .flat_map(|package| &package.conditions)
        .filter(|condition| condition.kind == "KThreesControlPlane")
        .map(|condition| condition.name)
        .collect();
    let missing: Vec<&String> = types
        .iter()
        .filter(|type_| !described.contains(type_.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
