//! Processes under measurement, as the kernel sees them.

use std::fs;

use anyhow::{Context, Result};

/// Linux counts processor time in hundredths of a second for every architecture there is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time so far, in user and kernel mode.
pub fn cpu_seconds(id: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The name of the program may hold anything, but for its closing parenthesis.
    let (_, rest) = text.rsplit_once(')').context("stat names its program")?;
    let ticks = |index: usize| {
        let field = rest.split_whitespace().nth(index);
        field.and_then(|field| field.parse::<f64>().ok())
    };
    let (user, system) = ticks(11).zip(ticks(12)).context("stat counts ticks")?;
    Ok((user + system) / TICKS_PER_SECOND)
}

/// Resident memory now and at its highest, in MB.
pub fn memory(id: u32) -> Result<(f64, f64)> {
    let text = fs::read_to_string(format!("/proc/{id}/status"))?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse::<f64>().ok()
    };
    let (now, peak) = field("VmRSS:")
        .zip(field("VmHWM:"))
        .context("status tells memory")?;
    Ok((now / 1024.0, peak / 1024.0))
}
