//! What subcommands that work with a management cluster share: how they run, how they reach the cluster, and how they ask its manager.

mod asker;

use std::path::PathBuf;

use clap::{Arg, ArgMatches, value_parser};
use kube::Client;

pub use self::asker::{ACCOUNT as ASKER_ACCOUNT, Asker, flags as asker_flags};
use crate::{certificates, workload::Access};

/// Runs an answer to its end.
pub fn run<T>(answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    certificates::install_crypto_provider();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the executor: {error}"))?
        .block_on(answer)
}

/// `--kubeconfig`.
pub fn kubeconfig_flag() -> Arg {
    Arg::new("kubeconfig")
        .long("kubeconfig")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("The management cluster; the pod's own, or $KUBECONFIG, if absent")
}

/// The management cluster of a kubeconfig, or of the pod.
pub async fn client(kubeconfig: Option<&PathBuf>) -> Result<Client, String> {
    let client = match kubeconfig {
        Some(path) => {
            let access = Access::from_file(path).await.map_err(|error| error.to_string())?;
            Client::try_from(access.into_config())
        }
        None => Client::try_default().await,
    };
    client.map_err(|error| format!("cannot connect to the management cluster: {error}"))
}

/// The same, from the flags of a command.
pub async fn client_of(matches: &ArgMatches) -> Result<Client, String> {
    client(matches.get_one::<PathBuf>("kubeconfig")).await
}
