//! `slipway edge`: lets hosts join.

use std::{process::ExitCode, time::Duration};

use clap::{Arg, ArgMatches, Command};
use jiff::{SignedDuration, Timestamp};
use slipway_agent_api::identity::check_name;
use slipway_runtime::{
    command::{client_of, kubeconfig_flag, run},
    manager::duration_flag,
    provider::Subcommand,
};

use crate::fleet;

pub fn subcommand() -> Subcommand {
    let token = Command::new("token")
        .about("Make a join token for a host, and print it: `slipway-agent join` takes it, once")
        .arg(
            Arg::new("host")
                .value_name("HOST")
                .required(true)
                .help("The host's name, as its EdgeHost has it"),
        )
        .arg(kubeconfig_flag())
        .arg(
            Arg::new("namespace")
                .long("namespace")
                .short('n')
                .value_name("NAMESPACE")
                .default_value(fleet::DEFAULT_NAMESPACE)
                .help("The manager's namespace"),
        )
        .arg(duration_flag("valid", "1h", "How long the token may be used"));
    Subcommand {
        command: Command::new("edge")
            .about("Hosts of the edge provider")
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommand(token),
        run: |matches| {
            let result = match matches.subcommand() {
                Some(("token", matches)) => run(token_for(matches)),
                _ => Err("there is token".to_owned()),
            };
            match result {
                Ok(text) => {
                    println!("{text}");
                    ExitCode::SUCCESS
                }
                Err(message) => {
                    eprintln!("error: {message}");
                    ExitCode::FAILURE
                }
            }
        },
    }
}

async fn token_for(matches: &ArgMatches) -> Result<String, String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let (host, namespace) = (text("host"), text("namespace"));
    check_name(&host).map_err(|error| format!("{host:?} is no name of a host: {error}"))?;
    let valid = matches.get_one::<Duration>("valid").copied().unwrap_or_default();
    let valid = SignedDuration::try_from(valid).map_err(|error| format!("--valid: {error}"))?;
    let client = client_of(matches).await?;
    let token = fleet::issue_token(&client, &namespace, &host, valid, Timestamp::now())
        .await
        .map_err(|error| error.to_string())?;
    Ok(token.reveal())
}
