//! Solves a workload file, or a generated mix, and prints one JSON object with counts and times.
//!
//! ```text
//! cargo run --release -p slipway-packing --example solve -- workload.json [--plan] [--repeat N]
//! cargo run --release -p slipway-packing --example solve -- --mix diverse --pods 5000 [--types 400] [--seed 42]
//! cargo run --release -p slipway-packing --example solve -- --mix diverse --pods 5000 --write workload.json
//! cargo run --release -p slipway-packing --example solve -- --consolidate 2000
//! ```

// Fixtures are written to be read, not to save a copy.
#![allow(clippy::assigning_clones, clippy::match_same_arms, clippy::unnecessary_wraps)]

mod generate;

use std::process::ExitCode;
use std::time::Instant;

use slipway_packing::disrupt::{Method, disrupt};
use slipway_packing::model::{Plan, Workload};
use slipway_packing::schedule;

struct Arguments {
    file: Option<String>,
    mix: String,
    pods: usize,
    types: usize,
    seed: u64,
    repeat: usize,
    write: Option<String>,
    plan: bool,
    consolidate: Option<usize>,
}

fn arguments() -> Result<Arguments, String> {
    let mut result = Arguments {
        file: None,
        mix: "diverse".to_owned(),
        pods: 1000,
        types: 400,
        seed: 42,
        repeat: 1,
        write: None,
        plan: false,
        consolidate: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number = |text: String| text.parse::<usize>().map_err(|error| format!("{text}: {error}"));
        match word.as_str() {
            "--mix" => result.mix = value()?,
            "--pods" => result.pods = number(value()?)?,
            "--types" => result.types = number(value()?)?,
            "--seed" => result.seed = number(value()?)? as u64,
            "--repeat" => result.repeat = number(value()?)?.max(1),
            "--write" => result.write = Some(value()?),
            "--consolidate" => result.consolidate = Some(number(value()?)?),
            "--plan" => result.plan = true,
            file => result.file = Some(file.to_owned()),
        }
    }
    Ok(result)
}

fn run() -> Result<(), String> {
    let arguments = arguments()?;
    if let Some(nodes) = arguments.consolidate {
        return consolidate(nodes, arguments.types);
    }
    let workload: Workload = match &arguments.file {
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|error| format!("reading {file}: {error}"))?;
            serde_json::from_str(&text).map_err(|error| format!("parsing {file}: {error}"))?
        }
        None => generate::workload(&arguments.mix, arguments.pods, arguments.types, arguments.seed)
            .ok_or_else(|| format!("there is no mix {:?}", arguments.mix))?,
    };
    if let Some(file) = &arguments.write {
        let text = serde_json::to_string(&workload).map_err(|error| error.to_string())?;
        return std::fs::write(file, text).map_err(|error| format!("writing {file}: {error}"));
    }
    let mut seconds = Vec::new();
    let mut plan = Plan::default();
    for _ in 0..arguments.repeat {
        let start = Instant::now();
        plan = schedule(&workload.snapshot, &workload.pods);
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    let mut report = serde_json::json!({
        "pods": workload.pods.len(),
        "seconds": median,
        "allSeconds": seconds,
        "podsPerSecond": workload.pods.len() as f64 / median,
        "nanosecondsPerPod": median * 1e9 / workload.pods.len().max(1) as f64,
        "newClaims": plan.new_claims.len(),
        "costPerHour": plan.new_claims.iter().map(|claim| claim.cheapest_price).sum::<f64>(),
        "onNodes": plan.existing.iter().map(|node| node.pods.len()).sum::<usize>(),
        "unschedulable": plan.unschedulable.len(),
        "peakMegabytes": peak_megabytes(),
    });
    if arguments.plan {
        report["plan"] = serde_json::to_value(&plan).map_err(|error| error.to_string())?;
    }
    println!("{report}");
    Ok(())
}

/// A full pass over nodes that cannot be improved: every one of them is probed.
fn consolidate(nodes: usize, types: usize) -> Result<(), String> {
    let snapshot = generate::standing(nodes, types);
    let mut report = serde_json::json!({ "nodes": nodes, "pods": snapshot.bound_pods.len() });
    for method in [Method::MultiNodeConsolidation, Method::SingleNodeConsolidation] {
        let start = Instant::now();
        let outcome = disrupt(&snapshot, &[], method);
        let name = serde_json::to_value(method).map_err(|error| error.to_string())?;
        report[name.as_str().unwrap_or("method")] = serde_json::json!({
            "seconds": start.elapsed().as_secs_f64(),
            "disrupted": outcome.command.as_ref().map_or(0, |command| command.nodes.len()),
            "probedAndKept": outcome.blocked.len(),
        });
    }
    println!("{report}");
    Ok(())
}

/// The most memory this process has held, where the system says so.
fn peak_megabytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<f64>()
        .ok()
        .map(|kilobytes| kilobytes / 1024.0)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("solve: {problem}");
            ExitCode::FAILURE
        }
    }
}
