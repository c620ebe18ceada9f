//! `slipway-agent exec`: a command on this host, or on the node of the configuration, within its limits. Output is handed on as
//! it comes; the exit status is the program's.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result};
use slipway_agent::command::{self, BootId, Command, Event, Outcome, Running, Stream};
use tokio::sync::mpsc;

use super::config::Config;

/// As `timeout` has it.
const TIME_OVER: u8 = 124;
/// There is no exit status: it never started, was ended by a signal, or was lost sight of.
const NO_STATUS: u8 = 125;

#[derive(clap::Args)]
pub struct Exec {
    /// After so many seconds it is ended with all its processes.
    #[arg(long, default_value_t = 60)]
    time_limit: u64,
    /// Bytes of output that are handed on; what comes after them is dropped.
    #[arg(long, default_value_t = 1 << 20)]
    output_limit: usize,
    /// It is meant to restart the machine: losing the machine under it is no failure.
    #[arg(long)]
    may_reboot: bool,
    /// The program and its arguments; no shell is between.
    #[arg(trailing_var_arg = true, required = true)]
    argv: Vec<String>,
}

pub fn run(config: &Config, exec: Exec) -> Result<ExitCode> {
    let command = Command {
        time_limit: Duration::from_secs(exec.time_limit),
        output_limit: exec.output_limit,
        may_reboot: exec.may_reboot,
        ..Command::new(exec.argv)
    };
    let (sender, receiver) = mpsc::channel(16);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let node = config.node()?;
    let (outcome, shown) = match &node {
        Some(node) => {
            runtime.block_on(async { tokio::join!(node.command(&command, sender), show(receiver)) })
        }
        None => {
            let note = note(&config.state_directory, &command)?;
            let ended =
                runtime.block_on(async { tokio::join!(command::run(&command, sender), show(receiver)) });
            note.finish().context("removing the note of the command")?;
            ended
        }
    };
    shown.context("handing on the output")?;
    let status = match &outcome {
        Outcome::Exited { code } => return Ok(ExitCode::from(u8::try_from(*code).unwrap_or(NO_STATUS))),
        Outcome::Rebooting => ExitCode::SUCCESS,
        Outcome::TimedOut { .. } => ExitCode::from(TIME_OVER),
        Outcome::Signaled { .. } | Outcome::Lost { .. } | Outcome::NotStarted { .. } => {
            ExitCode::from(NO_STATUS)
        }
    };
    eprintln!("{} {outcome}", command.argv.join(" "));
    Ok(status)
}

/// Says to the agent's next start that the command ran, should nobody live to tell how it ended.
fn note(state: &Path, command: &Command) -> Result<Running> {
    std::fs::create_dir_all(state)
        .with_context(|| format!("making the state directory {}", state.display()))?;
    let boot = BootId::current().context("reading the boot identity")?;
    Running::begin(state, "exec", &command.argv, command.may_reboot, &boot)
        .with_context(|| format!("noting the command in {}", state.display()))
}

async fn show(mut events: mpsc::Receiver<Event>) -> io::Result<()> {
    while let Some(event) = events.recv().await {
        match event {
            Event::Output(Stream::Stdout, bytes) => {
                let mut output = io::stdout().lock();
                output.write_all(&bytes)?;
                output.flush()?;
            }
            Event::Output(Stream::Stderr, bytes) => io::stderr().lock().write_all(&bytes)?,
            Event::Truncated => eprintln!("(the rest of the output is left out)"),
        }
    }
    Ok(())
}
