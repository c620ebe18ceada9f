//! `slipway-agent join`, `serve` and `maintenance`: the host as part of a fleet.

use std::{
    fs,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;
use slipway_agent::{
    cache::{Cache, Limits, RegistrySettings, Settings, Waits, architecture},
    deliver::{Containerd, Deliveries, K3sFolder},
    engine::{Engine, Unhindered},
    enrol,
    service::{
        Host, Parts, Serving, Slots, WipePlan,
        machine::{LocalMachine, Machine},
        maintenance::Maintenance,
    },
};
use slipway_agent_api::{
    serve::serve,
    tls::{Callers, CurrentTls},
    token::JoinToken,
    tunnel::connect_tunnel,
};
use tokio::net::TcpListener;

use super::{
    config::Config,
    host::{confirm_own_version, tell_interrupted},
    service_manager::ServiceManager,
};

/// The first and the longest wait before the manager is connected to again.
const CONNECT_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The part of the configuration that is about the fleet.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Service {
    /// The edge manager's Service, `name:port`.
    pub manager: String,
    /// Where to listen; without it the host connects to the manager and is spoken to over that connection.
    #[serde(default)]
    pub listen: Option<String>,
    #[serde(default)]
    pub cache: CacheConfig,
    #[serde(default)]
    pub registries: RegistriesConfig,
    /// k3s' images folder, `/var/lib/rancher/k3s/agent/images`.
    #[serde(default)]
    pub k3s_images: Option<PathBuf>,
    #[serde(default)]
    pub containerd: Option<ContainerdConfig>,
    #[serde(default)]
    pub wipe: WipeConfig,
    /// What hosts beside this one get.
    #[serde(default)]
    pub peers: PeersConfig,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CacheConfig {
    pub quota_mebibytes: u64,
    /// In percent of the quota.
    pub high_watermark: u64,
    pub low_watermark: u64,
    /// Left on the disk for everybody else.
    pub margin_mebibytes: u64,
    pub ttl_hours: Option<u64>,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            quota_mebibytes: 20 << 10,
            high_watermark: 90,
            low_watermark: 75,
            margin_mebibytes: 1 << 10,
            ttl_hours: None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RegistriesConfig {
    pub plain_http: Vec<String>,
    pub mirrors: Vec<MirrorConfig>,
    pub ca_files: Vec<PathBuf>,
    /// A file in the form of Docker's `config.json`.
    pub credentials_file: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MirrorConfig {
    pub registry: String,
    pub mirror: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ContainerdConfig {
    pub command: Vec<String>,
    pub address: String,
    pub namespace: String,
}

impl Default for ContainerdConfig {
    fn default() -> Self {
        Self {
            command: vec!["ctr".to_owned()],
            address: String::new(),
            namespace: "k8s.io".to_owned(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WipeConfig {
    pub commands: Vec<Vec<String>>,
    pub paths: Vec<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PeersConfig {
    pub readers: Option<usize>,
    pub readers_per_host: Option<usize>,
    pub bytes_per_second: Option<u64>,
}

/// Docker's `config.json`, as far as credentials go.
#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: std::collections::BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    #[serde(default)]
    auth: Option<String>,
}

/// Credentials by registry. Errors say where and never what.
fn credentials(path: &Path) -> Result<Vec<(String, RegistryAuth)>> {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let bytes = fs::read(path).with_context(|| format!("reading the credentials {}", path.display()))?;
    let Ok(config) = serde_json::from_slice::<DockerConfig>(&bytes) else {
        bail!(
            "the credentials {} are not in the form of Docker's config.json",
            path.display()
        );
    };
    let mut found = Vec::new();
    for (registry, auth) in config.auths {
        let decoded = auth
            .auth
            .and_then(|text| BASE64_STANDARD.decode(text).ok())
            .and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = decoded
            .as_deref()
            .and_then(|text| text.split_once(':'))
            .map(|(user, password)| RegistryAuth::Basic(user.to_owned(), password.to_owned()));
        match pair {
            Some(pair) => found.push((registry, pair)),
            None => bail!(
                "the credentials of {registry} in {} cannot be read",
                path.display()
            ),
        }
    }
    Ok(found)
}

impl Service {
    /// What `wipe` removes. A path that names half the machine is a slip.
    fn wipe(&self, state: &Path) -> Result<WipePlan> {
        for path in &self.wipe.paths {
            let plain = path
                .components()
                .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
            if !path.is_absolute() || !plain || path.components().count() < 3 {
                bail!(
                    "service.wipe.paths: {} must be absolute and at least two folders deep, such as /var/lib/rancher",
                    path.display()
                );
            }
            if state.starts_with(path) {
                bail!(
                    "service.wipe.paths: {} holds the agent's own state {}",
                    path.display(),
                    state.display()
                );
            }
        }
        Ok(WipePlan {
            commands: self.wipe.commands.clone(),
            paths: self.wipe.paths.clone(),
        })
    }

    fn registries(&self) -> Result<RegistrySettings> {
        let config = &self.registries;
        let ca_certificates = config
            .ca_files
            .iter()
            .map(|path| fs::read(path).with_context(|| format!("reading the CA {}", path.display())))
            .collect::<Result<_>>()?;
        Ok(RegistrySettings {
            plain_http: config.plain_http.clone(),
            mirrors: config
                .mirrors
                .iter()
                .map(|mirror| (mirror.registry.clone(), mirror.mirror.clone()))
                .collect(),
            ca_certificates,
            credentials: config
                .credentials_file
                .as_ref()
                .map(|path| credentials(path))
                .transpose()?
                .unwrap_or_default(),
        })
    }

    fn cache(&self, config: &Config) -> Result<Settings> {
        let quota = self.cache.quota_mebibytes << 20;
        if self.cache.low_watermark > self.cache.high_watermark || self.cache.high_watermark > 100 {
            bail!("service.cache: lowWatermark must not be above highWatermark, nor that above 100");
        }
        Ok(Settings {
            limits: Limits {
                quota,
                high: quota / 100 * self.cache.high_watermark,
                low: quota / 100 * self.cache.low_watermark,
            },
            margin: self.cache.margin_mebibytes << 20,
            default_ttl: self.cache.ttl_hours.map(Duration::from_hours),
            waits: Waits::default(),
            architecture: architecture().to_owned(),
            keys: Some(config.keys()?),
            now: Timestamp::now,
        })
    }
}

fn service(config: &Config) -> Result<&Service> {
    config
        .service
        .as_ref()
        .context("the configuration has no `service`: it says which manager this host belongs to")
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")
}

/// Joins a fleet with a token.
pub fn join(config: &Config, host: &str, token_file: &Path) -> Result<()> {
    let service = service(config)?;
    let text = fs::read_to_string(token_file)
        .with_context(|| format!("reading the join token {}", token_file.display()))?;
    let token: JoinToken = text.parse()?;
    let joining = enrol::enrol(
        &config.state_directory,
        &service.manager,
        host,
        &token,
        &Unhindered,
    );
    let material = runtime()?.block_on(joining)?;
    let (name, fleet) = enrol::identity(&material)?;
    println!("{name} has joined fleet {fleet}");
    Ok(())
}

/// The agent as a service of its fleet.
pub fn run(config: &Config) -> Result<()> {
    let _lock = super::host::Lock::take(config)?;
    runtime()?.block_on(serve_fleet(config))
}

async fn serve_fleet(config: &Config) -> Result<()> {
    let service = service(config)?;
    if config.is_of_a_node() {
        bail!(
            "the configuration names a `node`: a service here would run its orders on this host and not there; install the agent on \
             the node and let it join, or use `update`, `run --once` and `exec`"
        );
    }
    tell_interrupted(config)?;
    let state = config.state_directory.clone();
    let material = enrol::read(&state)?
        .context("this host has not joined a fleet: `slipway-agent join` with a token from its manager")?;
    let (name, fleet) = enrol::identity(&material)?;
    let tls = CurrentTls::new(&material, Callers::WithCertificate)?;
    let cache = Cache::open(&state.join("cache"), service.cache(config)?, Arc::new(Unhindered))?;
    let machine: Arc<dyn Machine> = Arc::new(LocalMachine);
    let slots = behind_others(config.open()?, cache.clone())?;
    let settled = slots.clone();
    let default = Serving::default();
    let host = Host::open(Parts {
        name: name.clone(),
        fleet: fleet.clone(),
        state: state.clone(),
        root: PathBuf::from("/"),
        exchange: state.join("exchange"),
        cache,
        registries: service.registries()?,
        slots: Some(slots),
        machine,
        deliveries: Deliveries {
            k3s: service.k3s_images.clone().map(K3sFolder),
            containerd: service.containerd.as_ref().map(|containerd| Containerd {
                command: containerd.command.clone(),
                address: containerd.address.clone(),
                namespace: containerd.namespace.clone(),
                scratch: state.clone(),
            }),
        },
        tls: Some(tls.clone()),
        reboot_command: config.reboot_command.clone(),
        tries: config.tries,
        wipe: service.wipe(&state)?,
        serving: Serving {
            readers: service.peers.readers.unwrap_or(default.readers),
            readers_per_host: service.peers.readers_per_host.unwrap_or(default.readers_per_host),
            bytes_per_second: service.peers.bytes_per_second,
        },
        steps: Arc::new(Unhindered),
    })?;
    tokio::spawn(enrol::keep_renewed(
        state,
        service.manager.clone(),
        name,
        tls.clone(),
        Arc::new(Unhindered),
    ));
    let sweeping = host.clone();
    tokio::spawn(async move {
        loop {
            sweeping.sweep().await;
            tokio::time::sleep(Duration::from_mins(5)).await;
        }
    });
    let manager = ServiceManager::find();
    tokio::spawn(async move {
        manager.ready();
        // A runtime that hangs keeps this from being said.
        loop {
            tokio::time::sleep(manager.interval).await;
            manager.alive();
        }
    });
    let own = async {
        settled.settled().await;
        // It came this far, so it is no worse than the version before it.
        confirm_own_version(config);
        std::future::pending::<()>().await;
    };
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .context("listening for the service manager's word")?;
    tokio::select! {
        served = reach(service, &fleet, tls, &host) => served,
        () = own => Ok(()),
        _ = terminate.recv() => {
            tracing::info!("ending: what runs is settled by the next start");
            host.stop();
            Ok(())
        }
    }
}

/// The slots' engine in its thread, behind all others at the disk: threads inherit that from the one that starts them.
fn behind_others(engine: Engine, cache: Arc<Cache>) -> Result<Slots> {
    let starting = std::thread::spawn(move || {
        if let Err(error) = slipway_agent::io_priority::give_way() {
            tracing::warn!("writing to slots does not give way at the disk: {error}");
        }
        Slots::start(engine, cache)
    });
    match starting.join() {
        Ok(slots) => Ok(slots),
        Err(_) => bail!("the slots' engine does not start; its message is above"),
    }
}

/// Listens, or connects to the manager again and again.
async fn reach(service: &Service, fleet: &str, tls: Arc<CurrentTls>, host: &Arc<Host>) -> Result<()> {
    if let Some(listen) = &service.listen {
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("listening on {listen}"))?;
        println!("listening on {}", listener.local_addr()?);
        serve(listener, tls, host.router()).await;
        return Ok(());
    }
    let router = Arc::new(host.router());
    let mut wait = CONNECT_AGAIN.0;
    loop {
        let began = Instant::now();
        match connect_tunnel(&service.manager, fleet, &tls, router.clone()).await {
            Ok(()) => tracing::info!("the connection to the manager ended and is made again"),
            Err(error) => tracing::warn!("{error}"),
        }
        if began.elapsed() > CONNECT_AGAIN.1 {
            wait = CONNECT_AGAIN.0;
        }
        // Not all hosts of a site at the same moment when the manager comes back.
        let share = f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
        tokio::time::sleep(wait.mul_f64(0.5 + share / 2.0)).await;
        wait = (wait * 2).min(CONNECT_AGAIN.1);
    }
}

/// The maintenance lock, for the person at the host.
pub fn maintenance(config: &Config, hold: bool, reason: &str) -> Result<()> {
    if !hold {
        Maintenance::release(&config.state_directory).context("releasing the maintenance lock")?;
        println!("the host takes all orders");
        return Ok(());
    }
    let by = std::env::var("SUDO_USER")
        .or_else(|_| std::env::var("USER"))
        .unwrap_or_else(|_| "a person on site".to_owned());
    let lock = Maintenance {
        by,
        reason: reason.to_owned(),
        since: Timestamp::now(),
    };
    lock.hold(&config.state_directory)
        .context("holding the maintenance lock")?;
    println!("the host does nothing that can be felt on it, until `slipway-agent maintenance off`");
    Ok(())
}
