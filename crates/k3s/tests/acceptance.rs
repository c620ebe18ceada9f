//! Every acceptance behaviour is either shown by a test that names it, or listed in the docs as not shown yet.

use std::{collections::BTreeMap, path::Path};

/// Source files whose tests may name a behaviour, and how it is shown there.
const PLACES: &[(&str, &str)] = &[
    ("crates/k3s/tests", "pure"),
    ("crates/k3s/src", "pure"),
    ("sim/k3s", "simulator"),
    ("tests/stories", "real Cluster API"),
];

fn named(folder: &Path, shown: &mut BTreeMap<u32, Vec<String>>, place: &str) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            named(&path, shown, place);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("acceptance.rs")
        {
            let text = std::fs::read_to_string(&path).expect("a source file");
            for piece in text.split("S-").skip(1) {
                let digits: String = piece.chars().take_while(char::is_ascii_digit).collect();
                if let Ok(number) = digits.parse::<u32>() {
                    let file = path.file_name().unwrap_or_default().to_string_lossy();
                    let place = if matches!(file.as_ref(), "component.rs" | "stage.rs") {
                        "simulator"
                    } else {
                        place
                    };
                    let entry = format!("{place}: {file}");
                    let places = shown.entry(number).or_default();
                    if !places.contains(&entry) {
                        places.push(entry);
                    }
                }
            }
        }
    }
}

#[test]
fn the_acceptance_page_says_what_is_shown_where() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut shown = BTreeMap::new();
    for (folder, place) in PLACES {
        named(&root.join(folder), &mut shown, place);
    }
    let page_path = root.join("docs/k3s/acceptance.md");
    let page = std::fs::read_to_string(&page_path).expect("docs/k3s/acceptance.md");
    let mut wanted = Vec::new();
    for line in page.lines() {
        let Some(rest) = line.strip_prefix("| S-") else {
            wanted.push(line.to_owned());
            continue;
        };
        let (number, rest) = rest.split_once(" | ").expect("a row");
        let number: u32 = number.trim().parse().expect("a number");
        let behaviour = rest.split(" | ").next().expect("a behaviour");
        let mut places = shown.get(&number).cloned().unwrap_or_default();
        places.sort();
        let places = if places.is_empty() {
            "not yet".to_owned()
        } else {
            places.join("; ")
        };
        wanted.push(format!("| S-{number} | {behaviour} | {places} |"));
    }
    let wanted = wanted.join("\n") + "\n";
    if std::env::var_os("SLIPWAY_UPDATE").is_some() {
        std::fs::write(&page_path, &wanted).expect("the page is written");
    }
    assert_eq!(wanted.lines().filter(|line| line.starts_with("| S-")).count(), 63);
    assert!(
        page == wanted,
        "docs/k3s/acceptance.md is out of date: run this test with SLIPWAY_UPDATE=1"
    );
    let count = shown.keys().filter(|number| (1..=63).contains(*number)).count();
    println!("report: k3s acceptance: {count} of 63 behaviours are named by a test");
}
