//! What is looked at before anything is changed: power, and room for what the agent itself writes.

use std::fs;
use std::path::Path;

/// What a host demands before an upgrade begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preflight {
    /// A host on battery needs at least this much of it, in percent.
    pub least_battery: u8,
    /// Free bytes where journal and cache are.
    pub least_space: u64,
}

impl Default for Preflight {
    fn default() -> Self {
        Self {
            least_battery: 30,
            least_space: 4 << 20,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreflightError {
    #[error("the host runs on battery with {found} %; an upgrade needs {needed} %, or mains power")]
    Power { found: u8, needed: u8 },
    #[error("{place} has {available} bytes free; {needed} are needed (ResourceExhausted)")]
    Space {
        place: String,
        available: u64,
        needed: u64,
    },
}

impl Preflight {
    /// `supplies` is `/sys/class/power_supply`: a host without one runs on mains.
    pub fn power(&self, supplies: &Path) -> Result<(), PreflightError> {
        let mut lowest = None;
        for supply in fs::read_dir(supplies).into_iter().flatten().flatten() {
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

    /// Whether `needed` bytes, and what the agent itself needs, fit where `place` is. A place that cannot be asked is
    /// left to the writes themselves.
    pub fn space(&self, place: &Path, needed: u64) -> Result<(), PreflightError> {
        let Ok(stat) = rustix::fs::statvfs(place) else {
            return Ok(());
        };
        let available = stat.f_bavail.saturating_mul(stat.f_frsize);
        let needed = needed.saturating_add(self.least_space);
        if available < needed {
            return Err(PreflightError::Space {
                place: place.display().to_string(),
                available,
                needed,
            });
        }
        Ok(())
    }
}
