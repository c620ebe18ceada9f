//! The reference of conditions has every kind that has any, and every condition that the sources set.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use slipway_runtime::Provider;

/// How the types of conditions end. Reasons that end so, too, begin with one of [`NEGATIONS`] or are one of [`REASONS`].
const ENDINGS: &[&str] = &[
    "Available",
    "Healthy",
    "HealthyCondition",
    "Owned",
    "Paused",
    "Ready",
    "Resized",
    "Running",
    "UpToDate",
];
const NEGATIONS: &[&str] = &["Not", "Waiting"];
const REASONS: &[&str] = &[
    "Healthy",
    "NodeClassNotReady",
    "NodeNotReady",
    "Owned",
    "Running",
    "UpToDate",
];

fn providers() -> Vec<Provider> {
    vec![
        slipway_aks::provider::provider(),
        slipway_aso::provider::provider(),
        slipway_k3s::provider(),
        slipway_autoscaler::provider(),
        slipway_edge::provider(),
    ]
}

/// `(kind, condition)` of every registration.
fn described(providers: &[Provider]) -> BTreeSet<(&'static str, &'static str)> {
    providers
        .iter()
        .flat_map(|provider| &provider.packages)
        .flat_map(|package| &package.conditions)
        .map(|condition| (condition.kind, condition.name))
        .collect()
}

#[test]
fn every_kind_with_conditions_is_described() {
    let providers = providers();
    let described = described(&providers);
    let packages = providers.iter().flat_map(|provider| &provider.packages);
    for crd in packages.flat_map(|package| &package.crds) {
        let has_conditions = crd.spec.versions.iter().any(|version| {
            let schema = serde_json::to_value(&version.schema).expect("a schema is JSON");
            schema
                .pointer("/openAPIV3Schema/properties/status/properties/conditions")
                .is_some()
        });
        let kind = &crd.spec.names.kind;
        // AzureClusterIdentity keeps the field of its upstream, and nobody writes it.
        if has_conditions && kind != "AzureClusterIdentity" {
            // Karpenter's kinds belong to no Cluster that could pause them.
            let expected: &[&str] = if crd.spec.group == "karpenter.sh" {
                &["Ready"]
            } else {
                &["Ready", "Paused"]
            };
            for name in expected {
                assert!(
                    described.contains(&(kind.as_str(), *name)),
                    "{name} of {kind} is not described: add it to the package's conditions"
                );
            }
        }
    }
}

pub fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The quoted words of a text that read like the type of a condition.
fn condition_words(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').skip(1).step_by(2).filter(|word| {
        word.starts_with(|first: char| first.is_ascii_uppercase())
            && word.chars().all(|letter| letter.is_ascii_alphabetic())
            && ENDINGS.iter().any(|ending| word.ends_with(ending))
            && !NEGATIONS.iter().any(|negation| word.starts_with(negation))
            && !REASONS.contains(word)
    })
}

#[test]
fn every_condition_in_the_sources_is_described() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let providers = providers();
    let described: BTreeSet<&str> = described(&providers).into_iter().map(|(_, name)| name).collect();
    let mut missing = BTreeSet::new();
    for provider in ["aks", "aso", "k3s", "autoscaler", "edge"] {
        for path in sources(&crates.join(provider).join("src")) {
            let text = fs::read_to_string(&path).expect("a source file");
            // What a file's own tests quote is not set by it.
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                for word in condition_words(line).filter(|word| !described.contains(word)) {
                    missing.insert(format!("{word} ({})", path.display()));
                }
            }
        }
    }
    assert!(
        missing.is_empty(),
        "not in the conditions of any package, and so not in docs/reference/conditions.md: {missing:#?}"
    );
}
