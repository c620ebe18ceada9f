//! Mistakes that people make, each made, seen and undone. `docs/mistakes.md` is rendered from what was seen.

mod aks_changes;
mod aks_faults;
mod aks_life;
mod aks_manifests;
mod aks_world;
mod k3s_life;
mod k3s_manifests;
mod programs;
mod refused;
mod why;

use slipway_kit::mistakes::{self, Mistake};

/// As many as a page that claims to list the usual ones has to have.
const FEWEST: usize = 60;
/// Of these `slipway why` names the first cause, and mending that alone was enough.
const FEWEST_CAUSES: usize = 30;

const INTRODUCTION: &str = "\
# Mistakes, and the way back

Every row was made, seen and undone by a test (`tests/mistakes`), which renders this page: the text in the middle is what the
apiserver, a condition or a program said. What is refused changes nothing, and the test checks that; the row says what to do instead.
What is accepted and cannot work shows in a condition, which `kubectl describe` and `clusterctl describe cluster` show; `slipway why` leads from
the Cluster to the first cause, who has to act and what helps, and mending that alone was enough.";

#[tokio::test(start_paused = true)]
async fn every_mistake_shows_itself_and_can_be_undone() {
    let mut seen: Vec<Mistake> = Vec::new();
    seen.extend(aks_manifests::see().await);
    seen.extend(aks_changes::see().await);
    seen.extend(aks_life::see().await);
    seen.extend(aks_faults::see().await);
    seen.extend(k3s_manifests::see().await);
    seen.extend(k3s_life::see().await);
    seen.extend(programs::see());
    for mistake in &seen {
        mistake.check();
    }
    let wrong = why::WRONG.lock();
    assert!(
        wrong.is_empty(),
        "{} explanations are not right:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(seen.len() >= FEWEST, "{} mistakes", seen.len());
    let causes = seen.iter().filter(|mistake| mistake.why.is_some()).count();
    assert!(causes >= FEWEST_CAUSES, "{causes} first causes");
    println!(
        "report: mistakes: {} made, seen and undone; of {causes} `slipway why` named the first cause",
        seen.len()
    );
    check("mistakes.md", &mistakes::page(INTRODUCTION, &seen));
}

/// Compares a page of `docs` with what it should be; with `SLIPWAY_WRITE_DOCS` it is written first.
fn check(name: &str, page: &str) {
    let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("SLIPWAY_WRITE_DOCS").is_some() {
        std::fs::write(&path, page).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/{name} is out of date: run this test with SLIPWAY_WRITE_DOCS=1"
    );
}
