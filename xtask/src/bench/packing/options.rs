//! The named options of `options.improvements`, each on a workload it is meant for, with and without.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::generate;
use super::sides::Solvers;

/// The option and the workload it is measured on.
const SCHEDULING: [(&str, &[&str]); 6] = [
    ("priceAware", &["--mix", "pools", "--pods", "5000"]),
    ("tighterPacking", &["--mix", "diverse", "--pods", "5000"]),
    ("tighterPacking", &["--mix", "topology", "--pods", "5000"]),
    ("exactNodeLimits", &["--mix", "limited", "--pods", "5000"]),
    (
        "hostnameSpreadAsKubeScheduler",
        &["--mix", "hosts", "--pods", "5000"],
    ),
    ("commitDomainsEarly", &["--mix", "zones", "--pods", "5000"]),
];

pub fn measure(program: &Path, directory: &Path, repeat: usize) -> Result<Vec<Value>> {
    let solvers = Solvers {
        ours: program.to_owned(),
        theirs: None,
        directory: directory.to_owned(),
    };
    let mut rows = Vec::new();
    let file = solvers.directory.join("options.json");
    for (option, workload) in SCHEDULING {
        generate(program, workload, &file)?;
        let without = solvers.run_ours(&file, repeat, &[])?;
        let with = solvers.run_ours(&file, repeat, &["--improve", option])?;
        let described = workload[1];
        eprintln!(
            "{option} on {described}\n  {}\n  {}",
            without.row("without"),
            with.row("with")
        );
        rows.push(json!({ "option": option, "workload": described, "without": without.json(), "with": with.json() }));
    }
    generate(program, &["--standing", "500", "--spare"], &file)?;
    let option = "manyToManyConsolidation";
    let without = solvers.consolidate_ours(&file, repeat, &[])?;
    let with = solvers.consolidate_ours(&file, repeat, &["--improve", option])?;
    eprintln!("{option}\n  {}\n  {}", without.row("without"), with.row("with"));
    rows.push(
        json!({ "option": option, "workload": "500 nodes", "without": without.json(), "with": with.json() }),
    );
    Ok(rows)
}
