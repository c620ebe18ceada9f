//! A day of arrivals and departures: money, evictions and node churn by either policy, and by Karpenter's own scheduler and
//! consolidation. What arrives and when is in docs/packing.md.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};
use serde_json::Value;

use super::{answer, optimum};

/// What is played.
pub struct Played<'p> {
    /// Deployments that arrive in an hour.
    pub arrivals: &'p str,
    pub hours: usize,
    pub seed: u64,
}

/// Who decides: the policy, what a pod that stays is worth to it, and whether it is Karpenter.
const WHO: [(&str, &str, bool); 4] = [
    ("karpenter", "0", false),
    ("cost", "0", false),
    ("cost", "0.01", false),
    ("karpenter", "0", true),
];

pub fn measure(ours: &Path, theirs: Option<&Path>, played: &Played<'_>) -> Result<Vec<Value>> {
    let catalogue = optimum::catalogue()?;
    let mut rows = Vec::new();
    for (policy, eviction, is_peer) in WHO {
        let mut command = Command::new(ours);
        command
            .args(["--day", "--policy", policy, "--eviction", eviction])
            .args(["--arrivals", played.arrivals])
            .args(["--hours", &played.hours.to_string()])
            .args(["--seed", &played.seed.to_string()])
            .arg("--catalogue")
            .arg(&catalogue);
        match theirs {
            Some(theirs) if is_peer => {
                command.arg("--peer").arg(theirs);
            }
            None if is_peer => continue,
            _ => {}
        }
        let row = answer(&mut command)?;
        if !is_peer && row["invalid"] != 0 {
            bail!("a command of the policy {policy} is not valid: {row}");
        }
        eprintln!("{row}");
        rows.push(row);
    }
    Ok(rows)
}
