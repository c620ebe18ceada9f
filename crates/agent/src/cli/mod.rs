//! The command line: arguments in, parts of the library put together.

mod bundle;
mod config;
mod exec;
mod guest;
mod host;
mod image;
mod keys;
mod node;
mod serve;
mod service_manager;
mod store;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use config::Config;
use slipway_agent::{boot_store::Directory, ssh, target::LocalTarget};
use slipway_slots::Slot;

#[derive(Parser)]
#[command(
    name = "slipway-agent",
    version,
    about = "Keeps the A/B slots of a host",
    arg_required_else_help = true
)]
pub struct Arguments {
    /// The host's configuration.
    #[arg(
        long,
        global = true,
        default_value = "/etc/slipway-agent/config.yaml",
        env = "SLIPWAY_AGENT_CONFIG"
    )]
    config: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run as a service: settle what a crash or reboot left, decide about a slot on trial.
    Run {
        /// End when there is nothing to do any more: for systems without a service manager.
        #[arg(long)]
        once: bool,
    },
    /// Write an image to the slot that does not run, verify it, and boot it.
    Update {
        /// A directory, an OCI image layout, or an address.
        #[arg(long)]
        from: String,
        /// Names the operation; the same again goes on where it stopped. The image's digest unless said otherwise.
        #[arg(long)]
        id: Option<String>,
        /// Only write; `activate` boots it.
        #[arg(long)]
        stage: bool,
    },
    /// Boot an image that was staged.
    Activate { id: String },
    /// Keep the slot on trial now, whatever its health policy says.
    Confirm { id: String },
    /// Leave the running slot for the other one.
    Rollback {
        #[arg(long, default_value = "asked for by a person")]
        reason: String,
    },
    /// Slots, versions from their own bytes, and what happens.
    Status {
        #[arg(long)]
        json: bool,
    },
    /// How updates ended.
    History {
        #[arg(long)]
        json: bool,
    },
    /// Set up a boot store that was never written, on a host that was just installed.
    Install {
        /// The slot that is in use.
        #[arg(long)]
        slot: Slot,
    },
    /// Start the newest version of the agent that can be relied on, with these arguments.
    Launch {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, default_value = "run")]
        arguments: Vec<OsString>,
    },
    /// Install a new version of the agent; it is on trial from the next start of the service on.
    SelfUpdate {
        /// A directory, an OCI image layout, or an address.
        #[arg(long)]
        from: String,
        /// How often it may start without confirming itself.
        #[arg(long, default_value_t = 3)]
        tries: u8,
    },
    /// The keys whose signatures count.
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Run a command within limits, on this host or on the node of the configuration.
    Exec(exec::Exec),
    /// Join a fleet with a token from its manager.
    Join {
        /// This host's name in the fleet.
        #[arg(long)]
        host: String,
        /// A file with the join token.
        #[arg(long)]
        token_file: PathBuf,
    },
    /// Run as a service of a fleet: take orders from its manager.
    Serve,
    /// Run as a service in a guest of a cloud: orders come as commands that the cloud runs in it (`call`).
    Guest(guest::Guest),
    /// Hand one call to the agent of this guest: the call on standard input, the answer on standard output.
    Call(guest::Call),
    /// Keep the fleet's manager from disturbing this host while somebody works on it.
    #[command(subcommand)]
    Maintenance(MaintenanceCommand),
    /// Make, show and check images.
    #[command(subcommand)]
    Image(image::Image),
    /// Partitions for hosts beside this one.
    #[command(subcommand)]
    Slot(SlotCommand),
}

#[derive(Subcommand)]
enum MaintenanceCommand {
    /// From now on.
    On {
        #[arg(long)]
        reason: String,
    },
    /// No longer.
    Off,
}

#[derive(Subcommand)]
enum SlotCommand {
    /// Answer requests for one partition, or for the directory of a boot store, on standard input and output; started over SSH.
    Serve { path: PathBuf },
}

pub fn run(arguments: Arguments) -> Result<ExitCode> {
    let config = || Config::read(&arguments.config);
    let done = match arguments.command {
        Command::Exec(exec) => return exec::run(&config()?, exec),
        Command::Run { once } => host::run(&config()?, once),
        Command::Update { from, id, stage } => host::update(&config()?, &from, id.as_deref(), stage),
        Command::Activate { id } => host::activate(&config()?, &id),
        Command::Confirm { id } => host::confirm(&config()?, &id),
        Command::Rollback { reason } => host::roll_back(&config()?, &reason),
        Command::Status { json } => host::status(&config()?, json),
        Command::History { json } => host::history(&config()?, json),
        Command::Install { slot } => config()?.install(slot),
        Command::Launch { arguments: given } => {
            let mut words = vec!["--config".into(), arguments.config.clone().into_os_string()];
            words.extend(given);
            // Without a configuration the packaged agent says what is wrong with it.
            if let Ok(config) = config() {
                config.own_versions().launch(&words);
            }
            words.insert(0, "slipway-agent".into());
            return run(Arguments::parse_from(words));
        }
        Command::SelfUpdate { from, tries } => host::self_update(&config()?, &from, tries),
        Command::Keys(command) => keys::run(&config()?, command),
        Command::Join { host, token_file } => serve::join(&config()?, &host, &token_file),
        Command::Serve => serve::run(&config()?),
        Command::Guest(guest) => guest::run(guest),
        Command::Call(call) => guest::call(&call),
        Command::Maintenance(MaintenanceCommand::On { reason }) => {
            serve::maintenance(&config()?, true, &reason)
        }
        Command::Maintenance(MaintenanceCommand::Off) => serve::maintenance(&config()?, false, ""),
        Command::Image(image) => image::run(image),
        Command::Slot(SlotCommand::Serve { path }) => serve_over_ssh(&path),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn serve_over_ssh(path: &Path) -> Result<()> {
    let (mut from, mut to) = (std::io::stdin().lock(), std::io::stdout().lock());
    let opening = || format!("opening {}", path.display());
    if path.is_dir() {
        let mut directory = Directory::open(path).with_context(opening)?;
        return Ok(ssh::serve_directory(&mut directory, &mut from, &mut to)?);
    }
    let mut target = LocalTarget::open(path).with_context(opening)?;
    Ok(ssh::serve(&mut target, &mut from, &mut to)?)
}
