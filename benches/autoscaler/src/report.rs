//! What was measured of a side, as JSON and in words.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slipway_kit::manager::measure::Memory;

use super::watch::Reached;

/// A moment since the first pod was made, and what the autoscaler had used of the processors by then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Milestone {
    pub seconds: f64,
    pub cpu_seconds: f64,
}

impl Milestone {
    fn json(self) -> Value {
        json!({"seconds": rounded(self.seconds), "cpu_seconds": rounded(self.cpu_seconds)})
    }
}

/// What was asked of the apiserver.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub requests: usize,
    pub writes: usize,
    pub by_kind: BTreeMap<String, u64>,
}

/// Once all pods ran.
pub struct Rest {
    pub seconds: u64,
    pub cpu_seconds: f64,
    pub asked: Asked,
}

pub struct Sample {
    pub pods: usize,
    pub reached: Reached,
    pub first_claim: Milestone,
    /// The last claim.
    pub decided: Milestone,
    /// The last node.
    pub ready: Milestone,
    /// The last pod.
    pub running: Milestone,
    pub asked: Asked,
    pub memory: Memory,
    /// Of all nodes, an hour.
    pub price: f64,
    pub rest: Rest,
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl Sample {
    fn is_whole(&self) -> bool {
        self.reached.running == self.pods
    }

    pub fn json(&self) -> Value {
        json!({
            "whole": self.is_whole(),
            "claims": self.reached.claims,
            "nodes": self.reached.nodes,
            "running": self.reached.running,
            "price_per_hour": rounded(self.price),
            "first_claim": self.first_claim.json(),
            "claims_decided": self.decided.json(),
            "nodes_ready": self.ready.json(),
            "pods_running": self.running.json(),
            "rss_mb": rounded(self.memory.peak),
            "rss_mb_then": rounded(self.memory.now),
            "requests": self.asked.requests,
            "writes": self.asked.writes,
            "requests_by_kind": self.asked.by_kind,
            "at_rest": {
                "seconds": self.rest.seconds,
                "cpu_seconds": rounded(self.rest.cpu_seconds),
                "requests": self.rest.asked.requests,
                "writes": self.rest.asked.writes,
            },
        })
    }

    pub fn words(&self) -> String {
        let outcome = if self.is_whole() {
            "all pods run".to_owned()
        } else {
            format!("it came as far as {}", self.reached)
        };
        format!(
            "{outcome}: {} claims after {:.1} s (the first after {:.1} s), nodes ready after {:.1} s, pods running after {:.1} s; {:.2} \
             per hour; {:.1} s of processor time until claims were decided and {:.1} s in all, {:.0} MB, {} requests ({} writes)",
            self.reached.claims,
            self.decided.seconds,
            self.first_claim.seconds,
            self.ready.seconds,
            self.running.seconds,
            self.price,
            self.decided.cpu_seconds,
            self.running.cpu_seconds,
            self.memory.peak,
            self.asked.requests,
            self.asked.writes,
        )
    }
}
