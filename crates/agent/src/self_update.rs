//! The agent updates itself with the guarantees it gives to slots: signed, verified before it may start, tried a few
//! times, confirmed by itself or left again.
//!
//! The binary of the package stays where it is and launches: it starts the version that `state` names in its own place,
//! after it has checked that version's digest. A damaged or missing state, a damaged version, a version whose tries are used up:
//! each leads to the one before it, and in the end to the packaged binary. So there is no step at which killing the
//! agent, or cutting the power, leaves nothing that starts.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use slipway_slots::Digest;
use slipway_slots::digest::Hasher;
use slipway_slots::manifest::{self, Expectation, LABEL_SIZE, Refusal};
use slipway_slots::write_plan::{Limits, OnDeltaFailure};

use crate::engine::{Failpoint, Failpoints, Image, Watch, WriteError, write_partition};
use crate::target::LocalTarget;

/// The name of the partition in a manifest whose image is the agent.
pub const PARTITION: &str = "agent";
/// Tells a version that was launched what it is, so that it can confirm itself.
pub const LAUNCHED: &str = "SLIPWAY_AGENT_LAUNCHED";
/// No agent is larger.
const MAX_SIZE: u64 = 256 << 20;

/// Where versions of the agent are.
pub struct Installation {
    directory: PathBuf,
    failpoints: Arc<dyn Failpoints>,
}

/// Which version starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// Confirmed by itself.
    current: Option<Digest>,
    trial: Option<Trial>,
    /// Of the newest version that was ever confirmed: older ones are not taken any more.
    #[serde(default)]
    epoch: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Trial {
    digest: Digest,
    left: u8,
    #[serde(default)]
    epoch: u64,
}

/// What the launcher is to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Version {
        path: PathBuf,
        digest: Digest,
        on_trial: bool,
    },
    /// No version can be relied on, or none was ever installed.
    Packaged,
}

