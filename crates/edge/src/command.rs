//! `slipway edge`: lets hosts join.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Arg, ArgMatches, Command, value_parser};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use slipway_agent_api::identity::check_name;
use slipway_runtime::{certificates, manager::duration_flag, provider::Subcommand, workload::Access};

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
        .arg(
            Arg::new("kubeconfig")
                .long("kubeconfig")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("The management cluster; the pod's own, or $KUBECONFIG, if absent"),
        )
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

pub(crate) fn run<T>(answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    certificates::install_crypto_provider();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the executor: {error}"))?
        .block_on(answer)
}

/// The management cluster of a kubeconfig, or of the pod.
pub(crate) async fn client(kubeconfig: Option<&PathBuf>) -> Result<Client, String> {
    let client = match kubeconfig {
        Some(path) => {
            let access = Access::from_file(path).await.map_err(|error| error.to_string())?;
            Client::try_from(access.into_config())
        }
        None => Client::try_default().await,
    };
    client.map_err(|error| format!("cannot connect to the management cluster: {error}"))
}

async fn token_for(matches: &ArgMatches) -> Result<String, String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let (host, namespace) = (text("host"), text("namespace"));
    check_name(&host).map_err(|error| format!("{host:?} is no name of a host: {error}"))?;
    let valid = matches.get_one::<Duration>("valid").copied().unwrap_or_default();
    let valid = SignedDuration::try_from(valid).map_err(|error| format!("--valid: {error}"))?;
    let client = client(matches.get_one::<PathBuf>("kubeconfig")).await?;
    let token = fleet::issue_token(&client, &namespace, &host, valid, Timestamp::now())
        .await
        .map_err(|error| error.to_string())?;
    Ok(token.reveal())
}
