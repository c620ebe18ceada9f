//! The `slipway` command. Thin: it parses arguments, composes the providers and runs them.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use slipway_runtime::Provider;

#[derive(Parser)]
#[command(name = "slipway", version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the version.
    Version,
    /// Print a completion script for a shell.
    Completions { shell: clap_complete::Shell },
}

/// The providers of this binary, in the order they are listed and started.
fn providers() -> Vec<Provider> {
    Vec::new()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Command::Version => {
            let names: Vec<&str> = providers().iter().map(|provider| provider.name).collect();
            println!("slipway {}", env!("CARGO_PKG_VERSION"));
            println!(
                "providers: {}",
                if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                }
            );
        }
        Command::Completions { shell } => {
            clap_complete::generate(
                shell,
                &mut Arguments::command(),
                "slipway",
                &mut std::io::stdout(),
            );
        }
    }
    ExitCode::SUCCESS
}
