//! Runs either side on a workload file and says what came out.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::super::Measured;
use super::{answer, beside, hard_stop, numbers};

/// What one side made of a workload.
pub struct Side {
    /// Pods decided a second of wall time, and of processor time.
    pub pods_per_second: Measured,
    pub pods_per_busy_second: Measured,
    /// Both over all runs: Karpenter's differ from one another.
    pub nodes: Measured,
    pub cost: Measured,
    pub unschedulable: usize,
    /// The most the process held, and the most it held on top of the workload it had read.
    pub peak_megabytes: f64,
    pub grown_megabytes: f64,
    /// How many pods it got to, where a limit ended it, and the limit in seconds.
    pub reached: Option<(usize, u64)>,
    /// What the checker does not accept of it. Ours may have nothing of the kind; of Karpenter's it is a finding.
    pub fault: Option<String>,
}

impl Side {
    pub fn json(&self) -> Value {
        let nanoseconds = 1e9 / self.pods_per_second.median;
        json!({
            "pods_per_second": self.pods_per_second.median,
            "pods_per_second_lowest": self.pods_per_second.lowest,
            "pods_per_second_highest": self.pods_per_second.highest,
            "pods_per_busy_second": self.pods_per_busy_second.median,
            "ns_per_pod": nanoseconds,
            "nodes": self.nodes.median,
            "nodes_lowest": self.nodes.lowest,
            "nodes_highest": self.nodes.highest,
            "cost_per_hour": self.cost.median,
            "cost_per_hour_lowest": self.cost.lowest,
            "cost_per_hour_highest": self.cost.highest,
            "unschedulable": self.unschedulable,
            "peak_mb": self.peak_megabytes,
            "grown_mb": self.grown_megabytes,
            "not_finished_within_seconds": self.reached.map(|(_, seconds)| seconds),
            "pods_done": self.reached.map(|(pods, _)| pods),
            "valid": self.fault.is_none(),
            "fault": self.fault,
        })
    }

    pub fn row(&self, name: &str) -> String {
        let reached = self.reached.map_or_else(String::new, |(pods, seconds)| {
            format!("  not finished within {seconds} s, {pods} pods done")
        });
        let fault = self
            .fault
            .as_ref()
            .map_or_else(String::new, |fault| format!("  NOT VALID: {fault}"));
        format!(
            "{name:<10} {:>9.0} pods/s ({:.0} to {:.0}; {:.0} a busy second)  {:>6} nodes  {:>10.2} $/h ({:.2} to {:.2})  {:>4} left over  {:>5.0} MB, {:.0} of it solving{reached}{fault}",
            self.pods_per_second.median,
            self.pods_per_second.lowest,
            self.pods_per_second.highest,
            self.pods_per_busy_second.median,
            self.nodes.median,
            self.cost.median,
            self.cost.lowest,
            self.cost.highest,
            self.unschedulable,
            self.peak_megabytes,
            self.grown_megabytes
        )
    }
}

/// How long Karpenter may take to read a cluster, which is not part of a pass.
const PREPARE: Duration = Duration::from_mins(5);
/// How long it may take to notice that its limit has passed.
const GRACE: Duration = Duration::from_secs(10);

/// One look of every consolidation method at a cluster.
pub struct Pass {
    pub seconds: Measured,
    pub busy_seconds: Measured,
    pub candidates: usize,
    /// How many single nodes were looked at and kept.
    pub kept: usize,
    pub deleted: usize,
    pub replaced: usize,
    pub savings: f64,
    pub peak_megabytes: f64,
    /// The limit in seconds, where it ended the pass.
    pub ended_after: Option<u64>,
    /// Whether it had read the cluster and begun by then.
    pub begun: bool,
}

