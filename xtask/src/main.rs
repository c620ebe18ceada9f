//! The chores of the project, as `cargo xtask <chore>`.

mod bench;
mod manifests;
mod package;
mod packages;
mod parts;
mod shared_clusters;
mod test;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run a management cluster on this machine with Slipway in it, until Ctrl-C.
    Up(up::Arguments),
    /// Run every test, and end with a plain count.
    Test(test::Arguments),
    /// Measure side by side with what it replaces.
    Bench(bench::Arguments),
    /// Build the real parts (Kubernetes, etcd, Cluster API, clusterctl, kwok) into the per-user cache.
    Parts(parts::Arguments),
    /// Render CRDs, roles, webhooks, Deployments, clusterctl's files and the chart into deploy/, the reference into docs/.
    Manifests(manifests::Arguments),
    /// Make what a release consists of: static programs, image, clusterctl repository, bill of materials, manual.
    Package(package::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().chore {
        Chore::Up(arguments) => up::run(&arguments),
        Chore::Test(arguments) => test::run(&arguments),
        Chore::Bench(arguments) => bench::run(&arguments),
        Chore::Parts(arguments) => parts::run(&arguments),
        Chore::Manifests(arguments) => manifests::run(&arguments),
        Chore::Package(arguments) => package::run(&arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
