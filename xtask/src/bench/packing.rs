//! The same workload files into `slipway-packing` and into Karpenter's scheduler, which is rebuilt for each iteration.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{Measured, peers};

#[derive(clap::Args)]
pub struct Arguments {
    /// How many pods, as a list.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 5_000, 20_000, 50_000])]
    pods: Vec<usize>,
    /// Which mixes, as a list.
    #[arg(long, value_delimiter = ',', default_values_t = ["diverse", "preference", "topology", "affinity"].map(String::from))]
    mix: Vec<String>,
    /// How often each is solved; the median counts.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// Up to this many pods the peer runs too: it needs minutes beyond.
    #[arg(long, default_value_t = 5_000)]
    peer_up_to: usize,
    /// Also run the peer.
    #[arg(long, value_parser = ["karpenter"], default_value = "karpenter")]
    against: String,
}

struct Side {
    pods_per_second: Measured,
    nodes: usize,
    cost: f64,
    unschedulable: usize,
    peak_megabytes: f64,
}

impl Side {
    fn json(&self) -> Value {
        json!({
            "pods_per_second": self.pods_per_second.median,
            "pods_per_second_lowest": self.pods_per_second.lowest,
            "pods_per_second_highest": self.pods_per_second.highest,
            "nodes": self.nodes,
            "cost_per_hour": self.cost,
            "unschedulable": self.unschedulable,
            "peak_mb": self.peak_megabytes,
        })
    }

    fn row(&self, name: &str) -> String {
        format!(
            "{name:<10} {:>9.0} pods/s ({:.0} to {:.0})  {:>6} nodes  {:>10.2} $/h  {:>4} left over  {:>7.0} MB",
            self.pods_per_second.median,
            self.pods_per_second.lowest,
            self.pods_per_second.highest,
            self.nodes,
            self.cost,
            self.unschedulable,
            self.peak_megabytes
        )
    }
}

pub fn run(arguments: &Arguments, as_json: bool) -> Result<()> {
    let ours = peers::build_release(&["--package", "slipway-packing", "--example", "solve"], "solve")?;
    let theirs = peers::build("karpenter")?;
    let directory = tempfile::tempdir().context("making a directory for workloads")?;
    let mut rows = Vec::new();
    for mix in &arguments.mix {
        for pods in &arguments.pods {
            let file = directory.path().join(format!("{mix}-{pods}.json"));
            generate(&ours, mix, *pods, &file)?;
            let slipway = run_ours(&ours, &file, *pods, arguments.repeat)?;
            let karpenter = if *pods <= arguments.peer_up_to {
                Some(run_theirs(&theirs, &file, *pods, arguments.repeat.min(3))?)
            } else {
                None
            };
            eprintln!("{mix} {pods}\n  {}", slipway.row("slipway"));
            if let Some(karpenter) = &karpenter {
                let ratio = slipway.pods_per_second.median / karpenter.pods_per_second.median;
                eprintln!("  {}\n  {ratio:.0} times as fast", karpenter.row("karpenter"));
            }
            rows.push(json!({
                "mix": mix,
                "pods": pods,
                "slipway": slipway.json(),
                "karpenter": karpenter.map(|side| side.json()),
            }));
        }
    }
    if as_json {
        println!("{}", json!({"schedule": rows}));
    }
    Ok(())
}

fn generate(program: &Path, mix: &str, pods: usize, file: &Path) -> Result<()> {
    let status = Command::new(program)
        .args(["--mix", mix, "--pods", &pods.to_string(), "--write"])
        .arg(file)
        .status()
        .context("generating a workload")?;
    if !status.success() {
        bail!("the {mix} workload was not generated");
    }
    Ok(())
}

fn run_ours(program: &Path, file: &Path, pods: usize, repeat: usize) -> Result<Side> {
    let mut command = Command::new(program);
    command.arg(file).args(["--repeat", &repeat.to_string()]);
    let report = answer(&mut command)?;
    let number = |name: &str| report[name].as_f64().unwrap_or_default();
    let every = report["allSeconds"].as_array().cloned().unwrap_or_default();
    let mut seconds: Vec<f64> = every.iter().filter_map(Value::as_f64).collect();
    if seconds.is_empty() {
        seconds.push(number("seconds"));
    }
    Ok(Side {
        pods_per_second: Measured::of(seconds.iter().map(|seconds| pods as f64 / seconds).collect()),
        nodes: number("newClaims") as usize,
        cost: number("costPerHour"),
        unschedulable: number("unschedulable") as usize,
        peak_megabytes: number("peakMegabytes"),
    })
}

fn run_theirs(program: &PathBuf, file: &Path, pods: usize, repeat: usize) -> Result<Side> {
    let mut command = Command::new(program);
    command
        .args(["solve", "-iterations", &repeat.to_string()])
        .arg(file);
    let report = answer(&mut command)?;
    let list = |name: &str| report[name].as_array().cloned().unwrap_or_default();
    let seconds: Vec<f64> = list("seconds").iter().filter_map(Value::as_f64).collect();
    let claims = list("newClaims");
    Ok(Side {
        pods_per_second: Measured::of(seconds.iter().map(|seconds| pods as f64 / seconds).collect()),
        nodes: claims.len(),
        cost: claims
            .iter()
            .filter_map(|claim| claim["cheapestPrice"].as_f64())
            .sum(),
        unschedulable: list("unschedulable").len(),
        peak_megabytes: report["peakMegabytes"].as_f64().unwrap_or_default(),
    })
}

fn answer(command: &mut Command) -> Result<Value> {
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("running a solver")?;
    if !output.status.success() {
        bail!("{command:?} failed");
    }
    serde_json::from_slice(&output.stdout).context("reading what a solver printed")
}
