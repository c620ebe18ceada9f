//! Whether the lists of cases are complete, asked of Karpenter's sources where Go has them.

use std::path::PathBuf;
use std::process::Command;

use super::{SUITES, read};

const MODULE: &str = "sigs.k8s.io/karpenter@v1.15.0";

/// Where Karpenter's sources are; none without Go, or before the module was downloaded.
fn sources() -> Option<PathBuf> {
    let output = Command::new("go").args(["env", "GOMODCACHE"]).output().ok()?;
    let cache = String::from_utf8(output.stdout).ok()?;
    let path = PathBuf::from(cache.trim()).join(MODULE).join("pkg/controllers");
    path.is_dir().then_some(path)
}

/// The names in `It("…"` and `Entry("…"`, in their order; an entry may be named by a constant.
fn names(source: &str) -> Vec<String> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let mut names = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let Some(rest) = line.strip_prefix("It(").or_else(|| line.strip_prefix("Entry(")) else {
            continue;
        };
        let rest = if rest.is_empty() { lines[number + 1] } else { rest };
        let name = match rest.strip_prefix('"') {
            Some(rest) => literal(rest),
            None => rest.split([',', ')']).next().unwrap_or_default().to_owned(),
        };
        names.push(name.trim().to_owned());
    }
    names
}

fn literal(text: &str) -> String {
    let mut name = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => break,
            '\\' => name.extend(characters.next()),
            other => name.push(other),
        }
    }
    name
}

#[test]
fn every_case_is_listed() {
    if std::env::var_os("SLIPWAY_TEST_FULL").is_none() {
        return;
    }
    let Some(sources) = sources() else {
        println!("report: packing suites: Karpenter's sources are not here, the lists were not compared");
        return;
    };
    for suite in &SUITES {
        let expected: Vec<String> = suite
            .sources
            .iter()
            .flat_map(|file| names(&std::fs::read_to_string(sources.join(file)).expect("a source")))
            .collect();
        let listed: Vec<String> = read(suite.name).into_iter().map(|case| case.name).collect();
        assert_eq!(listed, expected, "{}", suite.name);
    }
    println!("report: packing suites: every case of Karpenter is listed");
}

#[test]
fn reads_names() {
    let source = "\tIt(\"one\", func() {\n Entry(\n  \"two \\\"quoted\\\"\", 1),\n Entry(v1.Zone, v1.Zone),\n it(\"no\")";
    assert_eq!(names(source), ["one", "two \"quoted\"", "v1.Zone"]);
}
