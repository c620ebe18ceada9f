//! What was measured, as JSON and in words.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_kit::manager::measure::Memory;

pub struct Sample {
    pub hosts: usize,
    pub concurrent: String,
    /// From the first call to the last host that is done.
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub memory: Memory,
    pub management_requests: usize,
    pub management_writes: usize,
    pub workload_requests: usize,
    /// How long each answer to `UpdateMachine` took, in order of length.
    pub calls: Vec<Duration>,
    /// How often hosts were started, all together.
    pub boots: u64,
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// What so many of a hundred answers do not take longer than.
fn percentile(calls: &[Duration], percent: usize) -> Duration {
    let rank = (calls.len() * percent).div_ceil(100).max(1) - 1;
    calls.get(rank).copied().unwrap_or_default()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

impl Sample {
    pub fn json(&self) -> Value {
        json!({
            "hosts": self.hosts,
            "concurrent": self.concurrent,
            "seconds": rounded(self.seconds),
            "cpu_seconds": rounded(self.cpu_seconds),
            "rss_mb": rounded(self.memory.peak),
            "management_requests": self.management_requests,
            "management_writes": self.management_writes,
            "workload_requests": self.workload_requests,
            "update_machine_calls": self.calls.len(),
            "update_machine_p50_ms": rounded(milliseconds(percentile(&self.calls, 50))),
            "update_machine_p99_ms": rounded(milliseconds(percentile(&self.calls, 99))),
        })
    }

    pub fn words(&self) -> String {
        format!(
            "{} hosts, {} at once, in {:.0} s: {:.1} s of processor time, {:.0} MB at most; {} requests ({} writes) to the management \
             cluster and {} to the workload cluster; {} calls of UpdateMachine, half of them within {:.1} ms and 99 % within {:.1} ms; \
             {} boots",
            self.hosts,
            self.concurrent,
            self.seconds,
            self.cpu_seconds,
            self.memory.peak,
            self.management_requests,
            self.management_writes,
            self.workload_requests,
            self.calls.len(),
            milliseconds(percentile(&self.calls, 50)),
            milliseconds(percentile(&self.calls, 99)),
            self.boots,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_answers_in_order() {
        let calls: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&calls, 50), Duration::from_millis(100));
        assert_eq!(percentile(&calls, 99), Duration::from_millis(198));
        assert_eq!(percentile(&calls[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }
}
