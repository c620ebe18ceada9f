//! Metrics under the names that controller-runtime, client-go and Cluster API use, so that their dashboards work.
//! This module owns the registry; whoever counts something asks it for the counter.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        MetricType,
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Metric, Registry},
};

use crate::queue::Priority;

/// What [`Metrics::encode`] writes, for the `Content-Type` header.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ControllerLabel {
    pub controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResultLabels {
    pub controller: String,
    pub result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ClassLabels {
    pub controller: String,
    pub class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StaleLabels {
    pub controller: String,
    pub cached_kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct QueueLabels {
    pub name: String,
    pub controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DepthLabels {
    pub name: String,
    pub controller: String,
    pub priority: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    pub code: String,
    pub method: String,
    pub host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabel {
    pub kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct NameLabel {
    pub name: String,
}

/// controller-runtime's buckets for the duration of a reconcile.
const RECONCILE_BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];

/// Makes the histograms of one family, all with the same buckets.
#[derive(Clone, Copy, Debug)]
pub struct Buckets(fn() -> Histogram);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        (self.0)()
    }
}

/// Histograms by label, with buckets of their own.
pub type Histograms<Labels> = Family<Labels, Histogram, Buckets>;

/// Every metric the runtime itself counts, and the registry that providers add theirs to. Clones count together.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    refreshers: Arc<Mutex<Vec<Refresher>>>,
    descriptions: Arc<Mutex<Vec<Description>>>,
    queues: Arc<Mutex<Queues>>,
    pub reconcile_total: Family<ResultLabels, Counter>,
    pub reconcile_errors: Family<ControllerLabel, Counter>,
    pub reconcile_errors_by_class: Family<ClassLabels, Counter>,
    pub terminal_reconcile_errors: Family<ControllerLabel, Counter>,
    pub reconcile_panics: Family<ControllerLabel, Counter>,
    pub reconcile_timeouts: Family<ControllerLabel, Counter>,
    pub reconcile_time: Histograms<ControllerLabel>,
    pub max_concurrent_reconciles: Family<ControllerLabel, Gauge>,
    pub active_workers: Family<ControllerLabel, Gauge>,
    pub stale_cache_skips: Family<StaleLabels, Counter>,
    pub queue_depth: Family<DepthLabels, Gauge>,
    pub queue_adds: Family<QueueLabels, Counter>,
    pub queue_retries: Family<QueueLabels, Counter>,
    pub queue_duration: Histograms<QueueLabels>,
    pub queue_work_duration: Histograms<QueueLabels>,
    pub queue_unfinished_work: Family<QueueLabels, Gauge<f64, std::sync::atomic::AtomicU64>>,
    pub queue_longest_running: Family<QueueLabels, Gauge<f64, std::sync::atomic::AtomicU64>>,
    pub client_requests: Family<RequestLabels, Counter>,
    pub leader_status: Family<NameLabel, Gauge>,
    pub informers: Family<KindLabel, Gauge>,
    pub cached_objects: Family<KindLabel, Gauge>,
    pub malformed_objects: Family<KindLabel, Gauge>,
    pub relists: Family<KindLabel, Counter>,
    pub watch_errors: Family<KindLabel, Counter>,
    pub workload_clusters: Gauge,
    pub events_dropped: Counter,
    pub held_entries: Family<NameLabel, Gauge>,
}

/// What a metric is called and what it says, for the reference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Description {
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    pub help: String,
}

/// How a queue is at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueSample {
    /// Waiting objects by the label of their priority.
    pub depths: [(&'static str, i64); 3],
    /// Seconds of work that is not finished, all together.
    pub unfinished: f64,
    /// Seconds of the work that has lasted longest.
    pub longest: f64,
}

/// Measures one queue; nothing once the queue is gone.
type Probe = Box<dyn Fn() -> Option<QueueSample> + Send>;

/// Queues by their labels: several of one name where a controller runs once for each workload cluster.
type Queues = HashMap<QueueLabels, Vec<Probe>>;

/// Brings a gauge up to date before it is read; dropped when it answers `false`.
type Refresher = Arc<Mutex<Box<dyn Fn() -> bool + Send>>>;

impl Metrics {
    pub fn new() -> Self {
        let queue_histogram = Buckets(|| Histogram::new(exponential_buckets(1e-8, 10.0, 12)));
        let metrics = Self {
            registry: Arc::new(Mutex::new(Registry::default())),
            refreshers: Arc::default(),
            descriptions: Arc::default(),
            queues: Arc::default(),
            reconcile_total: Family::default(),
            reconcile_errors: Family::default(),
            reconcile_errors_by_class: Family::default(),
            terminal_reconcile_errors: Family::default(),
            reconcile_panics: Family::default(),
            reconcile_timeouts: Family::default(),
            reconcile_time: Family::new_with_constructor(Buckets(|| Histogram::new(RECONCILE_BUCKETS))),
            max_concurrent_reconciles: Family::default(),
            active_workers: Family::default(),
            stale_cache_skips: Family::default(),
            queue_depth: Family::default(),
            queue_adds: Family::default(),
            queue_retries: Family::default(),
            queue_duration: Family::new_with_constructor(queue_histogram),
            queue_work_duration: Family::new_with_constructor(queue_histogram),
            queue_unfinished_work: Family::default(),
            queue_longest_running: Family::default(),
            client_requests: Family::default(),
            leader_status: Family::default(),
            informers: Family::default(),
            cached_objects: Family::default(),
            malformed_objects: Family::default(),
            relists: Family::default(),
            watch_errors: Family::default(),
            workload_clusters: Gauge::default(),
            events_dropped: Counter::default(),
            held_entries: Family::default(),
        };
        metrics.register_all();
        metrics
    }

    /// The encoder adds `_total` to counters, so it is left off here.
    fn register_all(&self) {
        self.register_reconciles();
        self.register_queues();
        self.register_informers();
        self.register(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code, method, and host",
            self.client_requests.clone(),
        );
        self.register(
            "leader_election_master_status",
            "Whether this process holds the named lease: 1 if it leads, 0 if it stands by",
            self.leader_status.clone(),
        );
        self.register(
            "slipway_workload_clusters",
            "Number of connected workload clusters",
            self.workload_clusters.clone(),
        );
        self.register(
            "slipway_events_dropped",
            "Total number of Kubernetes events not sent because too many were waiting",
            self.events_dropped.clone(),
        );
        self.register(
            "slipway_held_entries",
            "Number of entries held in memory for objects, by what they are",
            self.held_entries.clone(),
        );
    }

    fn register_reconciles(&self) {
        self.register(
            "controller_runtime_reconcile",
            "Total number of reconciliations per controller",
            self.reconcile_total.clone(),
        );
        self.register(
            "controller_runtime_reconcile_errors",
            "Total number of reconciliation errors per controller",
            self.reconcile_errors.clone(),
        );
        self.register(
            "slipway_reconcile_errors",
            "Total number of reconciliation errors per controller and class of failure",
            self.reconcile_errors_by_class.clone(),
        );
        self.register(
            "controller_runtime_terminal_reconcile_errors",
            "Total number of terminal reconciliation errors per controller",
            self.terminal_reconcile_errors.clone(),
        );
        self.register(
            "controller_runtime_reconcile_panics",
            "Total number of reconciliation panics per controller",
            self.reconcile_panics.clone(),
        );
        self.register(
            "controller_runtime_reconcile_timeouts",
            "Total number of reconciliation timeouts per controller",
            self.reconcile_timeouts.clone(),
        );
        self.register(
            "controller_runtime_reconcile_time_seconds",
            "Length of time per reconciliation per controller",
            self.reconcile_time.clone(),
        );
        self.register(
            "controller_runtime_max_concurrent_reconciles",
            "Maximum number of concurrent reconciles per controller",
            self.max_concurrent_reconciles.clone(),
        );
        self.register(
            "controller_runtime_active_workers",
            "Number of currently used workers per controller",
            self.active_workers.clone(),
        );
        self.register(
            "capi_reconcile_stale_cache_skips",
            "Total number of reconciles skipped due to a stale watch cache",
            self.stale_cache_skips.clone(),
        );
    }

    fn register_queues(&self) {
        self.register(
            "workqueue_depth",
            "Current depth of workqueue by workqueue and priority",
            self.queue_depth.clone(),
        );
        self.register(
            "workqueue_adds",
            "Total number of adds handled by workqueue",
            self.queue_adds.clone(),
        );
        self.register(
            "workqueue_retries",
            "Total number of items added to the workqueue with a delay",
            self.queue_retries.clone(),
        );
        self.register(
            "workqueue_queue_duration_seconds",
            "How long in seconds an item stays in workqueue before being requested",
            self.queue_duration.clone(),
        );
        self.register(
            "workqueue_work_duration_seconds",
            "How long in seconds processing an item from workqueue takes",
            self.queue_work_duration.clone(),
        );
        self.register(
            "workqueue_unfinished_work_seconds",
            "How many seconds of work are in progress and not yet in work_duration",
            self.queue_unfinished_work.clone(),
        );
        self.register(
            "workqueue_longest_running_processor_seconds",
            "How many seconds the longest running item of the workqueue has been in work",
            self.queue_longest_running.clone(),
        );
    }

    fn register_informers(&self) {
        self.register(
            "slipway_informers",
            "Number of running watches by kind",
            self.informers.clone(),
        );
        self.register(
            "slipway_informer_objects",
            "Number of objects in the caches by kind",
            self.cached_objects.clone(),
        );
        self.register(
            "slipway_informer_malformed_objects",
            "Number of objects that were received and could not be read, by kind",
            self.malformed_objects.clone(),
        );
        self.register(
            "slipway_informer_lists",
            "Total number of completed full lists by kind",
            self.relists.clone(),
        );
        self.register(
            "slipway_informer_watch_errors",
            "Total number of failed lists and broken watches by kind",
            self.watch_errors.clone(),
        );
    }

    /// Adds a metric of a provider. A counter's name is given without its `_total`.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        let kind = match metric.metric_type() {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            _ => "info",
        };
        self.descriptions.lock().push(Description {
            // The encoder adds it to counters.
            name: format!("{name}{}", if kind == "counter" { "_total" } else { "" }),
            kind,
            help: help.to_owned(),
        });
        self.registry.lock().register(name, help, metric);
    }

    /// Every metric there is, whether anything was counted yet or not.
    pub fn descriptions(&self) -> Vec<Description> {
        self.descriptions.lock().clone()
    }

    /// Calls back before every reading, for gauges that are cheaper to compute than to keep; until it answers
    /// `false`.
    pub fn before_reading(&self, refresh: impl Fn() -> bool + Send + 'static) {
        self.refreshers
            .lock()
            .push(Arc::new(Mutex::new(Box::new(refresh))));
    }

    /// Counts at every reading what is held in memory for objects. What is held for one goes with it.
    pub fn count_held(&self, name: &str, count: impl Fn() -> usize + Send + 'static) {
        let label = NameLabel {
            name: name.to_owned(),
        };
        let gauge = self.held_entries.get_or_create_owned(&label);
        self.before_reading(move || {
            gauge.set(i64::try_from(count()).unwrap_or(i64::MAX));
            true
        });
    }

    /// Measures a queue at every reading. Queues of one name are told together.
    pub fn measure_queue(
        &self,
        labels: &QueueLabels,
        probe: impl Fn() -> Option<QueueSample> + Send + 'static,
    ) {
        let mut queues = self.queues.lock();
        let probes = queues.entry(labels.clone()).or_default();
        probes.retain(|probe| probe().is_some());
        probes.push(Box::new(probe));
    }

    fn read_queues(&self) {
        for (labels, probes) in self.queues.lock().iter_mut() {
            let mut samples = Vec::new();
            probes.retain(|probe| probe().map(|sample| samples.push(sample)).is_some());
            let depths = samples.iter().flat_map(|sample| sample.depths);
            let mut waiting: HashMap<&'static str, i64> =
                Priority::ALL.map(|priority| (priority.label(), 0)).into();
            for (priority, depth) in depths {
                *waiting.entry(priority).or_default() += depth;
            }
            for (priority, depth) in waiting {
                let labels = DepthLabels {
                    name: labels.name.clone(),
                    controller: labels.controller.clone(),
                    priority,
                };
                self.queue_depth.get_or_create(&labels).set(depth);
            }
            let unfinished = samples.iter().map(|sample| sample.unfinished).sum();
            let longest = samples.iter().map(|sample| sample.longest).fold(0.0, f64::max);
            self.queue_unfinished_work.get_or_create(labels).set(unfinished);
            self.queue_longest_running.get_or_create(labels).set(longest);
        }
    }

    /// The list is not locked while they are called: a refresher waits for its owner, and an owner that is just adding
    /// another would wait for the list.
    fn refresh(&self) {
        let refreshers = self.refreshers.lock().clone();
        let done: Vec<_> = refreshers
            .into_iter()
            .filter(|refresh| !refresh.lock()())
            .collect();
        self.refreshers
            .lock()
            .retain(|refresh| !done.iter().any(|done| Arc::ptr_eq(done, refresh)));
    }

    /// All metrics in the OpenMetrics text format ([`CONTENT_TYPE`]), which Prometheus reads.
    pub fn encode(&self) -> String {
        self.refresh();
        self.read_queues();
        let mut text = String::new();
        text::encode(&mut text, &self.registry.lock()).expect("writing to a string cannot fail");
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_those_of_existing_dashboards() {
        let metrics = Metrics::new();
        let controller = "fleet".to_owned();
        metrics
            .reconcile_total
            .get_or_create(&ResultLabels {
                controller: controller.clone(),
                result: "success",
            })
            .inc();
        metrics
            .queue_depth
            .get_or_create(&DepthLabels {
                name: controller.clone(),
                controller: controller.clone(),
                priority: "0",
            })
            .set(3);
        metrics
            .client_requests
            .get_or_create(&RequestLabels {
                code: "200".to_owned(),
                method: "GET".to_owned(),
                host: "10.0.0.1:6443".to_owned(),
            })
            .inc_by(2);
        let text = metrics.encode();
        for line in [
            r#"controller_runtime_reconcile_total{controller="fleet",result="success"} 1"#,
            r#"workqueue_depth{name="fleet",controller="fleet",priority="0"} 3"#,
            r#"rest_client_requests_total{code="200",method="GET",host="10.0.0.1:6443"} 2"#,
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }

    #[test]
    fn gauges_are_refreshed_before_a_reading_until_their_owner_is_gone() {
        let metrics = Metrics::new();
        let owner = Arc::new(());
        let (alive, gauge) = (Arc::downgrade(&owner), metrics.workload_clusters.clone());
        metrics.before_reading(move || {
            gauge.inc();
            alive.upgrade().is_some()
        });
        assert!(metrics.encode().contains("slipway_workload_clusters 1\n"));
        drop(owner);
        assert!(metrics.encode().contains("slipway_workload_clusters 2\n"));
        assert!(metrics.encode().contains("slipway_workload_clusters 2\n"));
    }

    #[test]
    fn whoever_is_asked_for_a_gauge_can_add_another_in_the_same_moment() {
        let (metrics, owner) = (Metrics::new(), Arc::new(Mutex::new(())));
        let (asked, lock) = (std::sync::mpsc::channel(), Arc::clone(&owner));
        let tell = asked.0;
        let adding = owner.lock();
        metrics.count_held("entries", move || {
            let _ = tell.send(());
            drop(lock.lock());
            1
        });
        let (reading, answer) = (metrics.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || answer.0.send(reading.encode()));
        asked.1.recv().unwrap();
        // The reading waits for the owner now, and the owner for nothing.
        let (added, more) = (std::sync::mpsc::channel(), metrics.clone());
        std::thread::spawn(move || {
            more.count_held("more", || 2);
            added.0.send(())
        });
        let guard = std::time::Duration::from_mins(1);
        added
            .1
            .recv_timeout(guard)
            .expect("the list of gauges is not locked");
        drop(adding);
        assert!(
            answer
                .1
                .recv_timeout(guard)
                .unwrap()
                .contains(r#"slipway_held_entries{name="entries"} 1"#)
        );
        assert!(
            metrics
                .encode()
                .contains(r#"slipway_held_entries{name="more"} 2"#)
        );
    }
}
