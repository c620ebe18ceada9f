//! What was measured, and the middle and the spread of it over several rounds.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Slipway,
    ControllerRuntime,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Self::Slipway => "slipway",
            Self::ControllerRuntime => "controller_runtime",
        }
    }
}

/// One run of one side.
pub struct Sample {
    /// From the start of the process until all are reconciled.
    pub seconds: f64,
    pub objects_per_second: f64,
    pub objects_per_cpu_second: f64,
    /// Until nothing more follows from it.
    pub objects_per_settled_cpu_second: f64,
    pub requests_per_object: f64,
    /// The highest of the whole run.
    pub rss_mb: f64,
    /// The highest until all are reconciled.
    pub initial_rss_mb: f64,
    pub idle_rss_mb: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub updates_per_cpu_second: f64,
    pub idle_cpu_percent: f64,
    pub idle_requests: f64,
}

impl Sample {
    fn fields(&self) -> [(&'static str, f64); 13] {
        [
            ("seconds", self.seconds),
            ("objects_per_second", self.objects_per_second),
            ("objects_per_cpu_second", self.objects_per_cpu_second),
            (
                "objects_per_settled_cpu_second",
                self.objects_per_settled_cpu_second,
            ),
            ("requests_per_object", self.requests_per_object),
            ("rss_mb", self.rss_mb),
            ("initial_rss_mb", self.initial_rss_mb),
            ("idle_rss_mb", self.idle_rss_mb),
            ("p50_ms", self.p50_ms),
            ("p99_ms", self.p99_ms),
            ("updates_per_cpu_second", self.updates_per_cpu_second),
            ("idle_cpu_percent", self.idle_cpu_percent),
            ("idle_requests", self.idle_requests),
        ]
    }

    pub fn line(&self) -> String {
        format!(
            "{:>6.0}/s {:>6.0}/cpu s ({:.0} settled) {:>5.2} requests each, {:>5.0} MB peak {:>5.0} MB idle, \
             p50 {:.1} ms p99 {:.1} ms, {:.0} updates/cpu s, idle {:.2} % cpu {:.0} requests",
            self.objects_per_second,
            self.objects_per_cpu_second,
            self.objects_per_settled_cpu_second,
            self.requests_per_object,
            self.rss_mb,
            self.idle_rss_mb,
            self.p50_ms,
            self.p99_ms,
            self.updates_per_cpu_second,
            self.idle_cpu_percent,
            self.idle_requests
        )
    }
}

#[derive(Default)]
pub struct Runs {
    samples: BTreeMap<usize, BTreeMap<Side, Vec<Sample>>>,
}

impl Runs {
    pub fn add(&mut self, objects: usize, side: Side, sample: Sample) {
        let sides = self.samples.entry(objects).or_default();
        sides.entry(side).or_default().push(sample);
    }

    pub fn json(&self) -> Value {
        let runs: Vec<Value> = self
            .samples
            .iter()
            .map(|(objects, sides)| {
                let mut run = json!({"objects": objects});
                for (side, samples) in sides {
                    run[side.name()] = summary(samples);
                }
                run
            })
            .collect();
        json!({ "runs": runs })
    }
}

/// The median of each figure, with the lowest and highest beside it where there are several.
fn summary(samples: &[Sample]) -> Value {
    let mut summary = Map::new();
    summary.insert("rounds".to_owned(), samples.len().into());
    let Some(first) = samples.first() else {
        return Value::Object(summary);
    };
    for (index, (name, _)) in first.fields().iter().enumerate() {
        let mut values: Vec<f64> = samples.iter().map(|sample| sample.fields()[index].1).collect();
        values.sort_by(f64::total_cmp);
        let rounded = |value: f64| json!((value * 100.0).round() / 100.0);
        summary.insert((*name).to_owned(), rounded(values[values.len() / 2]));
        if values.len() > 1 {
            summary.insert(format!("{name}_lowest"), rounded(values[0]));
            summary.insert(format!("{name}_highest"), rounded(values[values.len() - 1]));
        }
    }
    Value::Object(summary)
}
