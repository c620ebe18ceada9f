//! One `prepare` of the engine over files, as a process: what the agent does, without its daemon.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use minisign::KeyPair;
use serde::{Deserialize, Serialize};
use slipway_agent::boot_store::{BootStore, Device, Stored};
use slipway_agent::engine::{
    Engine, Failpoint, Failpoints, HealthCheck, Host, Image, JournalFile, Preflight, Rebooter, SlotPartition,
    Sources, SystemClock,
};
use slipway_agent::image::{ImageDirectory, build_partition};
use slipway_agent::target::LocalTarget;
use slipway_slots::boot::{BootState, Records};
use slipway_slots::machine::Health;
use slipway_slots::manifest::{KeyRing, KeyRingFile, LABEL_SIZE, Manifest, SignedManifest};
use slipway_slots::write_plan::{Limits, OnDeltaFailure};
use slipway_slots::{BySlot, Slot};

/// What one run of the engine cost.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    pub seconds: f64,
    /// Of a processor.
    pub busy_seconds: f64,
    pub rss_mb: f64,
    pub bytes_written: u64,
    pub bytes_in_place: u64,
    pub bytes_downloaded: u64,
}

/// Seconds of a processor that this process used so far, and those that its children used which have ended.
pub fn busy_seconds() -> Result<[f64; 2]> {
    // USER_HZ is this on every Linux that Rust runs on.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = fs::read_to_string("/proc/self/stat")?;
    let after_name = text.rsplit_once(") ").context("the kernel tells the times")?.1;
    let ticks: Vec<f64> = after_name
        .split(' ')
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse().ok())
        .collect();
    match ticks[..] {
        [user, system, of_children, system_of_children] => Ok([
            (user + system) / TICKS_PER_SECOND,
            (of_children + system_of_children) / TICKS_PER_SECOND,
        ]),
        _ => bail!("the kernel does not tell the times"),
    }
}

/// Builds and signs the image of `raw` in `directory`.
pub fn build(directory: &Path, raw: &Path) -> Result<()> {
    let size = fs::metadata(raw)?.len();
    let blobs = directory.join("image");
    let partition = build_partition("root", &mut fs::File::open(raw)?, size, &blobs)?;
    let manifest = Manifest {
        format: Manifest::FORMAT,
        name: "bench".into(),
        version: "2.0".into(),
        compatible: vec!["bench".into()],
        arch: "any".into(),
        epoch: 1,
        created: "2026-01-01T00:00:00Z".parse()?,
        not_after: "2100-01-01T00:00:00Z".parse()?,
        kubelet_version: None,
        partitions: vec![partition],
    };
    let keys = KeyPair::generate_unencrypted_keypair()?;
    let bytes = manifest.encode();
    let signature = minisign::sign(Some(&keys.pk), &keys.sk, bytes.as_slice(), None, None)?;
    let signed = SignedManifest {
        manifest: String::from_utf8(bytes)?,
        signatures: vec![signature.to_string()],
    };
    fs::write(directory.join("signed"), signed.encode())?;
    let ring = KeyRingFile {
        version: 1,
        threshold: 1,
        keys: vec![keys.pk.to_base64()],
    };
    fs::write(directory.join("ring"), serde_json::to_vec(&ring)?)?;
    Ok(())
}

/// A boot store as on a host that was just installed, and no journal.
pub fn reset(directory: &Path) -> Result<()> {
    fs::write(directory.join("store"), vec![0; Records::SIZE as usize])?;
    Stored::new(Records { offset: 0 }, Device::open(&directory.join("store"))?)
        .install(&BootState::installed(Slot::A))?;
    match fs::remove_file(directory.join("journal")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// The size a slot needs for an image.
pub fn slot_size(image: u64) -> u64 {
    image.next_multiple_of(4096) + LABEL_SIZE as u64
}

/// Runs [`run`] in a process of its own; `None` when it ended without notice, as it was told to.
pub fn measure(directory: &Path, die_at_checkpoint: Option<usize>) -> Result<Option<Cost>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("prepare").arg("--directory").arg(directory);
    if let Some(checkpoint) = die_at_checkpoint {
        command.args(["--die-at-checkpoint", &checkpoint.to_string()]);
    }
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if die_at_checkpoint.is_some() && output.status.code() == Some(99) {
        return Ok(None);
    }
    if !output.status.success() {
        bail!("the engine ended with {}", output.status);
    }
    Ok(Some(serde_json::from_slice(&output.stdout)?))
}

struct DieAt(Option<usize>, AtomicUsize);

impl Failpoints for DieAt {
    fn reached(&self, point: Failpoint) {
        if point == Failpoint::Checkpoint && Some(self.1.fetch_add(1, Ordering::Relaxed)) == self.0 {
            std::process::exit(99);
        }
    }
}

struct Nobody;

impl HealthCheck for Nobody {
    fn decide(&mut self) -> Health {
        Health::Unknown
    }
}

impl Rebooter for Nobody {
    fn reboot(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

pub fn run(directory: &Path, die_at_checkpoint: Option<usize>) -> Result<()> {
    let partition = |name: &str| -> Result<Vec<SlotPartition>> {
        Ok(vec![SlotPartition {
            name: "root".into(),
            target: Box::new(LocalTarget::open(&directory.join(name)).context("opening a slot")?),
        }])
    };
    let host = Host {
        compatible: "bench".into(),
        arch: "any".into(),
        keys: KeyRing::decode(&fs::read(directory.join("ring"))?)?,
        booted: Some(Slot::A),
        slots: BySlot {
            a: partition("slot-a")?,
            b: partition("slot-b")?,
        },
        store: Box::new(Stored::new(
            Records { offset: 0 },
            Device::open(&directory.join("store"))?,
        )),
        journal: Box::new(JournalFile::new(&directory.join("journal"))),
        health: Box::new(Nobody),
        rebooter: Box::new(Nobody),
        clock: Box::new(SystemClock),
        failpoints: Arc::new(DieAt(die_at_checkpoint, AtomicUsize::new(0))),
        limits: Limits::default(),
        on_delta_failure: OnDeltaFailure::Full,
        preflight: Preflight::new(directory),
    };
    let image = Image {
        signed: SignedManifest::decode(&fs::read(directory.join("signed"))?)?,
        sources: Sources::new(vec![Box::new(ImageDirectory::new(&directory.join("image")))]),
    };
    let (began, [busy_before, _]) = (Instant::now(), busy_seconds()?);
    let mut engine = Engine::open(host)?;
    engine.prepare("bench", image)?;
    let seconds = began.elapsed().as_secs_f64();
    let [busy_after, _] = busy_seconds()?;
    let progress = engine.watch().progress();
    let status = fs::read_to_string("/proc/self/status")?;
    let peak: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .context("the kernel tells the peak of the memory")?;
    let cost = Cost {
        seconds,
        busy_seconds: busy_after - busy_before,
        rss_mb: peak / 1024.0,
        bytes_written: progress.bytes_written,
        bytes_in_place: progress.bytes_in_place,
        bytes_downloaded: progress.bytes_downloaded,
    };
    println!("{}", serde_json::to_string(&cost)?);
    Ok(())
}
