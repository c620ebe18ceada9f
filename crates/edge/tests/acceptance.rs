//! The table of docs/edge/operator.md is held to the tests: a behaviour that it calls shown is named in one, and the other way round.

use std::{collections::BTreeSet, fs, path::Path};

use regex::Regex;

#[test]
fn every_behaviour_that_is_shown_is_named_in_a_test_and_in_the_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("../../docs/edge/operator.md")).expect("the page");
    let in_table: BTreeSet<u32> = Regex::new(r"(?m)^\| E-(\d+) ")
        .expect("a pattern")
        .captures_iter(&page)
        .map(|found| found[1].parse().expect("a number"))
        .collect();
    let mut in_tests = BTreeSet::new();
    let name = Regex::new(r"fn (e\d+_\w+)").expect("a pattern");
    let number = Regex::new(r"e(\d+)_").expect("a pattern");
    let folders =
        ["tests", "../../tests/stories"].map(|folder| fs::read_dir(root.join(folder)).expect("tests"));
    for file in folders.into_iter().flatten().flatten() {
        let is_ours = |path: &Path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            path.starts_with(root.join("tests")) || name.starts_with("edge_")
        };
        let Some(text) = Some(file.path())
            .filter(|path| is_ours(path))
            .and_then(|path| fs::read_to_string(path).ok())
        else {
            continue;
        };
        for found in name.captures_iter(&text) {
            let numbers = number.captures_iter(&found[1]);
            in_tests.extend(numbers.map(|found| found[1].parse::<u32>().expect("a number")));
        }
    }
    assert_eq!(in_table, in_tests, "left: the table, right: the tests");
    let asked: BTreeSet<u32> = (1..=20).chain([28, 51]).chain(55..=58).collect();
    assert_eq!(
        asked, in_table,
        "left: what is asked of the operator, right: the table"
    );
}
