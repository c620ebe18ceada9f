//! The page of who enforces what names tests that are there.

use std::{collections::BTreeSet, fs, path::Path};

fn named_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of tests") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            named_in(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        let names = text
            .lines()
            .filter_map(|line| line.split_once("fn ")?.1.split_once('('));
        found.extend(names.map(|(name, _)| name.to_owned()));
    }
}

#[test]
fn the_page_of_who_enforces_what_names_tests_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    named_in(&root.join("tests"), &mut tests);
    let page = fs::read_to_string(root.join("../../docs/aso/lifecycle.md")).expect("the page");
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains('`'));
    let mut named = 0;
    for row in rows {
        let cell = row
            .trim_end_matches(['|', ' '])
            .rsplit('|')
            .next()
            .unwrap_or_default();
        for name in cell.split('`').skip(1).step_by(2) {
            named += 1;
            assert!(tests.contains(name), "{name} is not a test of this crate");
        }
    }
    assert!(named > 30, "{named} tests are named");
}
