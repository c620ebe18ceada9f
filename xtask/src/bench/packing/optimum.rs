//! The policy `cost` on real instance types: what its plans cost over the least that any plan could, beside the ordinary plans
//! and Karpenter's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::sides::Solvers;
use super::{answer, generate, numbers, upstream};

/// Where the list of types stands in Karpenter's sources.
const CATALOGUE: &str = "kwok/examples/aws_instance_types.json";
const MODULE: &str = "sigs.k8s.io/karpenter";

/// What is measured, and with how many pods.
pub struct Measured<'m> {
    pub mixes: &'m [String],
    pub pods: &'m [usize],
    pub repeat: usize,
    pub upstream_limit: Duration,
}

pub fn measure(solvers: &Solvers, what: &Measured<'_>) -> Result<Vec<Value>> {
    let catalogue = catalogue()?;
    let catalogue = catalogue
        .to_str()
        .context("the path of the catalogue is no text")?;
    let mut rows = Vec::new();
    for mix in what.mixes {
        for pods in what.pods {
            let file = solvers.directory.join(format!("optimum-{mix}-{pods}.json"));
            let count = pods.to_string();
            generate(
                &solvers.ours,
                &["--mix", mix, "--pods", &count, "--catalogue", catalogue],
                &file,
            )?;
            let row = one(solvers, &file, mix, *pods, what)?;
            std::fs::remove_file(&file).context("removing a workload")?;
            rows.push(row);
        }
    }
    Ok(rows)
}

fn one(solvers: &Solvers, file: &Path, mix: &str, pods: usize, what: &Measured<'_>) -> Result<Value> {
    let mut command = Command::new(&solvers.ours);
    command
        .arg(file)
        .args(["--optimum", "--repeat", &what.repeat.to_string()]);
    let report = answer(&mut command)?;
    if report["problems"] != 0 {
        bail!(
            "our plan for {mix} with {pods} pods is not valid: {}",
            report["first"]
        );
    }
    let number = |name: &str| report[name].as_f64().unwrap_or_default();
    let (bound, cost, ordinary) = (number("bound"), number("cost"), number("ordinary"));
    if cost > ordinary + 1e-6 {
        bail!("our plan for {mix} with {pods} pods costs {cost}, the ordinary one {ordinary}");
    }
    let theirs = solvers.run_theirs(file, 1, what.upstream_limit)?;
    // A plan that a limit cut short costs too little.
    let karpenter = theirs.filter(|side| side.reached.is_none() && side.unschedulable == 0);
    let karpenter = karpenter.map(|side| side.cost.median);
    let median = |name: &str| super::super::Measured::of(numbers(&report, name)).median;
    let (seconds, busy) = (median("seconds"), median("busySeconds"));
    let over = |cost: f64| cost / bound.max(f64::MIN_POSITIVE);
    eprintln!(
        "{mix:<10} {pods:>6} pods  at least {bound:>9.2} $/h  cost {cost:>9.2} ({:.3})  ordinary {ordinary:>9.2} ({:.3})  karpenter {}  {seconds:.2} s, {busy:.2} busy",
        over(cost),
        over(ordinary),
        karpenter.map_or_else(
            || "not measured".to_owned(),
            |cost| format!("{cost:.2} ({:.3})", over(cost))
        ),
    );
    Ok(json!({
        "mix": mix,
        "pods": pods,
        "bound": bound,
        "cost": cost,
        "ordinary": ordinary,
        "karpenter": karpenter,
        "seconds": seconds,
        "busy_seconds": busy,
        "nodes": report["newClaims"],
        "unschedulable": report["unschedulable"],
    }))
}

/// The list of types, from the release of Karpenter that the parts name.
fn catalogue() -> Result<PathBuf> {
    let go = |arguments: &[&str]| -> Result<String> {
        let output = Command::new("go")
            .current_dir(upstream::root().join("parts/karpenter"))
            .args(arguments)
            .output()
            .context("running go; install Go 1.26 or newer")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // Its sources are only read: that it asks for a newer Go than is here is no matter, and go fetches them all the same.
    go(&["mod", "download", "-json", MODULE])?;
    let version = go(&["list", "-m", "-f", "{{.Version}}", MODULE])?;
    let file = Path::new(&go(&["env", "GOMODCACHE"])?)
        .join(format!("{MODULE}@{version}"))
        .join(CATALOGUE);
    if !file.is_file() {
        bail!(
            "{} is not there; `go mod download` in parts/karpenter brings it",
            file.display()
        );
    }
    Ok(file)
}
