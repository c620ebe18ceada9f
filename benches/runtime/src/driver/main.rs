//! Runs both managers in front of a real apiserver, each on fresh state and in alternating order, and measures them
//! from outside: processor time and memory from the kernel, latency by a watch of its own, requests by the audit log.
//! Progress goes to standard error; standard output is one JSON object.

mod process;
mod report;
mod run;
mod watch;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

use report::{Runs, Side};

#[derive(Parser)]
pub struct Arguments {
    /// How many objects, as a list.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 50_000])]
    objects: Vec<usize>,
    /// How often each is run; the median counts.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// From this many objects on, each is run once.
    #[arg(long, default_value_t = 50_000)]
    once_from: usize,
    /// Reconciles at the same time.
    #[arg(long, default_value_t = 10)]
    concurrency: usize,
    /// Updates a second once all is reconciled.
    #[arg(long, default_value_t = 100)]
    updates: u32,
    #[arg(long, default_value_t = 120)]
    updates_seconds: u32,
    #[arg(long, default_value_t = 30)]
    idle_seconds: u32,
    /// Our manager keeps its caches as text.
    #[arg(long)]
    compressed: bool,
    /// Our manager.
    #[arg(long)]
    slipway: PathBuf,
    /// The manager on controller-runtime; without it ours runs alone.
    #[arg(long)]
    controller_runtime: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("starting the executor")?;
    let runs = runtime.block_on(race(&arguments))?;
    println!("{}", runs.json());
    Ok(())
}

async fn race(arguments: &Arguments) -> Result<Runs> {
    let mut runs = Runs::default();
    for objects in &arguments.objects {
        let repeat = if *objects >= arguments.once_from {
            1
        } else {
            arguments.repeat.max(1)
        };
        for round in 0..repeat {
            let mut sides = vec![Side::Slipway];
            if arguments.controller_runtime.is_some() {
                sides.push(Side::ControllerRuntime);
            }
            // Whoever goes second meets a warmer machine.
            if round % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
                let sample = run::run(arguments, side, *objects)
                    .await
                    .with_context(|| format!("{objects} objects, {}", side.name()))?;
                eprintln!("{objects:>6} {:<19} {}", side.name(), sample.line());
                runs.add(*objects, side, sample);
            }
        }
    }
    Ok(runs)
}
