//! `slipway-agent run`, `update`, `status`, `history`, `rollback`, `confirm`: what is done on a host. One of them works on
//! the slots at a time; the lock in the state directory says which.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::Write,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use slipway_agent::{
    command::{BootId, Running},
    engine::{ChunkSource, Clock, Engine, Image, Rest, Sources, Status, SystemClock},
    fetch::{HttpSource, Layout, Settings, Token},
    self_update::LAUNCHED,
};
use slipway_slots::{
    boot::SlotBoot,
    machine::Outcome,
    manifest::{Expectation, SignedManifest},
};

use super::{
    bundle::{Bundle, SIGNED_MANIFEST},
    config::Config,
    service_manager::ServiceManager,
};

/// Held while the slots are worked on.
pub struct Lock(#[expect(dead_code, reason = "the lock goes with the file")] File);

impl Lock {
    pub fn take(config: &Config) -> Result<Self> {
        let folder = &config.state_directory;
        std::fs::create_dir_all(folder)
            .with_context(|| format!("making the state directory {}", folder.display()))?;
        let place = folder.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&place)
            .with_context(|| format!("opening {}", place.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(std::fs::TryLockError::WouldBlock) => {
                bail!(
                    "another slipway-agent works on the slots of this host; `slipway-agent status` shows on what"
                )
            }
            Err(std::fs::TryLockError::Error(error)) => {
                Err(error).with_context(|| place.display().to_string())
            }
        }
    }
}

/// The service: settles what the last run left, decides about a slot on trial, then keeps the watchdog quiet.
pub fn run(config: &Config, once: bool) -> Result<()> {
    let manager = ServiceManager::find();
    tell_interrupted(config)?;
    manager.ready();
    // The health policy may take its time, and the watchdog must not bite a host that is being looked at.
    let petting = std::thread::spawn(move || {
        loop {
            std::thread::sleep(manager.interval);
            manager.alive();
        }
    });
    let rest = {
        let _lock = Lock::take(config)?;
        let mut engine = config.open()?;
        report(&mut engine);
        settle(&mut engine)?
    };
    match &rest {
        Rest::Waiting(reason) => tracing::info!("waiting: {reason}"),
        Rest::Rebooting(reason) => tracing::info!("rebooting: {reason}"),
        Rest::Recovery(reason) => tracing::error!("a person has to decide: {reason}"),
    }
    // It came this far, so it is no worse than the version before it.
    confirm_own_version(config);
    if once {
        return Ok(());
    }
    // Ended by systemd with the host, or restarted with the package.
    let _ = petting.join();
    Ok(())
}

/// How a command ended that nobody lived to see the end of. Its arguments may be secret.
pub fn tell_interrupted(config: &Config) -> Result<()> {
    let boot = BootId::current().context("reading the boot identity")?;
    if let Some(command) = Running::settle(&config.state_directory, &boot).unwrap_or_default() {
        let program = command.argv.first().map_or("", String::as_str);
        tracing::info!(
            operation = command.operation,
            program,
            "the command {}",
            command.outcome
        );
    }
    Ok(())
}

/// A version that was launched on trial keeps itself.
pub fn confirm_own_version(config: &Config) {
    let launched = std::env::var(LAUNCHED).ok().and_then(|text| text.parse().ok());
    if let Some(digest) = launched
        && let Err(error) = config.own_versions().confirm(digest)
    {
        tracing::error!("{error}");
    }
}

/// Installs a new version of the agent. The one that runs goes on until the service starts again.
pub fn self_update(config: &Config, from: &str, tries: u8) -> Result<()> {
    let _lock = Lock::take(config)?;
    let (signed, sources) = sources(config, from)?;
    let keys = config.keys()?;
    let host = Expectation {
        keys: &keys,
        compatible: &config.compatible,
        arch: std::env::consts::ARCH,
        epoch: 0,
        now: SystemClock.now(),
        partitions: &[],
        quarantined: &BTreeMap::new(),
    };
    let digest = config
        .own_versions()
        .install(Image { signed, sources }, &host, tries)?;
    println!("the agent {} is installed", digest.short());
    println!("`systemctl restart slipway-agent` starts it on trial");
    Ok(())
}

/// What there is to do without an image; an interrupted write waits for whoever asked for it.
fn settle(engine: &mut Engine) -> Result<Rest> {
    match engine.run() {
        Err(slipway_agent::engine::EngineError::ImageNeeded { id }) => Ok(Rest::Waiting(format!(
            "update {id} was interrupted; the same update again goes on where it stopped"
        ))),
        rest => Ok(rest?),
    }
}

fn report(engine: &mut Engine) {
    match engine.status() {
        Ok(status) => {
            for problem in &status.problems {
                tracing::warn!("{problem}");
            }
            tracing::info!(booted = ?status.booted, "{}", status.standing);
        }
        Err(error) => tracing::error!("{error}"),
    }
}

/// Writes an image to the slot that does not run; boots it unless it is only staged.
pub fn update(config: &Config, from: &str, id: Option<&str>, stage: bool) -> Result<()> {
    let _lock = Lock::take(config)?;
    let (signed, sources) = sources(config, from)?;
    let mut engine = config.open()?;
    // A slot on trial, or a rollback under way, comes first.
    settle(&mut engine)?;
    if let Err(error) = slipway_agent::io_priority::give_way() {
        tracing::warn!("the update does not give way at the disk: {error}");
    }
    let image = signed.unverified().context("the image's manifest")?;
    let id = id.map_or_else(|| format!("update-{}", image.id().short()), str::to_owned);
    let watch = engine.watch();
    let told = std::thread::spawn(move || {
        let mut last = String::new();
        loop {
            std::thread::sleep(Duration::from_secs(2));
            let line = serde_json::to_string(&watch.progress()).unwrap_or_default();
            if line != last && !watch.is_cancelled() {
                tracing::info!("{line}");
                last = line;
            }
        }
    });
    let prepared = engine.prepare(&id, Image { signed, sources });
    drop(told);
    let manifest = prepared?;
    println!(
        "{} {} is written and verified ({id})",
        manifest.name, manifest.version
    );
    let progress = engine.watch().progress();
    println!(
        "{} bytes written, {} were in place, {} downloaded",
        progress.bytes_written, progress.bytes_in_place, progress.bytes_downloaded
    );
    if stage {
        println!("staged; `slipway-agent activate {id}` boots it");
        return Ok(());
    }
    activate_in(&mut engine, config, &id)
}

pub fn activate(config: &Config, id: &str) -> Result<()> {
    let _lock = Lock::take(config)?;
    let mut engine = config.open()?;
    activate_in(&mut engine, config, id)
}

fn activate_in(engine: &mut Engine, config: &Config, id: &str) -> Result<()> {
    say(&engine.activate(id, config.tries)?);
    Ok(())
}

fn say(rest: &Rest) {
    match rest {
        Rest::Waiting(reason) => println!("waiting: {reason}"),
        Rest::Rebooting(reason) => println!("rebooting: {reason}"),
        Rest::Recovery(reason) => println!("a person has to decide: {reason}"),
    }
}

pub fn confirm(config: &Config, id: &str) -> Result<()> {
    let _lock = Lock::take(config)?;
    say(&config.open()?.confirm(id)?);
    Ok(())
}

pub fn roll_back(config: &Config, reason: &str) -> Result<()> {
    let _lock = Lock::take(config)?;
    say(&config.open()?.roll_back(reason)?);
    Ok(())
}

fn sources(config: &Config, from: &str) -> Result<(SignedManifest, Sources)> {
    let is_url = from.starts_with("http://") || from.starts_with("https://");
    if !is_url {
        let bundle = Bundle::open(Path::new(from))?;
        let signed = bundle.signed.clone();
        return Ok((signed, Sources::new(vec![Box::new(bundle)])));
    }
    let settings = Settings {
        layout: Layout::Directory,
        bytes_per_second: config.bandwidth_limit,
        token: config.token()?.map(Token),
        ..Settings::default()
    };
    let mut origin = HttpSource::new(from, settings.clone())?;
    let bytes = origin.get(SIGNED_MANIFEST, 4 << 20)?;
    let signed = SignedManifest::decode(&bytes).with_context(|| format!("the signed manifest at {from}"))?;
    let mut sources: Vec<Box<dyn ChunkSource>> = Vec::new();
    for mirror in &config.mirrors {
        // A host beside us answers soon or not at all, and our token is none of its business.
        let settings = Settings {
            stall: Duration::from_secs(5),
            give_up: Duration::from_secs(10),
            token: None,
            ..settings.clone()
        };
        sources.push(Box::new(HttpSource::new(mirror, settings)?));
    }
    sources.push(Box::new(origin));
    Ok((signed, Sources::new(sources)))
}

pub fn status(config: &Config, json: bool) -> Result<()> {
    let status = config.open()?.status()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(());
    }
    print_status(&status, &mut std::io::stdout().lock())?;
    Ok(())
}