impl Pass {
    pub fn json(&self) -> Value {
        json!({
            "seconds": self.seconds.median,
            "seconds_lowest": self.seconds.lowest,
            "seconds_highest": self.seconds.highest,
            "busy_seconds": self.busy_seconds.median,
            "nodes_looked_at": self.kept,
            "deleted": self.deleted,
            "replaced_by": self.replaced,
            "savings_per_hour": self.savings,
            "peak_mb": self.peak_megabytes,
            "not_finished_within_seconds": self.ended_after,
            "begun": self.begun,
        })
    }

    pub fn row(&self, name: &str) -> String {
        let what = if self.begun { "finished" } else { "begun" };
        let ended = self
            .ended_after
            .map_or_else(String::new, |seconds| format!("  not {what} within {seconds} s"));
        format!(
            "{name:<10} {:>9.3} s ({:.3} to {:.3}; {:.3} busy)  {} of {} nodes looked at  {} given up for {} new  {:.2} $/h saved  {:.0} MB{ended}",
            self.seconds.median,
            self.seconds.lowest,
            self.seconds.highest,
            self.busy_seconds.median,
            self.kept,
            self.candidates,
            self.deleted,
            self.replaced,
            self.savings,
            self.peak_megabytes
        )
    }
}

pub struct Solvers {
    pub ours: PathBuf,
    pub theirs: Option<PathBuf>,
    pub directory: PathBuf,
}

impl Solvers {
    pub fn run_ours(&self, file: &Path, repeat: usize, more: &[&str]) -> Result<Side> {
        let plan = beside(file, "plan");
        let mut command = Command::new(&self.ours);
        command
            .arg(file)
            .args(["--repeat", &repeat.to_string(), "--plan"])
            .arg(&plan)
            .args(more);
        let report = answer(&mut command)?;
        if let Some(fault) = self.check(file, &plan, more)? {
            bail!("our plan for {} is not valid: {fault}", file.display());
        }
        let number = |name: &str| report[name].as_f64().unwrap_or_default();
        let rate = |name: &str| per_second(number("pods"), numbers(&report, name));
        Ok(Side {
            pods_per_second: rate("seconds")?,
            pods_per_busy_second: rate("busySeconds")?,
            nodes: Measured::of(vec![number("newClaims")]),
            cost: Measured::of(vec![number("costPerHour")]),
            unschedulable: number("unschedulable") as usize,
            peak_megabytes: number("peakMegabytes"),
            grown_megabytes: number("grownMegabytes"),
            reached: None,
            fault: None,
        })
    }

    pub fn run_theirs(&self, file: &Path, repeat: usize, limit: Duration) -> Result<Option<Side>> {
        let Some(program) = &self.theirs else {
            return Ok(None);
        };
        let mut command = Command::new(program);
        let seconds = limit.as_secs();
        let limit = format!("{seconds}s");
        command
            .args(["solve", "-iterations", &repeat.to_string(), "-limit", &limit])
            .arg(file);
        let report = answer(&mut command)?;
        let plan = beside(file, "plan");
        std::fs::write(&plan, report.to_string()).context("keeping Karpenter's plan")?;
        let fault = self.check(file, &plan, &[])?;
        let list = |name: &str| report[name].as_array().map_or(&[][..], Vec::as_slice);
        let placed: usize = list("newClaims")
            .iter()
            .chain(list("existing"))
            .map(|claim| claim["pods"].as_array().map_or(0, Vec::len))
            .sum();
        let timed_out = report["timedOut"] == true;
        let left_over = list("unschedulable").len();
        let decided = if timed_out { placed } else { placed + left_over };
        let rate = |name: &str| per_second(decided as f64, numbers(&report, name));
        Ok(Some(Side {
            pods_per_second: rate("seconds")?,
            pods_per_busy_second: rate("busySeconds")?,
            nodes: Measured::of(numbers(&report, "counts")),
            cost: Measured::of(numbers(&report, "costs")),
            unschedulable: left_over,
            peak_megabytes: report["peakMegabytes"].as_f64().unwrap_or_default(),
            grown_megabytes: report["grownMegabytes"].as_f64().unwrap_or_default(),
            reached: timed_out.then_some((placed, seconds)),
            fault,
        }))
    }

