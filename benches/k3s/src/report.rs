//! What was measured of a side, as JSON and in words.

use std::fmt::Write;

use serde_json::{Value, json};
use slipway_kit::manager::measure::Memory;

use super::{
    count::{Counted, rounded},
    progress::Reached,
};

pub struct Sample {
    pub clusters: usize,
    /// Servers and workers.
    pub desired: (usize, usize),
    pub reached: Reached,
    /// From the first manifest to the last ready machine; none if it never came.
    pub seconds_to_ready: Option<f64>,
    /// Up to then.
    pub converging: Counted,
    pub at_rest: Counted,
    pub rest_seconds: u64,
    pub memory: Memory,
    /// What is said not to be so, where not all became ready.
    pub unhappy: Vec<(String, usize)>,
}

impl Sample {
    pub fn json(&self) -> Value {
        let mut at_rest = self.at_rest.json();
        at_rest["seconds"] = json!(self.rest_seconds);
        json!({
            "seconds_to_ready": self.seconds_to_ready.map(rounded),
            "cpu_seconds": rounded(self.converging.cpu_seconds),
            "rss_mb": rounded(self.memory.peak),
            "rss_mb_at_rest": rounded(self.memory.now),
            "ready": {
                "control_planes": self.reached.whole_planes,
                "servers": self.reached.servers,
                "workers": self.reached.workers,
            },
            "converging": self.converging.json(),
            "at_rest": at_rest,
            "outcome": self.outcome(),
        })
    }

    /// How far it came.
    fn outcome(&self) -> String {
        let Some(seconds) = self.seconds_to_ready else {
            let (servers, workers) = self.desired;
            let mut told = format!(
                "came as far as {} of {servers} servers and {} of {workers} workers, with {} of {} control planes whole",
                self.reached.servers, self.reached.workers, self.reached.whole_planes, self.clusters
            );
            for (what, count) in &self.unhappy {
                // Writing to a text does not fail.
                let _ = write!(told, "; {count} times {what}");
            }
            return told;
        };
        format!("all {} clusters were ready after {seconds:.1} s", self.clusters)
    }

    pub fn words(&self) -> String {
        format!(
            "{}. {:.1} s of processor time, {:.0} MB at most and {:.0} MB at rest; {} requests ({} writes) to the \
             management cluster and {} to workload clusters while converging; at rest for {} s: {} requests ({} writes) \
             and {}, {:.2} s of processor time",
            self.outcome(),
            self.converging.cpu_seconds,
            self.memory.peak,
            self.memory.now,
            self.converging.management_requests(),
            self.converging.management_writes,
            self.converging.workload_requests(),
            self.rest_seconds,
            self.at_rest.management_requests(),
            self.at_rest.management_writes,
            self.at_rest.workload_requests(),
            self.at_rest.cpu_seconds,
        )
    }
}