fn print_status(status: &Status, to: &mut impl Write) -> std::io::Result<()> {
    for slot in &status.slots {
        let boot = match slot.boot {
            SlotBoot::Good => "good".to_owned(),
            SlotBoot::Trial { left, of } => format!("on trial, {left} of {of} tries left"),
            SlotBoot::Unbootable => "does not boot".to_owned(),
        };
        let booted = if status.booted == Some(slot.slot) {
            "*"
        } else {
            " "
        };
        let version = slot.version.as_deref().unwrap_or("-");
        writeln!(to, "{booted} {}  {version:<24} {boot}", slot.slot)?;
    }
    writeln!(to, "{}", status.standing)?;
    for (image, reason) in &status.quarantined {
        writeln!(to, "quarantined {}: {reason}", image.short())?;
    }
    for problem in &status.problems {
        writeln!(to, "problem: {problem}")?;
    }
    Ok(())
}

pub fn history(config: &Config, json: bool) -> Result<()> {
    let engine = config.open()?;
    let history = engine.history();
    if json {
        println!("{}", serde_json::to_string_pretty(history)?);
        return Ok(());
    }
    for ended in history {
        let how = match &ended.outcome {
            Outcome::Confirmed => "confirmed".to_owned(),
            Outcome::RolledBack { reason, .. } => format!("rolled back: {reason}"),
            Outcome::Failed { reason } => format!("failed: {reason}"),
            Outcome::Cancelled => "cancelled".to_owned(),
        };
        println!("{}  {}  {how}", ended.operation.id, ended.operation.version);
    }
    Ok(())
}
