//! A dependency that no source file names is not one: of every crate, and of the workspace's list of versions.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// Needed without being named, each with its reason: `(crate, dependency or * for all, why)`.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "slipway-agent",
        "*",
        "it is being built, and its manifest is ahead of it",
    ),
    (
        "slipway-agent-api",
        "tonic-prost",
        "the code that is generated from the protocol names it",
    ),
    (
        "slipway-moc",
        "tonic-prost",
        "the code that is generated from the messages names it",
    ),
    (
        "slipway-slots",
        "*",
        "it is being built, and its manifest is ahead of it",
    ),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            // A crate of its own is looked at as itself.
            if !path.join("Cargo.toml").exists() {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether source text names a crate: as the beginning of a path, in a `use`, or by a macro of its name.
fn names(text: &str, dependency: &str) -> bool {
    let identifier = dependency.replace('-', "_");
    text.match_indices(&identifier).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        if before.is_some_and(|before| before.is_alphanumeric() || before == '_') {
            return false;
        }
        let after = &text[start + identifier.len()..];
        after.starts_with("::")
            || after.starts_with('!')
            || (text[..start].ends_with("use ") && (after.starts_with(';') || after.starts_with(" as ")))
    })
}

/// All source text of a package that a kind of dependency is for.
fn text_for(package: &Package, kind: DependencyKind) -> String {
    let root = package
        .manifest_path
        .parent()
        .expect("a manifest has a folder")
        .as_std_path();
    let is_code = |path: &PathBuf| match kind {
        // What only tests name is a dependency of theirs.
        DependencyKind::Normal => path.starts_with(root.join("src")),
        DependencyKind::Build => path.ends_with("build.rs"),
        _ => true,
    };
    let mut files = Vec::new();
    sources(root, &mut files);
    files
        .iter()
        .filter(|path| is_code(path))
        .map(|path| fs::read_to_string(path).unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn every_dependency_is_named_by_the_crate_that_has_it() {
    let metadata = MetadataCommand::new()
        .no_deps()
        .other_options(["--offline", "--locked"].map(String::from))
        .exec()
        .expect("cargo metadata answers");
    let mut unused = BTreeSet::new();
    let mut excused = 0_usize;
    let mut used = BTreeSet::new();
    for package in metadata.workspace_packages() {
        for dependency in &package.dependencies {
            used.insert(dependency.name.clone());
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name);
            if names(&text_for(package, dependency.kind), name) {
                continue;
            }
            let is_excused = EXCEPTIONS.iter().any(|(package_name, dependency, _)| {
                package.name == *package_name && (*dependency == "*" || name == dependency)
            });
            if is_excused {
                excused += 1;
            } else {
                unused.insert(format!("{} ({:?}): {name}", package.name, dependency.kind));
            }
        }
    }
    assert!(unused.is_empty(), "no source file names these: {unused:#?}");
    println!("report: {excused} dependencies are excused");

    let manifest = fs::read_to_string(metadata.workspace_root.join("Cargo.toml")).expect("a manifest");
    let list = manifest
        .split("[workspace.dependencies]")
        .nth(1)
        .and_then(|rest| rest.split("\n[").next())
        .expect("a list of versions");
    let nobodys: Vec<&str> = list
        .lines()
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name.trim()))
        // Crates of our own are listed for whoever comes to need them.
        .filter(|name| !name.starts_with(['#', '"', ']']) && !name.starts_with("slipway"))
        .filter(|name| !used.contains(*name))
        .collect();
    assert!(
        nobodys.is_empty(),
        "no crate asks for these of [workspace.dependencies]: {nobodys:?}"
    );
}

#[test]
fn a_crate_is_named_by_paths_uses_and_macros_alone() {
    for text in [
        "use http::Uri;",
        "let _ = http::Uri;",
        "use http;",
        "http!()",
        "use http as h;",
    ] {
        assert!(names(text, "http"), "{text}");
    }
    for text in [
        "// over http: it is",
        "my_http::a",
        "let http = 1;",
        "https::a",
        "\"http\"",
    ] {
        assert!(!names(text, "http"), "{text}");
    }
}
