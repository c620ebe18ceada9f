//! `azure-sim`: the simulated Azure as a process. It prints one line of JSON with its ports when it is ready.

mod get_token;

use std::{io::Write as _, net::SocketAddr, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use jiff::Timestamp;
use serde_json::json;
use slipway_azure_sim::{Azure, Ca, Options, Server, Settings, Simulator, Speed};

/// A simulated Azure Resource Manager and Entra ID.
#[derive(Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Where ARM and login are served over HTTPS.
    #[arg(long, default_value = "127.0.0.1:0")]
    https: SocketAddr,
    /// Where clients find the CONNECT proxy (HTTPS_PROXY=http://…).
    #[arg(long, default_value = "127.0.0.1:0")]
    proxy: SocketAddr,
    /// Where faults, requests, the clock and the state are reached over plain HTTP.
    #[arg(long, default_value = "127.0.0.1:0")]
    admin: SocketAddr,
    /// Keep the state in this file, and go on from it.
    #[arg(long)]
    state: Option<PathBuf>,
    /// Folder for the certificate authority (ca.pem, ca.key); made when it is not there.
    #[arg(long, default_value = "azure-sim-ca")]
    ca_folder: PathBuf,
    /// Settings in JSON, as documented in docs/azure-sim.md.
    #[arg(long)]
    settings: Option<PathBuf>,
    /// A kubeconfig: its API server is behind every cluster that is not given one of its own.
    #[arg(long, value_name = "KUBECONFIG")]
    backing: Option<PathBuf>,
    /// How fast operations go: `instant`, `recorded`, or a factor such as `60`.
    #[arg(long, value_parser = speed)]
    speed: Option<Speed>,
}

#[derive(Subcommand)]
enum Command {
    /// Sign in as a kubeconfig's credential plugin does: takes kubelogin's arguments, prints an ExecCredential.
    GetToken(get_token::Arguments),
}

fn speed(text: &str) -> Result<Speed> {
    Ok(match text {
        "instant" => Speed::Instant,
        "recorded" => Speed::Recorded,
        factor => match factor.trim_end_matches('x').parse::<f64>() {
            Ok(factor) if factor > 0.0 => Speed::Times(factor),
            _ => bail!("use `instant`, `recorded` or a positive factor"),
        },
    })
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(Command::GetToken(arguments)) = &arguments.command {
        return get_token::run(arguments).await;
    }
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let mut settings = match &arguments.settings {
        None => Settings::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("reading the settings from {}", path.display()))?;
            serde_json::from_str(&text)
                .with_context(|| format!("{} holds no valid settings", path.display()))?
        }
    };
    if let Some(speed) = arguments.speed {
        settings.speed = speed;
    }
    let state = match &arguments.state {
        None => None,
        Some(path) => slipway_azure_sim::read_state(path)
            .with_context(|| format!("going on from the state in {}", path.display()))?,
    };
    let mut azure = Azure::with_state(settings, state.unwrap_or_default());
    if let Some(path) = &arguments.backing {
        let kubeconfig = std::fs::read_to_string(path)
            .with_context(|| format!("reading the kubeconfig {}", path.display()))?;
        azure.back_all_clusters(&kubeconfig);
    }
    let simulator = Simulator::around(azure, Timestamp::now);
    let ca = Ca::kept_in(&arguments.ca_folder)?;
    let options = Options {
        https: arguments.https,
        proxy: arguments.proxy,
        admin: arguments.admin,
        state: arguments.state,
    };
    let server = Server::start(simulator, ca, options).await.context("listening")?;
    let ready = json!({
        "https": server.ports.https,
        "proxy": server.ports.proxy,
        "admin": server.ports.admin,
        "caFile": arguments.ca_folder.join("ca.pem"),
    });
    let mut out = std::io::stdout();
    writeln!(out, "{ready}")?;
    out.flush()?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    server.stop().await;
    Ok(())
}
