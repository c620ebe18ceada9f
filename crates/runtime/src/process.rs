//! What this process uses, under the names that every Prometheus client has for it. Read from `/proc` when metrics are
//! read; where that is not there, the figures are not either.

use std::{fs, sync::atomic::AtomicU64};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

use crate::{Metrics, build};

/// Clock ticks a second in `/proc`: 100 on every platform of Linux that is built for.
const TICKS: f64 = 100.0;

type Number = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
    commit: &'static str,
}

/// Adds the figures of this process and its build.
pub fn register(metrics: &Metrics) {
    let info: Family<BuildLabels, Gauge> = Family::default();
    metrics.register(
        "slipway_build_info",
        "Always 1; its labels say which build this is",
        info.clone(),
    );
    info.get_or_create(&BuildLabels {
        version: build::THIS.version,
        commit: build::THIS.commit.unwrap_or("unknown"),
    })
    .set(1);
    let number = |name: &str, help: &str| {
        let gauge = Number::default();
        metrics.register(name, help, gauge.clone());
        gauge
    };
    let cpu: Counter<f64, AtomicU64> = Counter::default();
    metrics.register(
        "process_cpu_seconds",
        "Total user and system CPU time spent in seconds",
        cpu.clone(),
    );
    let resident = number("process_resident_memory_bytes", "Resident memory size in bytes");
    let size = number("process_virtual_memory_bytes", "Virtual memory size in bytes");
    let started = number(
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds",
    );
    let open = number("process_open_fds", "Number of open file descriptors");
    let most = number("process_max_fds", "Maximum number of open file descriptors");
    metrics.before_reading(move || {
        let set = |gauge: &Number, value: Option<f64>| {
            if let Some(value) = value {
                gauge.set(value);
            }
        };
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (stat, status) = (text("/proc/self/stat"), text("/proc/self/status"));
        if let Some(seconds) = cpu_seconds(&stat) {
            cpu.inc_by((seconds - cpu.get()).max(0.0));
        }
        set(&started, start_time(&stat, &text("/proc/stat")));
        set(&resident, kilobytes(&status, "VmRSS:"));
        set(&size, kilobytes(&status, "VmSize:"));
        set(
            &open,
            fs::read_dir("/proc/self/fd")
                .ok()
                .map(|folder| folder.count() as f64),
        );
        set(&most, open_files(&text("/proc/self/limits")));
        true
    });
}

/// The fields of `/proc/self/stat` after the program's name, which may hold anything.
fn fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    let fields = fields(stat);
    let user: f64 = fields.get(11)?.parse().ok()?;
    let system: f64 = fields.get(12)?.parse().ok()?;
    Some((user + system) / TICKS)
}

fn start_time(stat: &str, system: &str) -> Option<f64> {
    let after_boot: f64 = fields(stat).get(19)?.parse().ok()?;
    let boot: f64 = system
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    Some(boot + after_boot / TICKS)
}

fn kilobytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let number: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(number * 1024.0)
}

fn open_files(limits: &str) -> Option<f64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::float_cmp, reason = "the figures are exact")]
    fn figures_are_read_as_linux_writes_them() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 4 0 1000 1073741824 5000 1";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(
            start_time(stat, "cpu 1\nbtime 1700000000\n"),
            Some(1_700_000_010.0)
        );
        assert_eq!(
            kilobytes("VmPeak:\t 9 kB\nVmRSS:\t    2048 kB\n", "VmRSS:"),
            Some(2_097_152.0)
        );
        assert_eq!(
            open_files("Max open files            1024                 4096                 files"),
            Some(1024.0)
        );
        assert_eq!(cpu_seconds(""), None);
        assert_eq!(open_files("Max open files unlimited unlimited files"), None);
    }

    #[test]
    fn this_process_and_build_are_told() {
        let metrics = Metrics::new();
        register(&metrics);
        let text = metrics.encode();
        assert!(
            text.contains(concat!(
                "slipway_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\""
            )),
            "{text}"
        );
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
            let line = line.unwrap_or_else(|| panic!("{name} is not in:\n{text}"));
            line.split(' ').nth(1).unwrap().parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_start_time_seconds") > 1.7e9);
    }
}
