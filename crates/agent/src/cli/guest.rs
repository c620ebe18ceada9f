//! `slipway-agent guest` and `call`: the agent in a guest of a cloud. The cloud has the disks, so there are no slots here, no fleet and no
//! key ring; orders come as commands that the cloud runs, and go over a socket to the service that carries them out.

use std::{
    fs,
    io::{Read, Write},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context, Result};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use slipway_agent::{
    cache::{Cache, Limits, RegistrySettings, Settings, Waits, architecture},
    deliver::{Deliveries, K3sFolder},
    engine::Unhindered,
    service::{Host, Parts, Serving, WipePlan, local, machine::LocalMachine},
};

const MIB: u64 = 1 << 20;

#[derive(clap::Args)]
pub struct Guest {
    /// The EdgeHost's name; the machine's own if absent.
    #[arg(long)]
    host: Option<String>,
    /// Where orders are remembered: on the disk that stays when the system's disk is switched.
    #[arg(long, default_value = "/var/lib/slipway-agent")]
    state: PathBuf,
    /// What takes Kubernetes off the machine when the host is let go.
    #[arg(long, default_value = "k3s-uninstall.sh")]
    wipe_command: String,
    /// What is deleted then.
    #[arg(long, default_value = "/var/lib/rancher")]
    wipe_path: Vec<PathBuf>,
    /// k3s' images folder.
    #[arg(long)]
    k3s_images: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct Call {
    #[arg(long, default_value = "/var/lib/slipway-agent")]
    state: PathBuf,
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")
}

fn socket(state: &std::path::Path) -> PathBuf {
    state.join("call.sock")
}

pub fn run(guest: Guest) -> Result<()> {
    fs::create_dir_all(&guest.state)
        .with_context(|| format!("making the state directory {}", guest.state.display()))?;
    runtime()?.block_on(async {
        let name = match guest.host {
            Some(name) => name,
            None => fs::read_to_string("/proc/sys/kernel/hostname")
                .context("reading the machine's name: give it with --host")?
                .trim()
                .to_owned(),
        };
        let settings = Settings {
            limits: Limits {
                quota: 20 << 10 << 20,
                high: 18 << 10 << 20,
                low: 15 << 10 << 20,
            },
            margin: 1024 * MIB,
            default_ttl: None,
            waits: Waits::default(),
            architecture: architecture().to_owned(),
            keys: None,
            now: jiff::Timestamp::now,
        };
        let socket = socket(&guest.state);
        let host = Host::open(Parts {
            name,
            fleet: String::new(),
            root: PathBuf::from("/"),
            exchange: guest.state.join("exchange"),
            cache: Cache::open(&guest.state.join("cache"), settings, Arc::new(Unhindered))?,
            registries: RegistrySettings::default(),
            slots: None,
            machine: Arc::new(LocalMachine),
            deliveries: Deliveries {
                k3s: guest.k3s_images.map(K3sFolder),
                containerd: None,
            },
            tls: None,
            reboot_command: ["systemctl", "reboot"].map(str::to_owned).to_vec(),
            tries: 3,
            wipe: WipePlan {
                commands: vec![vec![guest.wipe_command]],
                paths: guest.wipe_path,
            },
            serving: Serving::default(),
            steps: Arc::new(Unhindered),
            state: guest.state,
        })?;
        let failed = || format!("answering at {}", socket.display());
        let listener = local::bind(&socket).with_context(failed)?;
        println!("answering at {}", socket.display());
        local::serve(listener, host).await.with_context(failed)
    })
}

pub fn call(call: &Call) -> Result<()> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .context("reading the call from standard input")?;
    text.retain(|letter| !letter.is_whitespace());
    let bytes = BASE64_STANDARD
        .decode(text)
        .context("the call on standard input is not in base64")?;
    let socket = socket(&call.state);
    let answer = runtime()?
        .block_on(local::ask(&socket, &bytes))
        .with_context(|| {
            format!(
                "asking at {}: `slipway-agent guest` has to run on this machine",
                socket.display()
            )
        })?;
    writeln!(std::io::stdout(), "{}", BASE64_STANDARD.encode(answer)).context("answering")
}
