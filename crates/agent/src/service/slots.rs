//! The engine in a thread of its own: it blocks, and only one may use it. Its last state can be read at any time.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use slipway_agent_api::{Class, Problem};
use slipway_slots::Digest;
use slipway_slots::machine::Refused;
use tokio::sync::oneshot;

use super::chunks::{CachedBlobs, remote_sources};
use crate::cache::{Cache, CacheError, RemoteImage};
use crate::engine::{self, Engine, EngineError, Image, Rest, Sources, Status, Watch};

type Work = Box<dyn FnOnce(&mut Engine) + Send>;

/// A host may have slots or none: one that only caches images has no engine.
#[derive(Clone)]
pub struct Slots {
    work: mpsc::Sender<Work>,
    watch: Watch,
    status: Arc<Mutex<Option<Status>>>,
    cache: Arc<Cache>,
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slots")
    }
}

fn problem(error: &EngineError) -> Problem {
    let class = match error.class() {
        engine::Class::Transient => Class::Transient,
        engine::Class::Terminal => Class::Terminal,
    };
    let reason = match error {
        EngineError::Refused(_) => "Refused",
        EngineError::Image(_) => "ImageRefused",
        EngineError::InUse { .. } | EngineError::SamePartition { .. } => "InUse",
        EngineError::Preflight(_) => "Preflight",
        EngineError::Store(_) => "BootStore",
        EngineError::Journal(_) | EngineError::Io { .. } => "Disk",
        EngineError::Failed { .. } => "Failed",
        EngineError::ImageNeeded { .. } => "ImageNeeded",
    };
    Problem::new(class, reason, error.to_string())
}

/// What the engine rests at, in words.
fn told(rest: Rest) -> String {
    match rest {
        Rest::Waiting(reason) => reason,
        Rest::Rebooting(reason) => format!("rebooting: {reason}"),
        Rest::Recovery(reason) => format!("a person has to decide: {reason}"),
    }
}

impl Slots {
    /// Starts the thread. It first settles what a crash or a reboot left; a slot on trial is decided about there. It ends
    /// with the last handle.
    pub fn start(mut engine: Engine, cache: Arc<Cache>) -> Self {
        let (work, jobs) = mpsc::channel::<Work>();
        let slots = Self {
            work,
            watch: engine.watch(),
            status: Arc::default(),
            cache: cache.clone(),
        };
        let status = slots.status.clone();
        refresh(&mut engine, &status, &cache);
        std::thread::spawn(move || {
            match engine.run() {
                Ok(rest) => tracing::info!("slots: {}", told(rest)),
                Err(EngineError::ImageNeeded { id }) => {
                    tracing::info!(
                        upgrade = id,
                        "an upgrade was interrupted and goes on when it is prepared again"
                    );
                }
                Err(error) => tracing::error!("slots: {error}"),
            }
            refresh(&mut engine, &status, &cache);
            while let Ok(job) = jobs.recv() {
                job(&mut engine);
                refresh(&mut engine, &status, &cache);
            }
        });
        slots
    }

    /// Waits until what the last start left is settled: a slot on trial is decided about.
    pub async fn settled(&self) {
        // An engine that is gone has nothing left to settle.
        let _ = self.call(|_| Ok(())).await;
    }

    /// As of the last change.
    pub fn status(&self) -> Option<Status> {
        self.status.lock().clone()
    }

    pub fn progress(&self) -> engine::Progress {
        self.watch.progress()
    }

    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, Problem> {
        let (sender, receiver) = oneshot::channel();
        let gone = || Problem::new(Class::Transient, "EngineGone", "the slots' engine has ended");
        self.work
            .send(Box::new(move |engine| {
                let _ = sender.send(work(engine));
            }))
            .map_err(|_| gone())?;
        receiver
            .await
            .map_err(|_| gone())?
            .map_err(|error| problem(&error))
    }

    /// Writes a cached image to the slot that does not run.
    pub async fn prepare(&self, upgrade: &str, digest: &Digest) -> Result<String, Problem> {
        let lease = self.cache.lease(digest).map_err(|error| error.problem())?;
        let signed = self
            .cache
            .disk_image(digest)
            .map_err(|error: CacheError| error.problem())?;
        let image = Image {
            signed,
            sources: Sources::new(vec![Box::new(CachedBlobs::new(self.cache.clone()))]),
        };
        let written = self.write(upgrade, image).await;
        drop(lease);
        match written {
            Ok(written) => Ok(written),
            // Bytes that the engine did not take may be damage of ours: then the image is had again.
            Err(problem) => match self.cache.verify(digest).await {
                Ok(false) => Err(CacheError::Damaged(*digest).problem()),
                _ => Err(problem),
            },
        }
    }

    /// Writes an image that is not cached: what the host lacks of it is downloaded. Dropping the future ends that.
    pub async fn prepare_remote(&self, upgrade: &str, image: RemoteImage) -> Result<String, Problem> {
        let written = self
            .write(
                upgrade,
                Image {
                    signed: image.signed.clone(),
                    sources: remote_sources(&image.remote),
                },
            )
            .await;
        // The engine says that it failed; who could not be reached is worth another try.
        written.map_err(|problem| match image.remote.gave_up() {
            Some(error) if problem.reason == "Failed" => error.problem(),
            _ => problem,
        })
    }

    async fn write(&self, upgrade: &str, image: Image) -> Result<String, Problem> {
        let upgrade = upgrade.to_owned();
        let manifest = self.call(move |engine| engine.prepare(&upgrade, image)).await?;
        Ok(format!(
            "{} {} is written and verified",
            manifest.name, manifest.version
        ))
    }

    pub async fn arm(&self, upgrade: &str, tries: u8) -> Result<String, Problem> {
        let upgrade = upgrade.to_owned();
        self.call(move |engine| match engine.activate(&upgrade, tries) {
            // Ordered again after the reboot that it led to.
            Err(EngineError::Refused(Refused::Ended { how, .. })) => {
                Ok(Rest::Waiting(format!("the upgrade was armed and is {how}")))
            }
            activated => activated,
        })
        .await
        .map(told)
    }

    pub async fn confirm(&self, upgrade: &str) -> Result<String, Problem> {
        let upgrade = upgrade.to_owned();
        self.call(move |engine| engine.confirm(&upgrade)).await.map(told)
    }

    pub async fn roll_back(&self, reason: &str) -> Result<String, Problem> {
        let reason = reason.to_owned();
        self.call(move |engine| engine.roll_back(&reason)).await.map(told)
    }
}

/// The state for readers, and the slots' images kept in the cache.
fn refresh(engine: &mut Engine, shown: &Mutex<Option<Status>>, cache: &Cache) {
    match engine.status() {
        Ok(status) => {
            let images: BTreeMap<_, _> = status
                .slots
                .iter()
                .filter_map(|slot| Some((slot.image?, slot.slot.to_string())))
                .collect();
            cache.set_slots(images);
            *shown.lock() = Some(status);
        }
        Err(error) => tracing::error!("the slots cannot be read: {error}"),
    }
}
