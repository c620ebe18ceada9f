//! `cargo xtask bench NAME`: measures side by side with what it replaces, in one run. With `--json`, standard output is exactly
//! one JSON object; progress goes to standard error.

mod aks;
mod autoscaler;
mod cache;
mod edge;
mod k3s;
mod packing;
mod runtime;
mod slots;
pub mod upstream;

use anyhow::Result;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    bench: Bench,
    /// Print exactly one JSON object.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Bench {
    /// AKS clusters by the hundred: time until ready, processor, memory and requests, against Cluster API Provider Azure.
    Aks(aks::Arguments),
    /// The same with resources inline, as Azure Service Operator would make them, and kube-apiserver's memory with and without its kinds.
    Aso(aks::Arguments),
    /// Pods that wait by the thousand: time until claims are decided, nodes ready and pods running, processor, memory and requests,
    /// against Karpenter's kwok provider.
    Autoscaler(autoscaler::Arguments),
    /// An image for many hosts: time and bytes from upstream, with and without the hosts beside them, and an agent's memory.
    Cache(cache::Arguments),
    /// Edge hosts by the thousand that take one upgrade: processor time, memory, requests, and how soon `UpdateMachine` is answered.
    Edge(edge::Arguments),
    /// Many K3s clusters: time until all are ready, processor time, memory and requests, against cluster-api-k3s.
    K3s(k3s::Arguments),
    /// Pods placed a second, nodes, cost and memory, against Karpenter's own scheduler.
    Packing(packing::Arguments),
    /// Objects reconciled a second and a processor second, latency and memory, against controller-runtime.
    Runtime(runtime::Arguments),
    /// Writing and updating a slot: throughput against `dd`, bytes downloaded against casync, memory, resuming.
    Slots(slots::Arguments),
}

pub fn run(arguments: &Arguments) -> Result<bool> {
    match &arguments.bench {
        Bench::Aks(bench) => aks::run(bench, "classic", arguments.json)?,
        Bench::Aso(bench) => aks::run(bench, "inline", arguments.json)?,
        Bench::Autoscaler(bench) => autoscaler::run(bench, arguments.json)?,
        Bench::Cache(bench) => cache::run(bench, arguments.json)?,
        Bench::Edge(bench) => edge::run(bench, arguments.json)?,
        Bench::K3s(bench) => k3s::run(bench, arguments.json)?,
        Bench::Packing(bench) => packing::run(bench, arguments.json)?,
        Bench::Runtime(bench) => runtime::run(bench, arguments.json)?,
        Bench::Slots(bench) => slots::run(bench, arguments.json)?,
    }
    Ok(true)
}

/// The middle of several measurements, and how far they spread.
struct Measured {
    median: f64,
    lowest: f64,
    highest: f64,
}

impl Measured {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            median: values[values.len() / 2],
            lowest: values[0],
            highest: values[values.len() - 1],
        }
    }
}
