//! What a host must offer before anything is changed: power, and space for what the agent itself writes.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

/// What a host demands before an upgrade begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preflight {
    /// A host on battery needs at least this much of it, in percent.
    pub least_battery: u8,
    /// Free bytes where the journal is.
    pub least_space: u64,
    /// Where the kernel lists batteries and chargers; a host without any runs on mains.
    pub supplies: PathBuf,
    /// Where the journal is.
    pub state_directory: PathBuf,
}

impl Preflight {
    /// The usual demands of a host that keeps its journal there.
    pub fn new(state_directory: &Path) -> Self {
        Self {
            least_battery: 30,
            least_space: 4 << 20,
            supplies: "/sys/class/power_supply".into(),
            state_directory: state_directory.to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreflightError {
    #[error("the host runs on battery with {found} %; an upgrade needs {needed} %, or mains power")]
    Power { found: u8, needed: u8 },
    #[error("{place} is read-only: the journal cannot be written; mount it read-write")]
    ReadOnly { place: String },
    #[error("{place} has {available} bytes free; {needed} are needed (ResourceExhausted)")]
    Space {
        place: String,
        available: u64,
        needed: u64,
    },
}

impl Preflight {
    pub fn check(&self) -> Result<(), PreflightError> {
        self.power()?;
        self.space()
    }

    fn power(&self) -> Result<(), PreflightError> {
        let mut lowest = None;
        for supply in fs::read_dir(&self.supplies).into_iter().flatten().flatten() {
            let read = |name: &str| fs::read_to_string(supply.path().join(name)).unwrap_or_default();
            match read("type").trim() {
                "Mains" | "USB" if read("online").trim() == "1" => return Ok(()),
                "Battery" if read("scope").trim() != "Device" => {
                    if let Ok(capacity) = read("capacity").trim().parse::<u8>() {
                        lowest = Some(lowest.map_or(capacity, |low: u8| low.min(capacity)));
                    }
                }
                _ => {}
            }
        }
        match lowest {
            Some(found) if found < self.least_battery => Err(PreflightError::Power {
                found,
                needed: self.least_battery,
            }),
            _ => Ok(()),
        }
    }

    /// A filesystem that cannot be asked is left to the writes themselves.
    fn space(&self) -> Result<(), PreflightError> {
        let Ok(stat) = rustix::fs::statvfs(&self.state_directory) else {
            return Ok(());
        };
        let available = stat.f_bavail.saturating_mul(stat.f_frsize);
        let place = || self.state_directory.display().to_string();
        if stat.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(PreflightError::ReadOnly { place: place() });
        }
        if available < self.least_space {
            return Err(PreflightError::Space {
                place: place(),
                available,
                needed: self.least_space,
            });
        }
        Ok(())
    }
}
