//! A process under measurement, as the kernel sees it.

use std::fs;

use anyhow::{Context, Result};

/// Linux counts processor time in hundredths of a second for every architecture there is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Resident memory, in MB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub now: f64,
    pub peak: f64,
    /// What of it is the program itself.
    pub file: f64,
}

/// Seconds of processor time so far, in user and kernel mode.
pub fn cpu_seconds(id: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name of the program may hold anything, but for its closing parenthesis.
    let (_, rest) = text.rsplit_once(')').context("stat names its program")?;
    let ticks = |index: usize| rest.split_whitespace().nth(index)?.parse::<f64>().ok();
    let (user, system) = ticks(11).zip(ticks(12)).context("stat counts ticks")?;
    Ok((user + system) / TICKS_PER_SECOND)
}

pub fn memory(id: u32) -> Result<Memory> {
    let text = fs::read_to_string(format!("/proc/{id}/status"))?;
    let megabytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        number
            .map(|kilobytes| kilobytes / 1024.0)
            .context("status tells memory")
    };
    Ok(Memory {
        now: megabytes("VmRSS:")?,
        peak: megabytes("VmHWM:")?,
        file: megabytes("RssFile:")?,
    })
}
