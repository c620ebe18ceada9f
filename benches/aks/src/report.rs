//! What was measured, for people and as JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Slipway,
    /// With every node as a Machine.
    Machines,
    Capz,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Self::Slipway => "slipway",
            Self::Machines => "slipway-machines",
            Self::Capz => "capz",
        }
    }
}

/// Requests by method.
pub type Counts = BTreeMap<String, usize>;

#[derive(Clone, Debug, Default)]
pub struct Rest {
    pub seconds: u64,
    pub arm_writes: usize,
    /// But for pages after the first of a list.
    pub arm_reads: usize,
    /// Reads of one resource, which are no lists.
    pub arm_single_reads: usize,
    pub arm_list_pages: usize,
    pub arm_by_method: Counts,
    pub kube_writes: usize,
    pub kube_by_method: Counts,
    pub cpu_seconds: f64,
    pub rss_mb: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub seconds_to_ready: f64,
    pub cpu_seconds: f64,
    /// The highest, up to the end.
    pub rss_mb: f64,
    pub arm_requests: Counts,
    pub kube_requests: Counts,
    pub at_rest: Rest,
    /// What kube-apiserver held of memory.
    pub apiserver: Apiserver,
}

/// The memory of kube-apiserver, in megabytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Apiserver {
    /// With Cluster API's own kinds.
    pub before: f64,
    /// With those of the managers as well, and the managers at rest over nothing.
    pub installed: f64,
    /// How many kinds that is, in all.
    pub kinds: usize,
    /// At rest, with all clusters.
    pub at_rest: f64,
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn sum(counts: &Counts) -> usize {
    counts.values().sum()
}

impl Sample {
    pub fn line(&self) -> String {
        format!(
            "ready in {:.1} s, {:.1} s of processor, {:.0} MB; {} requests to ARM, {} to Kubernetes; at rest for {} s: {} ARM writes, {} ARM reads (+{} pages), {} Kubernetes writes, {:.2} s of processor; kube-apiserver {:.0} MB before, {:.0} MB with {} kinds, {:.0} MB at rest",
            self.seconds_to_ready,
            self.cpu_seconds,
            self.rss_mb,
            sum(&self.arm_requests),
            sum(&self.kube_requests),
            self.at_rest.seconds,
            self.at_rest.arm_writes,
            self.at_rest.arm_reads,
            self.at_rest.arm_list_pages,
            self.at_rest.kube_writes,
            self.at_rest.cpu_seconds,
            self.apiserver.before,
            self.apiserver.installed,
            self.apiserver.kinds,
            self.apiserver.at_rest,
        )
    }

    fn json(&self) -> Value {
        json!({
            "seconds_to_ready": rounded(self.seconds_to_ready),
            "cpu_seconds": rounded(self.cpu_seconds),
            "rss_mb": rounded(self.rss_mb),
            "arm_requests": self.arm_requests,
            "kube_requests": self.kube_requests,
            "at_rest": {
                "seconds": self.at_rest.seconds,
                "arm_writes": self.at_rest.arm_writes,
                "arm_reads": self.at_rest.arm_reads,
                "arm_single_reads": self.at_rest.arm_single_reads,
                "arm_list_pages": self.at_rest.arm_list_pages,
                "arm_requests": self.at_rest.arm_by_method,
                "kube_writes": self.at_rest.kube_writes,
                "kube_requests": self.at_rest.kube_by_method,
                "cpu_seconds": rounded(self.at_rest.cpu_seconds),
                "rss_mb": rounded(self.at_rest.rss_mb),
            },
            "apiserver_rss_mb": {
                "before": rounded(self.apiserver.before),
                "installed": rounded(self.apiserver.installed),
                "custom_kinds": self.apiserver.kinds,
                "at_rest": rounded(self.apiserver.at_rest),
            },
        })
    }
}

#[derive(Default)]
pub struct Runs {
    runs: BTreeMap<usize, Map<String, Value>>,
}

impl Runs {
    pub fn add(&mut self, clusters: usize, side: Side, sample: &Sample) {
        self.runs
            .entry(clusters)
            .or_insert_with(|| Map::from_iter([("clusters".to_owned(), json!(clusters))]))
            .insert(side.name().to_owned(), sample.json());
    }

    pub fn json(&self) -> Value {
        json!({"runs": self.runs.values().collect::<Vec<_>>()})
    }
}
