//! The book: every link leads somewhere, and every page can be reached from its table of contents.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .canonicalize()
        .expect("there is a book")
}

/// The files a page links to, as paths; links to elsewhere and within the page are left out.
fn links(page: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let folder = page.parent().expect("a page has a folder");
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        for rest in line.split("](").skip(1) {
            let Some((target, _)) = rest.split_once(')') else {
                continue;
            };
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !target.contains("://") {
                found.push(folder.join(path));
            }
        }
    }
    found
}

fn pages(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the book") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.insert(path);
        }
    }
}

#[test]
fn every_page_is_reached_and_every_link_leads_somewhere() {
    let mut all = BTreeSet::new();
    pages(&docs(), &mut all);
    let start = docs().join("README.md");
    let mut reached = BTreeSet::from([start.clone()]);
    let mut open = vec![start];
    let mut broken = Vec::new();
    while let Some(page) = open.pop() {
        for link in links(&page) {
            match link.canonicalize() {
                Ok(target) => {
                    if target.extension().is_some_and(|extension| extension == "md")
                        && reached.insert(target.clone())
                    {
                        open.push(target);
                    }
                }
                Err(_) => broken.push(format!("{} -> {}", page.display(), link.display())),
            }
        }
    }
    assert_eq!(broken, Vec::<String>::new(), "links that lead nowhere");
    let lost: Vec<&PathBuf> = all.difference(&reached).collect();
    assert_eq!(
        lost,
        Vec::<&PathBuf>::new(),
        "pages that docs/README.md does not lead to"
    );
}
