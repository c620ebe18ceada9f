//! What the subcommands for inline Azure resources share: the objects of a Cluster as they are in the management cluster, whatever
//! versions it serves.

pub mod objects;

use clap::{Arg, Command};
use slipway_runtime::command::{asker_flags, kubeconfig_flag};

/// Where the package is installed, unless a flag says otherwise.
const MANAGER_NAMESPACE: &str = "capz-system";

/// The flags of every subcommand here.
pub fn with_cluster(command: Command) -> Command {
    command
        .arg(kubeconfig_flag())
        .arg(
            Arg::new("namespace")
                .long("namespace")
                .short('n')
                .value_name("NAMESPACE")
                .default_value("default")
                .help("The namespace of the objects"),
        )
        .args(asker_flags(MANAGER_NAMESPACE))
}

/// `-o`.
pub fn output_flag(formats: &'static [&'static str], help: &'static str) -> Arg {
    Arg::new("output")
        .long("output")
        .short('o')
        .value_name("FORMAT")
        .value_parser(clap::builder::PossibleValuesParser::new(formats.iter().copied()))
        .help(help)
}