#[derive(Debug, thiserror::Error)]
pub enum SelfUpdateError {
    #[error("the agent is not updated: {0}")]
    Refused(#[from] Refusal),
    #[error("the agent's new version cannot be written: {0}")]
    Write(#[from] WriteError),
    #[error("the agent's new version is not what its manifest says after it was written")]
    NotVerified,
    #[error("{digest} is not on trial: there is nothing to confirm")]
    NotOnTrial { digest: Digest },
    #[error("{doing} {place}: {source}")]
    Io {
        doing: &'static str,
        place: String,
        source: io::Error,
    },
}

impl Installation {
    pub fn new(directory: &Path, failpoints: Arc<dyn Failpoints>) -> Self {
        Self {
            directory: directory.to_owned(),
            failpoints,
        }
    }

    fn version(&self, digest: &Digest) -> PathBuf {
        self.directory.join(digest.to_string().replace(':', "-"))
    }

    /// Writes and verifies a new version and puts it on trial for `tries` starts. The version that runs goes on.
    pub fn install(
        &self,
        mut image: Image,
        host: &Expectation<'_>,
        tries: u8,
    ) -> Result<Digest, SelfUpdateError> {
        let partitions = [(PARTITION.to_owned(), MAX_SIZE + LABEL_SIZE as u64)];
        let mut state = self.read();
        let expectation = Expectation {
            partitions: &partitions,
            epoch: host.epoch.max(state.epoch),
            ..host.clone()
        };
        let manifest = manifest::admit(&image.signed, &expectation)?;
        let partition = &manifest.partitions[0];
        let path = self.version(&partition.digest);
        let failed = |doing: &'static str| {
            let place = self.directory.display().to_string();
            move |source| SelfUpdateError::Io { doing, place, source }
        };
        fs::create_dir_all(&self.directory).map_err(failed("creating"))?;
        if !matches(&path, &partition.digest) {
            let temporary = self.directory.join("incoming");
            let prepare = || {
                let file = File::create(&temporary)?;
                file.set_len(partition.size)?;
                file.set_permissions(fs::Permissions::from_mode(0o755))?;
                LocalTarget::open(&temporary)
            };
            let mut target = prepare().map_err(failed("preparing a file in"))?;
            write_partition(
                partition,
                &mut image.sources,
                &mut target,
                Limits::default(),
                OnDeltaFailure::Full,
                &*self.failpoints,
                &Watch::default(),
            )?;
            drop(target);
            File::open(&temporary)
                .and_then(|file| file.sync_all())
                .map_err(failed("flushing a file in"))?;
            self.failpoints.reached(Failpoint::AgentWritten);
            if !matches(&temporary, &partition.digest) {
                return Err(SelfUpdateError::NotVerified);
            }
            fs::rename(&temporary, &path).map_err(failed("naming a file in"))?;
            self.sync().map_err(failed("flushing"))?;
            self.failpoints.reached(Failpoint::AgentNamed);
        }
        state.trial = Some(Trial {
            digest: partition.digest,
            left: tries,
            epoch: manifest.epoch,
        });
        self.write(&state).map_err(failed("writing the state in"))?;
        self.failpoints.reached(Failpoint::AgentArmed);
        Ok(partition.digest)
    }

    /// For the launcher: what to start now. A version on trial loses a try before it starts.
    pub fn choose(&self) -> Choice {
        let mut state = self.read();
        if let Some(trial) = &mut state.trial
            && trial.left > 0
        {
            let digest = trial.digest;
            trial.left -= 1;
            // A try that cannot be counted is not taken: it could be taken forever.
            if self.write(&state).is_ok() {
                self.failpoints.reached(Failpoint::AgentCounted);
                let path = self.version(&digest);
                if matches(&path, &digest) {
                    return Choice::Version {
                        path,
                        digest,
                        on_trial: true,
                    };
                }
            }
        }
        if let Some(digest) = state.current {
            let path = self.version(&digest);
            if matches(&path, &digest) {
                return Choice::Version {
                    path,
                    digest,
                    on_trial: false,
                };
            }
        }
        Choice::Packaged
    }

    /// Starts the version that is to run in the place of this process, with these arguments. Returns when there is none,
    /// or none that starts: then this process goes on itself.
    pub fn launch(&self, arguments: &[OsString]) {
        while let Choice::Version {
            path,
            digest,
            on_trial,
        } = self.choose()
        {
            let error = Command::new(&path)
                .args(arguments)
                .env(LAUNCHED, digest.to_string())
                .exec();
            tracing::error!(version = %digest, "the agent's version cannot be started: {error}");
            if !on_trial {
                return;
            }
        }
    }

    /// For the new version, when it has found itself healthy.
    pub fn confirm(&self, digest: Digest) -> Result<(), SelfUpdateError> {
        let mut state = self.read();
        if state.current == Some(digest) {
            return Ok(());
        }
        match state.trial.take() {
            Some(trial) if trial.digest == digest => state.epoch = state.epoch.max(trial.epoch),
            _ => return Err(SelfUpdateError::NotOnTrial { digest }),
        }
        state.current = Some(digest);
        self.write(&state).map_err(|source| SelfUpdateError::Io {
            doing: "writing the state in",
            place: self.directory.display().to_string(),
            source,
        })?;
        self.failpoints.reached(Failpoint::AgentConfirmed);
        self.collect(&state);
        Ok(())
    }

    /// Removes versions that are neither confirmed nor on trial. One that does not go costs room, nothing else.
    fn collect(&self, state: &State) {
        let used: Vec<_> = state
            .current
            .into_iter()
            .chain(state.trial.as_ref().map(|trial| trial.digest))
            .map(|digest| self.version(&digest))
            .collect();
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_version = entry.file_name().to_string_lossy().starts_with("sha256-");
            if is_version && !used.contains(&path) {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// What cannot be read says nothing.
    fn read(&self) -> State {
        let read = || {
            let text = fs::read_to_string(self.directory.join("state")).ok()?;
            let (sum, json) = text.trim_end().split_once(' ')?;
            (sum == format!("{:08x}", crc32fast::hash(json.as_bytes()))).then_some(())?;
            serde_json::from_str(json).ok()
        };
        read().unwrap_or_default()
    }

    fn write(&self, state: &State) -> io::Result<()> {
        let json = serde_json::to_string(state)?;
        let temporary = self.directory.join("state.new");
        let mut file = File::create(&temporary)?;
        writeln!(file, "{:08x} {json}", crc32fast::hash(json.as_bytes()))?;
        file.sync_all()?;
        self.failpoints.reached(Failpoint::AgentStateWritten);
        fs::rename(&temporary, self.directory.join("state"))?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}

/// Whether the file is there and has this digest.
fn matches(path: &Path, digest: &Digest) -> bool {
    let read = || -> io::Result<Digest> {
        let mut file = File::open(path)?;
        let mut hasher = Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hasher.finish()),
                read => hasher.update(&buffer[..read]),
            }
        }
    };
    read().is_ok_and(|found| found == *digest)
}
