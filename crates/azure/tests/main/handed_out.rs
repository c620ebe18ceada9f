//! What kinds hand out for the asking, against what Azure answered when the module's tests were recorded.

use std::collections::{BTreeMap, BTreeSet};

use slipway_azure::{
    arm::ResourceId,
    resource::{
        Table,
        handed_out::{self, HandedOut},
    },
};

use crate::recordings;

/// The group and kind of each type of Azure, as often as the table has it.
fn kinds() -> BTreeMap<String, BTreeSet<(String, String)>> {
    let mut found: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for mapping in Table::get().all() {
        let known = found.entry(mapping.arm_type.to_lowercase()).or_default();
        known.insert((mapping.group, mapping.kind));
    }
    found
}

#[test]
fn every_kind_that_hands_something_out_is_in_the_table() {
    let known: BTreeSet<(String, String)> = kinds().into_values().flatten().collect();
    for (group, kind) in handed_out::kinds() {
        let full = (format!("{group}.azure.com"), kind.to_owned());
        assert!(known.contains(&full), "{group} {kind}");
    }
}

#[test]
fn recorded_answers_have_what_is_handed_out() {
    let kinds = kinds();
    let (mut answers, mut values, mut covered) = (0, 0, BTreeSet::new());
    for (recording, exchanges) in recordings::named(&[""]) {
        for exchange in exchanges {
            if exchange.method != "POST" || exchange.status != 200 {
                continue;
            }
            for (type_, of_type) in &kinds {
                for (group, kind) in of_type {
                    let listed = handed_out::secrets(group, kind).iter();
                    let listed: Vec<_> = listed
                        .filter_map(|(name, found)| match found {
                            HandedOut::Listed(listed) => Some((name, listed)),
                            HandedOut::Shown(_) => None,
                        })
                        .filter(|(_, listed)| {
                            let ending = format!("/{}", listed.action).to_lowercase();
                            let path = exchange.path.to_lowercase();
                            let id = path
                                .strip_suffix(&ending)
                                .and_then(|id| ResourceId::parse(id).ok());
                            id.is_some_and(|id| id.resource_type().eq_ignore_ascii_case(type_))
                        })
                        .collect();
                    if listed.is_empty() {
                        continue;
                    }
                    answers += 1;
                    covered.insert((group.clone(), kind.clone()));
                    // A registry that a workspace has not has no password either.
                    let found = listed
                        .iter()
                        .filter_map(|(_, listed)| listed.of(&exchange.answer));
                    let found = found.count();
                    assert!(found > 0, "{recording}: {group} {kind}: {}", exchange.answer);
                    values += found;
                }
            }
        }
    }
    println!(
        "report: azure: {answers} recorded answers of {} kinds have {values} values that are handed out",
        covered.len()
    );
    for (group, kind) in handed_out::kinds() {
        let full = (format!("{group}.azure.com"), kind.to_owned());
        let asks = handed_out::secrets(group, kind).iter();
        if asks.clone().any(|(_, one)| matches!(one, HandedOut::Listed(_))) && !covered.contains(&full) {
            println!("report: azure: no recorded answer: {group} {kind}");
        }
    }
    assert!(covered.len() >= 5, "{covered:?}");
}

/// Every pointer into a body leads somewhere in a body that Azure answered with; of what no recording has, the reason is below.
#[test]
fn recorded_bodies_have_what_is_shown() {
    let kinds = kinds();
    let mut found: BTreeMap<(String, &str, &str), bool> = BTreeMap::new();
    for (_, exchanges) in recordings::named(&[""]) {
        for exchange in exchanges {
            let is_body = matches!(exchange.method.as_str(), "GET" | "PUT") && exchange.status < 300;
            let Some(id) = ResourceId::parse(&exchange.path).ok().filter(|_| is_body) else {
                continue;
            };
            let of_type = kinds.get(&id.resource_type().to_lowercase());
            for (group, kind) in of_type.into_iter().flatten() {
                let values = handed_out::secrets(group, kind)
                    .iter()
                    .chain(handed_out::config(group, kind));
                for (name, value) in values {
                    if let HandedOut::Shown(pointer) = value {
                        let at = exchange.answer.pointer(pointer);
                        let is_there = at.is_some_and(|at| at.is_string() || at.is_number());
                        *found
                            .entry((format!("{group} {kind}"), name, pointer))
                            .or_default() |= is_there;
                    }
                }
            }
        }
    }
    let missing: Vec<String> = found
        .iter()
        .filter(|(_, is_there)| !**is_there)
        .map(|((kind, name, pointer), _)| format!("{kind} {name} {pointer}"))
        .collect();
    println!(
        "report: azure: {} of {} values are shown by recorded bodies",
        found.len() - missing.len(),
        found.len()
    );
    assert_eq!(missing, NOT_RECORDED);
}

/// The recorded cluster of Kusto has no identity.
const NOT_RECORDED: [&str; 2] = [
    "kusto.azure.com Cluster clusterPrincipalId /identity/principalId",
    "kusto.azure.com Cluster clusterTenantId /identity/tenantId",
];
