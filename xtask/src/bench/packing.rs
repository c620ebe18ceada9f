//! The same workload files into `slipway-packing` and into Karpenter's scheduler, which is rebuilt for each iteration, and
//! both results through the independent checker.

mod hard_stop;
mod optimum;
mod options;
mod sides;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::upstream;
use sides::{Pass, Side, Solvers};

#[derive(clap::Args)]
pub struct Arguments {
    /// How many pods, as a list; by default 100 to 50,000, and 500, 5,000 and 20,000 with `--optimum`.
    #[arg(long, value_delimiter = ',')]
    pods: Vec<usize>,
    /// Which mixes, as a list.
    #[arg(long, value_delimiter = ',', default_values_t = ["diverse", "preference", "topology", "affinity"].map(String::from))]
    mix: Vec<String>,
    /// How often each is solved; the median counts.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
    /// How often Karpenter solves each, up to a thousand pods. Larger ones it solves once.
    #[arg(long, default_value_t = 3)]
    peer_repeat: usize,
    /// How long Karpenter may take for one workload, in seconds. Karpenter itself stops after a minute and acts on what it
    /// has; what it reached is printed.
    #[arg(long, default_value_t = 60)]
    upstream_limit: u64,
    /// How long Karpenter may take for one consolidation pass, in seconds.
    #[arg(long, default_value_t = 120)]
    upstream_pass_limit: u64,
    /// Over how many nodes to consolidate, as a list.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 500, 2_000])]
    nodes: Vec<usize>,
    /// Measure the named options of `options.improvements` instead, each with and without.
    #[arg(long)]
    options: bool,
    /// Measure the policy `cost` instead, on Karpenter's list of real instance types.
    #[arg(long)]
    optimum: bool,
    /// Karpenter.
    #[arg(long, value_parser = ["karpenter", "nothing"], default_value = "karpenter")]
    against: String,
}

pub fn run(arguments: &Arguments, as_json: bool) -> Result<()> {
    let ours = upstream::build_release(&["--package", "slipway-packing", "--example", "solve"], "solve")?;
    let directory = tempfile::tempdir().context("making a directory for workloads")?;
    if arguments.options {
        let rows = options::measure(&ours, directory.path(), arguments.repeat)?;
        if as_json {
            println!("{}", json!({ "options": rows }));
        }
        return Ok(());
    }
    let theirs = match arguments.against.as_str() {
        "karpenter" => Some(upstream::build("karpenter")?),
        _ => None,
    };
    let solvers = Solvers {
        ours,
        theirs,
        directory: directory.path().to_owned(),
    };
    let pods = |default: &[usize]| match arguments.pods.as_slice() {
        [] => default.to_vec(),
        pods => pods.to_vec(),
    };
    if arguments.optimum {
        let what = optimum::Measured {
            mixes: &arguments.mix,
            pods: &pods(&[500, 5_000, 20_000]),
            repeat: arguments.repeat,
            upstream_limit: Duration::from_secs(arguments.upstream_limit),
        };
        let rows = optimum::measure(&solvers, &what)?;
        if as_json {
            for row in rows {
                println!("{row}");
            }
        }
        return Ok(());
    }
    let mut schedule = Vec::new();
    for mix in &arguments.mix {
        for pods in &pods(&[100, 1_000, 5_000, 20_000, 50_000]) {
            schedule.push(one_mix(arguments, &solvers, mix, *pods)?);
        }
    }
    let mut consolidate = Vec::new();
    for nodes in &arguments.nodes {
        consolidate.push(one_pass(arguments, &solvers, *nodes)?);
    }
    if as_json {
        println!("{}", json!({ "schedule": schedule, "consolidate": consolidate }));
    }
    Ok(())
}

fn one_mix(arguments: &Arguments, solvers: &Solvers, mix: &str, pods: usize) -> Result<Value> {
    let file = solvers.directory.join(format!("{mix}-{pods}.json"));
    generate(&solvers.ours, &["--mix", mix, "--pods", &pods.to_string()], &file)?;
    let slipway = solvers.run_ours(&file, arguments.repeat, &[])?;
    eprintln!("{mix} {pods}\n  {}", slipway.row("slipway"));
    let repeat = if pods <= 1_000 { arguments.peer_repeat } else { 1 };
    let limit = Duration::from_secs(arguments.upstream_limit);
    let karpenter = solvers.run_theirs(&file, repeat, limit)?;
    if let Some(karpenter) = &karpenter {
        eprintln!(
            "  {}\n  {}",
            karpenter.row("karpenter"),
            compared(&slipway, karpenter)
        );
    }
    std::fs::remove_file(&file).context("removing a workload")?;
    Ok(json!({
        "mix": mix,
        "pods": pods,
        "slipway": slipway.json(),
        "karpenter": karpenter.as_ref().map(Side::json),
    }))
}

/// One line on how both came out of it. What a limit cut short cannot be compared in nodes and cost.
fn compared(slipway: &Side, karpenter: &Side) -> String {
    let speed = slipway.pods_per_second.median / karpenter.pods_per_second.median;
    let memory = slipway.peak_megabytes / karpenter.peak_megabytes;
    let planning = slipway.grown_megabytes / karpenter.grown_megabytes;
    let outcome = match karpenter.reached {
        Some(_) => String::new(),
        None => format!(
            ", {:+.0} nodes, {:+.2} % of the cost",
            slipway.nodes.median - karpenter.nodes.median,
            (slipway.cost.median / karpenter.cost.median.max(f64::MIN_POSITIVE) - 1.0) * 100.0
        ),
    };
    format!("{speed:.0} times as fast, {memory:.2} of the memory ({planning:.2} while solving){outcome}")
}

fn one_pass(arguments: &Arguments, solvers: &Solvers, nodes: usize) -> Result<Value> {
    let repeat = arguments.repeat;
    let file = solvers.directory.join(format!("standing-{nodes}.json"));
    generate(&solvers.ours, &["--standing", &nodes.to_string()], &file)?;
    let slipway = solvers.consolidate_ours(&file, repeat, &[])?;
    eprintln!("consolidation of {nodes} nodes\n  {}", slipway.row("slipway"));
    let karpenter = solvers.consolidate_theirs(&file, Duration::from_secs(arguments.upstream_pass_limit))?;
    if let Some(karpenter) = &karpenter {
        eprintln!("  {}", karpenter.row("karpenter"));
    }
    Ok(json!({
        "nodes": nodes,
        "slipway": slipway.json(),
        "karpenter": karpenter.as_ref().map(Pass::json),
    }))
}

fn generate(program: &Path, what: &[&str], file: &Path) -> Result<()> {
    answer(Command::new(program).args(what).arg("--write").arg(file)).map(|_| ())
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

/// A list of numbers in what a solver printed.
fn numbers(report: &Value, name: &str) -> Vec<f64> {
    let list = report[name].as_array().into_iter().flatten();
    list.filter_map(Value::as_f64).collect()
}

fn beside(file: &Path, extension: &str) -> PathBuf {
    file.with_extension(extension)
}
