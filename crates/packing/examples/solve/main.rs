//! Solves a workload file, or a generated one, and prints one JSON object with counts and times.
//!
//! ```text
//! solve workload.json [--repeat N] [--plan plan.json] [--improve priceAware,tighterPacking]
//! solve --mix diverse --pods 5000 [--types 400] [--seed 42] [--write workload.json]
//! solve --standing 2000 [--write workload.json]      a cluster to consolidate; with --spare, to gain by it
//! solve --mix mixed --pods 5000 --catalogue aws_instance_types.json   the same over Karpenter's list of real types
//! solve workload.json --optimum                      by the policy `cost`, with what every plan costs at least
//! solve workload.json --consolidate                  one pass of every method
//! solve --day --catalogue aws_instance_types.json [--policy cost] [--eviction 0.01] [--arrivals 80] [--hours 24]
//!                                                    a day of arrivals and departures; with --peer PROGRAM, as that one decides
//! solve workload.json --check plan.json              what the independent checker says to a plan, anyone's
//! ```

// Fixtures are written to be read, not to save a copy.
#![allow(clippy::assigning_clones, clippy::match_same_arms, clippy::unnecessary_wraps)]

mod catalogue;
#[path = "../../tests/judge/mod.rs"]
#[allow(dead_code)]
mod checker;
mod day;
mod generate;
mod process;

use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use slipway_packing::disrupt::{Method, disrupt};
use slipway_packing::model::{Improvements, PackingPolicy, Plan, Workload};
use slipway_packing::schedule;

struct Arguments {
    file: Option<String>,
    mix: String,
    pods: usize,
    types: usize,
    seed: u64,
    repeat: usize,
    write: Option<String>,
    plan: Option<String>,
    check: Option<String>,
    improve: Option<String>,
    standing: Option<usize>,
    spare: bool,
    consolidate: bool,
    optimum: bool,
    day: bool,
    hours: usize,
    arrivals: f64,
    peer: Option<String>,
    policy: PackingPolicy,
    eviction: f64,
    catalogue: Option<String>,
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
        plan: None,
        check: None,
        improve: None,
        standing: None,
        spare: false,
        consolidate: false,
        optimum: false,
        day: false,
        hours: 24,
        arrivals: day::AN_HOUR,
        peer: None,
        policy: PackingPolicy::Karpenter,
        eviction: 0.0,
        catalogue: None,
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
            "--plan" => result.plan = Some(value()?),
            "--check" => result.check = Some(value()?),
            "--improve" => result.improve = Some(value()?),
            "--standing" => result.standing = Some(number(value()?)?),
            "--spare" => result.spare = true,
            "--consolidate" => result.consolidate = true,
            "--optimum" => result.optimum = true,
            "--day" => result.day = true,
            "--hours" => result.hours = number(value()?)?,
            "--arrivals" => {
                let text = value()?;
                result.arrivals = text.parse().map_err(|error| format!("{text}: {error}"))?;
            }
            "--peer" => result.peer = Some(value()?),
            "--policy" => {
                let name = value()?;
                result.policy =
                    PackingPolicy::named(&name).ok_or_else(|| format!("there is no policy {name:?}"))?;
            }
            "--eviction" => {
                let text = value()?;
                result.eviction = text.parse().map_err(|error| format!("{text}: {error}"))?;
            }
            "--catalogue" => result.catalogue = Some(value()?),
            word if word.starts_with("--") => return Err(format!("there is no {word}")),
            file => result.file = Some(file.to_owned()),
        }
    }
    Ok(result)
}

fn read<T: DeserializeOwned>(file: &str) -> Result<T, String> {
    let input = File::open(file).map_err(|error| format!("reading {file}: {error}"))?;
    serde_json::from_reader(BufReader::new(input)).map_err(|error| format!("parsing {file}: {error}"))
}

fn write(file: &str, value: &impl serde::Serialize) -> Result<(), String> {
    let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
    std::fs::write(file, text).map_err(|error| format!("writing {file}: {error}"))
}

fn workload(arguments: &Arguments) -> Result<Workload, String> {
    let mut workload = match (&arguments.file, arguments.standing) {
        (Some(file), _) => read(file)?,
        (None, Some(nodes)) => Workload {
            snapshot: generate::standing(nodes, arguments.types, arguments.spare),
            pods: Vec::new(),
        },
        (None, None) => generate::workload(&arguments.mix, arguments.pods, arguments.types, arguments.seed)
            .ok_or_else(|| format!("there is no mix {:?}", arguments.mix))?,
    };
    if let Some(file) = &arguments.catalogue {
        let types = catalogue::read(file)?;
        for own in workload.snapshot.instance_types.values_mut() {
            own.clone_from(&types);
        }
    }
    if arguments.policy != PackingPolicy::Karpenter {
        workload.snapshot.options.packing = arguments.policy;
        workload.snapshot.options.packing_weights.eviction = arguments.eviction;
    }
    if let Some(names) = &arguments.improve {
        workload.snapshot.options.improvements = improvements(names)?;
    }
    Ok(workload)
}

fn improvements(names: &str) -> Result<Improvements, String> {
    let mut all = serde_json::to_value(Improvements::default()).map_err(|error| error.to_string())?;
    for name in names.split(',').filter(|name| !name.is_empty()) {
        match all.get_mut(name) {
            Some(option) => *option = json!(true),
            None => return Err(format!("there is no improvement {name:?}")),
        }
    }
    serde_json::from_value(all).map_err(|error| error.to_string())
}

