//! The command line of `slipway`, over whatever providers it is given.

mod man;
mod manifests;
mod see;
mod ui;
mod up;

use std::{ffi::OsString, process::ExitCode};

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use slipway_runtime::{
    Provider,
    manager::{self, Manager},
    provider,
};

/// The whole command, with the flags and subcommands of these providers.
pub fn command(providers: &[Provider]) -> Command {
    let mut command = Command::new("slipway")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Runs fleets of Kubernetes clusters through Cluster API")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(manager::command(providers))
        .subcommand(manifests::command())
        .subcommand(man::command())
        .subcommand(up::command())
        .subcommand(see::describe::command())
        .subcommand(see::why::command())
        .subcommand(see::plan::command())
        .subcommand(see::names::command())
        .subcommand(ui::command())
        .subcommand(
            Command::new("version")
                .about("Print the version, the commit and the providers of this binary")
                .arg(
                    Arg::new("output")
                        .short('o')
                        .long("output")
                        .value_name("FORMAT")
                        .value_parser(["text", "json"])
                        .default_value("text")
                        .help("text or json"),
                ),
        )
        .subcommand(
            Command::new("completions")
                .about("Print a completion script for a shell")
                .arg(
                    Arg::new("shell")
                        .required(true)
                        .value_parser(value_parser!(Shell)),
                ),
        );
    for subcommand in providers.iter().flat_map(|provider| &provider.subcommands) {
        command = command.subcommand(subcommand.command.clone());
    }
    command
}

/// Runs one command line to its exit code. Whatever is wrong with it is one message on standard error.
pub fn run(providers: Vec<Provider>, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let matches = match command(&providers).try_get_matches_from(manager::normalize(arguments)) {
        Ok(matches) => matches,
        // Prints help and version to standard output, mistakes to standard error, and knows the code of each.
        Err(error) => error.exit(),
    };
    match matches.subcommand() {
        Some(("manager", matches)) => run_manager(providers, matches),
        Some(("manifests", matches)) => report(manifests::run(&providers, matches)),
        Some(("man", matches)) => report(man::run(command(&providers), matches)),
        Some(("up", matches)) => report(up::run(&providers, matches)),
        Some(("describe", matches)) => {
            let catalogue = provider::catalogue(&providers);
            see::run(see::describe::run(&catalogue, matches))
        }
        Some(("plan", matches)) => see::run(see::plan::run(&providers, matches)),
        Some(("names", matches)) => {
            let catalogue = provider::catalogue(&providers);
            see::run(see::names::run(&catalogue, matches))
        }
        Some(("why", matches)) => {
            let catalogue = provider::catalogue(&providers);
            see::run(see::why::run(&catalogue, &providers, matches))
        }
        Some(("ui", matches)) => {
            let catalogue = provider::catalogue(&providers);
            see::run(ui::run(catalogue, &providers, matches))
        }
        Some(("version", matches)) => {
            print_version(&providers, matches);
            ExitCode::SUCCESS
        }
        Some(("completions", matches)) => {
            if let Some(shell) = matches.get_one::<Shell>("shell") {
                clap_complete::generate(
                    *shell,
                    &mut command(&providers),
                    "slipway",
                    &mut std::io::stdout(),
                );
                print!("{}", see::names::script(*shell));
            }
            ExitCode::SUCCESS
        }
        Some((name, matches)) => providers
            .iter()
            .flat_map(|provider| &provider.subcommands)
            .find(|subcommand| subcommand.command.get_name() == name)
            .map_or(ExitCode::FAILURE, |subcommand| (subcommand.run)(matches)),
        None => ExitCode::FAILURE,
    }
}

fn report(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn print_version(providers: &[Provider], matches: &ArgMatches) {
    let names: Vec<&str> = providers.iter().map(|provider| provider.name).collect();
    let build = slipway_runtime::build::THIS;
    if matches
        .get_one::<String>("output")
        .is_some_and(|format| format == "json")
    {
        let version = serde_json::json!({
            "version": build.version,
            "commit": build.commit,
            "date": build.date,
            "providers": names,
        });
        println!("{version}");
        return;
    }
    println!("slipway {}", build.version);
    println!(
        "commit: {}",
        build
            .commit
            .unwrap_or("not known: `cargo xtask package` builds it in")
    );
    println!("date: {}", build.date.unwrap_or("not known"));
    println!(
        "providers: {}",
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    );
}

fn run_manager(providers: Vec<Provider>, matches: &ArgMatches) -> ExitCode {
    let manager = match Manager::from_matches(providers, matches) {
        Ok(manager) => manager,
        Err(error) => return report(Err(error.to_string())),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(Err(format!("cannot start the executor: {error}"))),
    };
    let result = runtime.block_on(manager.run_until_signalled());
    // A task that hangs in a blocking call may not hold the process.
    runtime.shutdown_background();
    report(result.map_err(|error| error.to_string()))
}
