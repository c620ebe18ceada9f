//! The acceptance page says of every behaviour where it is shown, and every place it names has a test that names the
//! behaviour. A behaviour counts as named only in the comment right before a test.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// How a behaviour can be shown, in the page's order.
const COLUMNS: [&str; 4] = ["pure plan", "controller", "real Cluster API", "real k3s"];

/// Test modules in which both controllers run on the apiserver in memory and the simulated K3s.
const WITH_CONTROLLERS: &[&str] = &["component.rs", "in_place.rs", "sweep.rs"];
/// And a folder of such modules.
const BEHAVIOURS: &str = "crates/k3s/tests/behaviours";

/// Where tests are.
const FOLDERS: &[&str] = &[
    "crates/k3s/tests",
    "crates/k3s/src",
    "tests/stories",
    "testbed/tests",
];

/// For every behaviour and column, the files whose tests show it.
type Shown = BTreeMap<u32, [BTreeSet<String>; 4]>;

fn column(folder: &str, file: &str) -> usize {
    if file.contains("real_k3s") {
        3
    } else if folder.starts_with("tests/") || folder.starts_with("testbed/") {
        2
    } else {
        usize::from(folder == BEHAVIOURS || WITH_CONTROLLERS.contains(&file))
    }
}

fn search(root: &Path, folder: &str, shown: &mut Shown) {
    let Ok(entries) = std::fs::read_dir(root.join(folder)) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() {
            search(root, &format!("{folder}/{name}"), shown);
        } else if entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "rs")
        {
            let text = std::fs::read_to_string(entry.path()).expect("a source file");
            for number in named_by_tests(&text) {
                shown.entry(number).or_default()[column(folder, &name)].insert(name.clone());
            }
        }
    }
}

/// The behaviours named in comments that stand right before a test.
fn named_by_tests(text: &str) -> BTreeSet<u32> {
    let (mut found, mut pending) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("///") {
            pending.extend(numbers(comment));
        } else if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            found.append(&mut pending);
        } else if !line.starts_with("#[") {
            pending.clear();
        }
    }
    found
}

fn numbers(text: &str) -> Vec<u32> {
    text.split("S-")
        .skip(1)
        .filter_map(|piece| {
            let digits: String = piece.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        })
        .collect()
}

#[test]
fn a_behaviour_counts_only_before_a_test() {
    let text = "/// S-1, S-2: yes.\n#[test]\nfn a() {\n  // S-3\n}\n/// S-4: a helper.\nfn b() {}\n/// S-5\n#[tokio::test]\n";
    assert_eq!(named_by_tests(text), BTreeSet::from([1, 2, 5]));
}

#[test]
fn the_acceptance_page_says_what_is_shown_where() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut shown = Shown::new();
    for folder in FOLDERS {
        search(&root, folder, &mut shown);
    }
    let page_path = root.join("docs/k3s/acceptance.md");
    let page = std::fs::read_to_string(&page_path).expect("docs/k3s/acceptance.md");
    let mut expected = Vec::new();
    for line in page.lines() {
        let Some(rest) = line.strip_prefix("| S-") else {
            expected.push(line.to_owned());
            continue;
        };
        let (number, rest) = rest.split_once(" | ").expect("a row");
        let number: u32 = number.trim().parse().expect("a number");
        let behaviour = rest.split(" | ").next().expect("a behaviour");
        let places = shown.get(&number).cloned().unwrap_or_default();
        let cells: Vec<String> = places
            .iter()
            .map(|files| {
                if files.is_empty() {
                    "–".to_owned()
                } else {
                    files.iter().cloned().collect::<Vec<_>>().join(", ")
                }
            })
            .collect();
        expected.push(format!("| S-{number} | {behaviour} | {} |", cells.join(" | ")));
    }
    let expected = expected.join("\n") + "\n";
    if std::env::var_os("SLIPWAY_UPDATE").is_some() {
        std::fs::write(&page_path, &expected).expect("the page is written");
    }
    assert_eq!(
        expected.lines().filter(|line| line.starts_with("| S-")).count(),
        63
    );
    assert!(
        page == expected,
        "docs/k3s/acceptance.md is out of date: run this test with SLIPWAY_UPDATE=1"
    );
    let count = |column: usize| {
        (1..=63)
            .filter(|number| shown.get(number).is_some_and(|places| !places[column].is_empty()))
            .count()
    };
    let all = (1..=63).filter(|number| shown.contains_key(number)).count();
    let counts: Vec<String> = COLUMNS
        .iter()
        .enumerate()
        .map(|(index, name)| format!("{} {name}", count(index)))
        .collect();
    println!(
        "report: k3s acceptance: {all} of 63 behaviours are named by a test ({})",
        counts.join(", ")
    );
    assert_eq!(all, 63, "every behaviour is shown somewhere");
}