fn run() -> Result<Value, String> {
    let arguments = arguments()?;
    if arguments.day {
        let types = match &arguments.catalogue {
            Some(file) => catalogue::read(file)?,
            None => generate::instance_types(arguments.types),
        };
        let asked = day::Asked {
            peer: arguments.peer.clone(),
            arrivals: arguments.arrivals,
            policy: arguments.policy,
            eviction: arguments.eviction,
            seed: arguments.seed,
            hours: arguments.hours,
        };
        return day::day(types, &asked);
    }
    let workload = workload(&arguments)?;
    if let Some(file) = &arguments.write {
        write(file, &workload)?;
        return Ok(json!({ "written": file }));
    }
    if let Some(file) = &arguments.check {
        let plan: Plan = read(file)?;
        let problems = checker::problems(&workload.snapshot, &workload.pods, &plan);
        return Ok(
            json!({ "problems": problems.len(), "first": problems.iter().take(5).collect::<Vec<_>>() }),
        );
    }
    if arguments.consolidate {
        return consolidate(&workload, arguments.repeat);
    }
    if arguments.optimum {
        return cheapest(&workload, &arguments);
    }
    let before = process::Memory::mark();
    let (mut seconds, mut busy) = (Vec::new(), Vec::new());
    let mut plan = Plan::default();
    for _ in 0..arguments.repeat {
        // The last plan is not part of what the next needs.
        drop(std::mem::take(&mut plan));
        let (start, busy_before) = (Instant::now(), process::busy_seconds());
        plan = schedule(&workload.snapshot, &workload.pods);
        seconds.push(start.elapsed().as_secs_f64());
        busy.push(process::busy_seconds() - busy_before);
    }
    let memory = before.since();
    if let Some(file) = &arguments.plan {
        write(file, &plan)?;
    }
    Ok(json!({
        "pods": workload.pods.len(),
        "seconds": seconds,
        "busySeconds": busy,
        "newClaims": plan.new_claims.len(),
        "costPerHour": plan.new_claims.iter().map(|claim| claim.cheapest_price).sum::<f64>(),
        "onNodes": plan.existing.iter().map(|node| node.pods.len()).sum::<usize>(),
        "unschedulable": plan.unschedulable.len(),
        "peakMegabytes": memory.peak,
        "grownMegabytes": memory.grown,
    }))
}

/// The plan of the policy `cost`, what it is measured against, and what the checker says to it.
fn cheapest(workload: &Workload, arguments: &Arguments) -> Result<Value, String> {
    let (mut seconds, mut busy) = (Vec::new(), Vec::new());
    let mut outcome = None;
    for _ in 0..arguments.repeat {
        let (start, busy_before) = (Instant::now(), process::busy_seconds());
        outcome = Some(slipway_packing::optimum::plan(&workload.snapshot, &workload.pods));
        seconds.push(start.elapsed().as_secs_f64());
        busy.push(process::busy_seconds() - busy_before);
    }
    let outcome = outcome.ok_or("nothing was planned")?;
    let problems = checker::problems(&workload.snapshot, &workload.pods, &outcome.plan);
    if let Some(file) = &arguments.plan {
        write(file, &outcome.plan)?;
    }
    Ok(json!({
        "pods": workload.pods.len(),
        "seconds": seconds,
        "busySeconds": busy,
        "bound": outcome.bound,
        "cost": outcome.cost,
        "ordinary": outcome.ordinary_cost,
        "newClaims": outcome.plan.new_claims.len(),
        "unschedulable": outcome.plan.unschedulable.len(),
        "problems": problems.len(),
        "first": problems.iter().take(5).collect::<Vec<_>>(),
    }))
}

/// One pass of every method, as often as asked.
fn consolidate(workload: &Workload, repeat: usize) -> Result<Value, String> {
    let before = process::Memory::mark();
    let (mut seconds, mut busy) = (Vec::new(), Vec::new());
    let mut methods = Value::Null;
    let mut problems: Vec<String> = Vec::new();
    for _ in 0..repeat {
        let (started, busy_before) = (Instant::now(), process::busy_seconds());
        methods = json!({});
        for method in [
            Method::Emptiness,
            Method::CostConsolidation,
            Method::MultiNodeConsolidation,
            Method::SingleNodeConsolidation,
        ] {
            let start = Instant::now();
            let outcome = disrupt(&workload.snapshot, &workload.pods, method);
            let name = serde_json::to_value(method).map_err(|error| error.to_string())?;
            let command = outcome.command.as_ref();
            problems.extend(
                command.iter().flat_map(|command| {
                    checker::command_problems(&workload.snapshot, &workload.pods, command)
                }),
            );
            methods[name.as_str().unwrap_or("method")] = json!({
                "seconds": start.elapsed().as_secs_f64(),
                "delete": command.map_or(0, |command| command.nodes.len()),
                "replace": command.map_or(0, |command| command.replacements.len()),
                "savings": command.map_or(0.0, |command| command.savings),
                "probedAndKept": outcome.blocked.len(),
            });
        }
        seconds.push(started.elapsed().as_secs_f64());
        busy.push(process::busy_seconds() - busy_before);
    }
    let memory = before.since();
    Ok(json!({
        "nodes": workload.snapshot.nodes.len(),
        "boundPods": workload.snapshot.bound_pods.len(),
        "seconds": seconds,
        "busySeconds": busy,
        "methods": methods,
        "problems": problems.len(),
        "first": problems.iter().take(5).collect::<Vec<_>>(),
        "peakMegabytes": memory.peak,
        "grownMegabytes": memory.grown,
    }))
}

fn main() -> ExitCode {
    match run() {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("solve: {problem}");
            ExitCode::FAILURE
        }
    }
}
