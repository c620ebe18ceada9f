//! The engine in a thread of its own: it blocks, and only one may use it. Its last state can be read at any time.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use slipway_agent_api::{Class, Problem, proto};
use slipway_slots::Digest;
use slipway_slots::machine::{self, Current, Ended, Outcome, Refused};
use tokio::sync::oneshot;

use super::chunks::{CachedBlobs, remote_sources};
use crate::cache::{Cache, CacheError, RemoteImage};
use crate::engine::{self, Engine, EngineError, Image, Rest, Sources, Status, Watch};

/// Something to do, and how to tell what came of it: that is told when readers see the state after it.
type Work = Box<dyn FnOnce(&mut Engine) -> Tell + Send>;
type Tell = Box<dyn FnOnce()>;

/// The engine's thread writes it, anybody reads it.
type Readable<T> = Arc<Mutex<T>>;

/// What came of an order about slots: in words, and how the upgrade it was about stands now.
#[derive(Clone, Debug, Default)]
pub struct Moved {
    pub message: String,
    pub upgrade: Option<proto::Upgrade>,
}

/// A host may have slots or none: one that only caches images has no engine.
#[derive(Clone)]
pub struct Slots {
    work: mpsc::Sender<Work>,
    watch: Watch,
    status: Readable<Option<Status>>,
    upgrades: Readable<Vec<proto::Upgrade>>,
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
            upgrades: Arc::default(),
            cache: cache.clone(),
        };
        let shown = (slots.status.clone(), slots.upgrades.clone());
        refresh(&mut engine, &shown, &cache);
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
            refresh(&mut engine, &shown, &cache);
            while let Ok(job) = jobs.recv() {
                let tell = job(&mut engine);
                refresh(&mut engine, &shown, &cache);
                tell();
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

    /// Upgrades that ended and the one under way, as of the last change.
    pub fn upgrades(&self) -> Vec<proto::Upgrade> {
        self.upgrades.lock().clone()
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
                let came_of_it = work(engine);
                Box::new(move || {
                    let _ = sender.send(came_of_it);
                })
            }))
            .map_err(|_| gone())?;
        receiver
            .await
            .map_err(|_| gone())?
            .map_err(|error| problem(&error))
    }

    /// Writes a cached image to the slot that does not run.
    pub async fn prepare(&self, upgrade: &str, digest: &Digest) -> Result<Moved, Problem> {
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
    pub async fn prepare_remote(&self, upgrade: &str, image: RemoteImage) -> Result<Moved, Problem> {
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

    async fn write(&self, upgrade: &str, image: Image) -> Result<Moved, Problem> {
        let upgrade = upgrade.to_owned();
        self.call(move |engine| {
            let manifest = engine.prepare(&upgrade, image)?;
            Ok(Moved {
                message: format!("{} {} is written and verified", manifest.name, manifest.version),
                upgrade: upgrade_of(engine, &upgrade),
            })
        })
        .await
    }

    pub async fn arm(&self, upgrade: &str, tries: u8) -> Result<Moved, Problem> {
        let upgrade = upgrade.to_owned();
        self.call(move |engine| {
            let rest = match engine.activate(&upgrade, tries) {
                // Ordered again after the reboot that it led to.
                Err(EngineError::Refused(Refused::Ended { how, .. })) => {
                    Rest::Waiting(format!("the upgrade was armed and is {how}"))
                }
                activated => activated?,
            };
            Ok(moved(engine, &upgrade, rest))
        })
        .await
    }

    pub async fn confirm(&self, upgrade: &str) -> Result<Moved, Problem> {
        let upgrade = upgrade.to_owned();
        self.call(move |engine| {
            let rest = engine.confirm(&upgrade)?;
            Ok(moved(engine, &upgrade, rest))
        })
        .await
    }

    pub async fn roll_back(&self, reason: &str) -> Result<Moved, Problem> {
        let reason = reason.to_owned();
        self.call(move |engine| {
            let rest = engine.roll_back(&reason)?;
            let upgrades = upgrades(engine);
            Ok(Moved {
                message: told(rest),
                upgrade: upgrades.last().cloned(),
            })
        })
        .await
    }

    /// Gives up a slot that was prepared and does not run. One that nobody holds is given up already.
    pub async fn give_up(&self, upgrade: &str) -> Result<Moved, Problem> {
        let upgrade = upgrade.to_owned();
        self.call(move |engine| {
            let confirmed = engine
                .history()
                .iter()
                .any(|ended| ended.operation.id == upgrade && ended.outcome == Outcome::Confirmed);
            let message = match engine.cancel(&upgrade) {
                Err(EngineError::Refused(Refused::Ended { .. } | Refused::Unknown { .. })) if !confirmed => {
                    "no slot is held for it".to_owned()
                }
                given_up => {
                    given_up?;
                    "the slot that was prepared is given up".to_owned()
                }
            };
            Ok(Moved {
                message,
                upgrade: upgrade_of(engine, &upgrade),
            })
        })
        .await
    }
}

fn moved(engine: &Engine, upgrade: &str, rest: Rest) -> Moved {
    Moved {
        message: told(rest),
        upgrade: upgrade_of(engine, upgrade),
    }
}

fn upgrade_of(engine: &Engine, id: &str) -> Option<proto::Upgrade> {
    upgrades(engine).into_iter().rfind(|upgrade| upgrade.id == id)
}

/// Those that ended, oldest first, and the one under way.
fn upgrades(engine: &Engine) -> Vec<proto::Upgrade> {
    let ended = engine.history().iter().map(|Ended { operation, outcome }| {
        let (state, reason) = match outcome {
            Outcome::Confirmed => (proto::UpgradeState::Confirmed, ""),
            Outcome::RolledBack { reason, .. } => (proto::UpgradeState::RolledBack, reason.as_str()),
            Outcome::Failed { reason } => (proto::UpgradeState::Failed, reason.as_str()),
            Outcome::Cancelled => (proto::UpgradeState::GivenUp, ""),
        };
        shown(operation, state, reason)
    });
    let current = engine.current().map(|Current { operation, progress }| {
        let (state, reason) = match progress {
            machine::Progress::Accepted => (proto::UpgradeState::Writing, ""),
            machine::Progress::Verified => (proto::UpgradeState::Prepared, ""),
            machine::Progress::Activated { .. } => (proto::UpgradeState::Armed, ""),
            machine::Progress::RollingBack { reason, .. } => {
                (proto::UpgradeState::RollingBack, reason.as_str())
            }
        };
        shown(operation, state, reason)
    });
    ended.chain(current).collect()
}

fn shown(operation: &machine::Operation, state: proto::UpgradeState, reason: &str) -> proto::Upgrade {
    proto::Upgrade {
        id: operation.id.clone(),
        image: operation.image.to_string(),
        version: operation.version.clone(),
        slot: operation.target.to_string(),
        state: state.into(),
        reason: reason.to_owned(),
        // The host knows what orders call it.
        digests: Vec::new(),
    }
}

/// The state for readers, and the slots' images kept in the cache.
fn refresh(
    engine: &mut Engine,
    (shown, upgrades_shown): &(Readable<Option<Status>>, Readable<Vec<proto::Upgrade>>),
    cache: &Cache,
) {
    *upgrades_shown.lock() = upgrades(engine);
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