    /// What the independent checker does not accept of a plan.
    fn check(&self, file: &Path, plan: &Path, more: &[&str]) -> Result<Option<String>> {
        let mut command = Command::new(&self.ours);
        command.arg(file).arg("--check").arg(plan).args(more);
        let verdict = answer(&mut command)?;
        std::fs::remove_file(plan).context("removing a plan")?;
        Ok((verdict["problems"] != 0).then(|| verdict.to_string()))
    }

    pub fn consolidate_ours(&self, file: &Path, repeat: usize, more: &[&str]) -> Result<Pass> {
        let mut command = Command::new(&self.ours);
        command
            .arg(file)
            .args(["--consolidate", "--repeat", &repeat.to_string()])
            .args(more);
        let report = answer(&mut command)?;
        if report["problems"] != 0 {
            bail!(
                "a command for {} is not valid: {}",
                file.display(),
                report["first"]
            );
        }
        let methods: Vec<&Value> = report["methods"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(_, method)| method)
            .collect();
        // The first method that finds something ends a round.
        let sum = |name: &str| -> f64 {
            methods
                .iter()
                .map(|method| method[name].as_f64().unwrap_or_default())
                .fold(0.0, f64::max)
        };
        Ok(Pass {
            seconds: Measured::of(numbers(&report, "seconds")),
            busy_seconds: Measured::of(numbers(&report, "busySeconds")),
            candidates: report["nodes"].as_u64().unwrap_or_default() as usize,
            kept: sum("probedAndKept") as usize,
            deleted: sum("delete") as usize,
            replaced: sum("replace") as usize,
            savings: sum("savings"),
            peak_megabytes: report["peakMegabytes"].as_f64().unwrap_or_default(),
            ended_after: None,
            begun: true,
        })
    }

    pub fn consolidate_theirs(&self, file: &Path, limit: Duration) -> Result<Option<Pass>> {
        let Some(program) = &self.theirs else {
            return Ok(None);
        };
        let mut command = Command::new(program);
        let seconds = limit.as_secs();
        command
            .args(["consolidate", "-limit", &format!("{seconds}s")])
            .arg(file);
        // It looks at its limit only now and then.
        let heard = hard_stop::run(&mut command, PREPARE, limit + GRACE)?;
        let report = heard.last.unwrap_or_default();
        let methods = report["methods"].as_array().map_or(&[][..], Vec::as_slice);
        let most = |of: &dyn Fn(&Value) -> f64| methods.iter().map(of).fold(0.0, f64::max);
        let number = |name: &'static str| most(&move |method| method[name].as_f64().unwrap_or_default());
        let of_report = |name: &str| report[name].as_f64().unwrap_or_default();
        let ended_after = match heard.ended {
            Some(_) if report.is_null() => Some(PREPARE.as_secs()),
            Some(_) => Some(seconds),
            None => (report["timedOut"] == true).then_some(seconds),
        };
        let used = heard.ended.unwrap_or_else(|| hard_stop::Used {
            seconds: of_report("seconds"),
            busy_seconds: of_report("busySeconds"),
            peak_megabytes: of_report("peakMegabytes"),
        });
        Ok(Some(Pass {
            seconds: Measured::of(vec![used.seconds]),
            busy_seconds: Measured::of(vec![used.busy_seconds]),
            candidates: number("candidates") as usize,
            kept: number("kept") as usize,
            deleted: most(&|method| method["delete"].as_array().map_or(0, Vec::len) as f64) as usize,
            replaced: number("replace") as usize,
            savings: number("savings"),
            peak_megabytes: used.peak_megabytes,
            ended_after,
            begun: !report.is_null(),
        }))
    }
}

fn per_second(pods: f64, seconds: Vec<f64>) -> Result<Measured> {
    if seconds.is_empty() {
        bail!("a solver printed no times");
    }
    let rates = seconds.into_iter().map(|seconds| pods / seconds.max(1e-9));
    Ok(Measured::of(rates.collect()))
}
