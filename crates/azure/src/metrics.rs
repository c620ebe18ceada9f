//! What is counted of the requests to Azure, under Azure Service Operator's names where it has one, so that its dashboards
//! work. Clones count together; the owner of the engines registers them once.

use std::sync::{Arc, OnceLock, atomic::AtomicU64};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};
use slipway_runtime::metrics::Metrics;

use crate::{
    arm::{ResourceId, Verb},
    budget::{Budget, PermitRequest},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[expect(non_snake_case, reason = "the labels' own names")]
struct Answered {
    resource: String,
    requestType: &'static str,
    responseCode: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[expect(non_snake_case, reason = "the labels' own names")]
struct Asked {
    resource: String,
    requestType: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Throttled {
    provider: String,
    access: &'static str,
    /// `azure`: it answered 429; `budget`: the request was not sent.
    by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Share {
    subscription: String,
    provider: String,
    access: &'static str,
}

/// Seconds a request takes: most are answered in under one, and none waits for longer than a minute.
const BUCKETS: [f64; 12] = [0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

/// The counters of the requests to Azure.
#[derive(Clone, Debug)]
pub struct AzureMetrics {
    succeeded: Family<Answered, Counter>,
    failed: Family<Answered, Counter>,
    time: Family<Asked, Histogram, fn() -> Histogram>,
    throttled: Family<Throttled, Counter>,
    remaining: Family<Share, Gauge<f64, AtomicU64>>,
    waiting: Gauge,
    registered: Arc<OnceLock<()>>,
}

impl Default for AzureMetrics {
    fn default() -> Self {
        Self {
            succeeded: Family::default(),
            failed: Family::default(),
            time: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            throttled: Family::default(),
            remaining: Family::default(),
            waiting: Gauge::default(),
            registered: Arc::default(),
        }
    }
}

impl AzureMetrics {
    /// Shows the counters under `/metrics`; the second time nothing happens.
    pub fn register(&self, metrics: &Metrics) {
        self.registered.get_or_init(|| {
            metrics.register(
                "azure_successful_requests",
                "Total number of requests to Azure that it answered without an error, by resource type, method and code",
                self.succeeded.clone(),
            );
            metrics.register(
                "azure_failed_requests",
                "Total number of requests to Azure that it answered with an error or not at all (none), by resource type, method and code",
                self.failed.clone(),
            );
            metrics.register(
                "azure_requests_time_seconds",
                "Length of time per request to Azure, by resource type and method",
                self.time.clone(),
            );
            metrics.register(
                "slipway_azure_throttled_requests",
                "Total number of requests that met a limit: Azure answered 429 (azure), or they were not sent yet (budget)",
                self.throttled.clone(),
            );
            metrics.register(
                "slipway_azure_budget_remaining",
                "Requests that may be sent at once, by subscription, resource provider and access",
                self.remaining.clone(),
            );
            metrics.register(
                "slipway_azure_budget_waiting",
                "Number of requests that wait for their turn in the budget",
                self.waiting.clone(),
            );
        });
    }

    /// Reads the budget whenever somebody reads the metrics.
    pub fn show(&self, budget: &Budget, metrics: &Metrics) {
        let (own, budget) = (self.clone(), budget.clone());
        metrics.before_reading(move || {
            let (remaining, waiting) = budget.sample();
            own.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
            for (bucket, left) in remaining {
                let share = Share {
                    subscription: bucket.subscription,
                    provider: bucket.provider,
                    access: bucket.access.label(),
                };
                own.remaining.get_or_create(&share).set(left);
            }
            true
        });
    }

    /// One request was answered, or got no answer at all.
    pub(crate) fn answered(&self, target: &ResourceId, verb: Verb, code: Option<u16>, seconds: f64) {
        let (resource, method) = (target.resource_type(), verb.name());
        let family = match code {
            Some(code) if code < 400 => &self.succeeded,
            _ => &self.failed,
        };
        family
            .get_or_create(&Answered {
                resource: resource.clone(),
                requestType: method,
                responseCode: code.map_or_else(|| "none".to_owned(), |code| code.to_string()),
            })
            .inc();
        self.time
            .get_or_create(&Asked {
                resource,
                requestType: method,
            })
            .observe(seconds);
    }

    pub(crate) fn throttled(&self, permit: &PermitRequest, by: &'static str) {
        self.throttled
            .get_or_create(&Throttled {
                provider: permit.bucket.provider.clone(),
                access: permit.bucket.access.label(),
                by,
            })
            .inc();
    }
}
