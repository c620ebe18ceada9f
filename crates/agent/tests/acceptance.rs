//! The table of behaviours in the documentation names tests that exist, and leaves no behaviour out.

use std::fs;
use std::path::Path;

/// The names of all functions in Rust files below `folder`.
fn functions(folder: &Path, into: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            into.extend(text.lines().filter_map(|line| {
                let rest = line.trim_start();
                let rest = rest.strip_prefix("async ").unwrap_or(rest);
                let name = rest.strip_prefix("fn ")?.split(['(', '<']).next()?;
                Some(name.to_owned())
            }));
        }
    }
}

#[test]
fn every_behaviour_is_in_the_table_and_named_in_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = Vec::new();
    for folder in [
        "src",
        "tests",
        "../slots/src",
        "../slots/tests",
        "../agent-api/src",
        "../agent-api/tests",
    ] {
        functions(&root.join(folder), &mut names);
    }
    let page = |name: &str| fs::read_to_string(root.join("../../docs/edge").join(name)).unwrap();
    let pages = page("agent.md") + &page("image-cache.md");
    let rows: Vec<_> = pages.lines().filter(|line| line.starts_with("| E-")).collect();
    // E-51 is the edge manager's.
    for number in (21..=54).filter(|number| *number != 51) {
        let mark = format!("e{number}_");
        assert!(
            names
                .iter()
                .any(|name| name.starts_with(&mark) || name.contains(&format!("_{mark}"))),
            "no test is named after E-{number}"
        );
        let row = rows.iter().find(|row| row.contains(&format!("E-{number} ")));
        assert!(row.is_some(), "E-{number} is not in the tables of docs/edge");
    }
    // What stands in backquotes is a test by its path, or the beginning of several.
    let mut checked = 0;
    for row in rows {
        let tests = row.rsplit('|').nth(1).unwrap_or_default();
        for path in tests.split('`').skip(1).step_by(2) {
            let last = path.rsplit("::").next().unwrap_or(path);
            let found = match last.strip_suffix('*') {
                Some(beginning) => names.iter().any(|name| name.starts_with(beginning)),
                None => names.iter().any(|name| name == last),
            };
            assert!(found, "the table names {path}, which is no test");
            checked += 1;
        }
    }
    assert!(checked > 33, "{checked}");
}
