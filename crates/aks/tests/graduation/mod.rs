//! What makes this API fit to rest on: where it departs from Cluster API's proposal for managed Kubernetes and why, who
//! enforces what in the life of each primitive of AKS, how requests are kept few, and which field of AKS is reached how.
//! Each is a page of the documentation, rendered here; every row names the test that shows it.

mod aks_fields;
mod lifecycle;
mod proposal;
mod requests;
mod troubleshooting;

use std::{collections::BTreeSet, fs, path::Path};

/// The names of every test of this crate and of the stories.
fn tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = BTreeSet::new();
    let mut places = vec![
        root.join("tests"),
        root.join("src"),
        root.join("../azure"),
        root.join("../../tests"),
    ];
    while let Some(place) = places.pop() {
        if place.is_dir() {
            let entries = fs::read_dir(&place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
            places.extend(entries.filter_map(Result::ok).map(|entry| entry.path()));
        } else if place.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&place).unwrap_or_default();
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                    is_test = true;
                } else if let Some(rest) = line
                    .strip_prefix("async fn ")
                    .or_else(|| line.strip_prefix("fn "))
                    && is_test
                {
                    names.extend(rest.split('(').next().map(str::to_owned));
                    is_test = false;
                }
            }
        }
    }
    names
}

/// Every test that a page names must be there.
fn check_evidence<'a>(page: &str, named: impl Iterator<Item = &'a str>) {
    let known = tests();
    let missing: Vec<&str> = named
        .flat_map(|names| names.split(", "))
        .filter(|name| !name.is_empty() && !known.contains(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "{page} names tests that are not there: {missing:?}"
    );
}
