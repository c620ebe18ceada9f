//! Makes AKS clusters by the hundred on a simulated Azure whose operations take no time, with Cluster API's real core on a
//! real apiserver, and measures the managers from outside: processor time and memory from the kernel, requests by the
//! audit log and by the simulator. Then it watches them do nothing for one period. Progress goes to standard error;
//! standard output is one JSON object.

mod fleet;
mod measured;
mod report;
mod run;
mod watch;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

use fleet::Form;
use report::{Runs, Side};

#[derive(Parser)]
pub struct Arguments {
    /// How many clusters, as a list.
    #[arg(long, value_delimiter = ',', default_values_t = [200])]
    clusters: Vec<usize>,
    /// Node pools of each; the first is the system pool.
    #[arg(long, default_value_t = 3)]
    pools: usize,
    /// Seconds of the sync period, which is also how long rest is watched; half of it is the read age. Ten minutes each
    /// by default in production.
    #[arg(long, default_value_t = 60)]
    period: u64,
    /// The API that the fleet is written in.
    #[arg(long, value_enum, default_value = "classic")]
    form: Form,
    /// Our manager.
    #[arg(long)]
    slipway: PathBuf,
    /// The same fleet with every node as a Machine, too.
    #[arg(long)]
    machines: bool,
    /// The same fleet under Cluster API Provider Azure with Azure Service Operator, too.
    #[arg(long)]
    capz: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the executor")?;
    let runs = runtime.block_on(all(&arguments))?;
    println!("{}", runs.json());
    Ok(())
}

async fn all(arguments: &Arguments) -> Result<Runs> {
    let mut runs = Runs::default();
    for clusters in &arguments.clusters {
        let mut sides = vec![Side::Slipway];
        if arguments.machines {
            sides.push(Side::Machines);
        }
        if arguments.capz {
            sides.push(Side::Capz);
        }
        for side in sides {
            let sample = run::run(arguments, side, *clusters)
                .await
                .with_context(|| format!("{clusters} clusters, {}", side.name()))?;
            eprintln!("{clusters:>5} clusters {:<8} {}", side.name(), sample.line());
            runs.add(*clusters, side, &sample);
        }
    }
    Ok(runs)
}
