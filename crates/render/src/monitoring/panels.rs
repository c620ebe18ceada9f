//! What the dashboards show: of every manager, of Azure, of the autoscaler.

/// One dashboard.
pub struct Dashboard {
    pub name: &'static str,
    pub title: &'static str,
    pub says: &'static str,
    /// How the metrics begin without which there is nothing to show; empty for what every manager has.
    pub of: &'static str,
    pub panels: &'static [Panel],
}

/// One panel: each query with its legend.
pub struct Panel {
    pub title: &'static str,
    pub says: &'static str,
    pub kind: &'static str,
    pub unit: &'static str,
    pub width: usize,
    pub lines: &'static [(&'static str, &'static str)],
}

impl Panel {
    pub fn queries(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.lines.iter().map(|(query, _)| *query)
    }

    const fn new(title: &'static str, unit: &'static str, says: &'static str) -> Self {
        Self {
            title,
            says,
            kind: "timeseries",
            unit,
            width: 12,
            lines: &[],
        }
    }

    const fn number(title: &'static str, unit: &'static str, says: &'static str) -> Self {
        Self {
            kind: "stat",
            width: 6,
            ..Self::new(title, unit, says)
        }
    }

    const fn lines(mut self, lines: &'static [(&'static str, &'static str)]) -> Self {
        self.lines = lines;
        self
    }
}

pub const DASHBOARDS: &[Dashboard] = &[
    Dashboard {
        name: "slipway-manager",
        title: "Slipway: managers",
        says: "Whether managers lead, keep up and get through.",
        of: "",
        panels: MANAGER,
    },
    Dashboard {
        name: "slipway-azure",
        title: "Slipway: Azure",
        says: "What is asked of Azure, what it refuses, and what is left of its limits.",
        of: "azure_",
        panels: AZURE,
    },
    Dashboard {
        name: "slipway-autoscaler",
        title: "Slipway: autoscaler",
        says: "Pods that wait, nodes that come and go, and why.",
        of: "karpenter_",
        panels: AUTOSCALER,
    },
];

const MANAGER: &[Panel] = &[
    Panel::number("Leaders", "short", "Leases that are held. Each package of managers has one.")
        .lines(&[("sum by (name) (leader_election_master_status{SCOPE})", "{{name}}")]),
    Panel::number("Workload clusters", "short", "Clusters that a manager is connected to.")
        .lines(&[("sum(slipway_workload_clusters{SCOPE})", "clusters")]),
    Panel::number("Objects in caches", "short", "What the managers hold of Kubernetes.")
        .lines(&[("sum(slipway_informer_objects{SCOPE})", "objects")]),
    Panel::number("Memory", "bytes", "Of all managers together.")
        .lines(&[("sum(process_resident_memory_bytes{SCOPE})", "resident")]),
    Panel::new("Reconciles", "ops", "How often objects are looked at.")
        .lines(&[("sum by (controller) (rate(controller_runtime_reconcile_total{SCOPE}[5m]))", "{{controller}}")]),
    Panel::new("Errors by class", "ops", "Terminal ones wait for a person; the others are tried again.")
        .lines(&[("sum by (controller, class) (rate(slipway_reconcile_errors_total{SCOPE}[5m]))", "{{controller}} {{class}}")]),
    Panel::new("Time of a reconcile, 99 of 100", "s", "From its begin to its end.").lines(&[(
        "histogram_quantile(0.99, sum by (controller, le) (rate(controller_runtime_reconcile_time_seconds_bucket{SCOPE}[5m])))",
        "{{controller}}",
    )]),
    Panel::new("Time in the queue, 99 of 100", "s", "From a change until a worker has time for it.").lines(&[(
        "histogram_quantile(0.99, sum by (name, le) (rate(workqueue_queue_duration_seconds_bucket{SCOPE}[5m])))",
        "{{name}}",
    )]),
    Panel::new("Waiting in the queues", "short", "Objects that wait for a worker, by priority.")
        .lines(&[("sum by (name, priority) (workqueue_depth{SCOPE})", "{{name}} {{priority}}")]),
    Panel::new("Workers", "short", "In use, and how many there may be.").lines(&[
        ("sum by (controller) (controller_runtime_active_workers{SCOPE})", "{{controller}} in use"),
        ("sum by (controller) (controller_runtime_max_concurrent_reconciles{SCOPE})", "{{controller}} at most"),
    ]),
    Panel::new("Requests to API servers", "reqps", "By answer. 409 and 404 are part of the work; 403 and 5xx are not.")
        .lines(&[("sum by (code) (rate(rest_client_requests_total{SCOPE}[5m]))", "{{code}}")]),
    Panel::new("Watches that broke", "ops", "Failed lists and broken watches, by kind.")
        .lines(&[("sum by (kind) (rate(slipway_informer_watch_errors_total{SCOPE}[5m]))", "{{kind}}")]),
    Panel::new("Webhooks", "reqps", "Requests for admission, by answer.")
        .lines(&[("sum by (code) (rate(controller_runtime_webhook_requests_total{SCOPE}[5m]))", "{{code}}")]),
    Panel::new("Processor", "percentunit", "Of one core.")
        .lines(&[("sum by (pod) (rate(process_cpu_seconds_total{SCOPE}[5m]))", "{{pod}}")]),
];

const AZURE: &[Panel] = &[
    Panel::new("Answered", "reqps", "Requests that Azure answered without an error.").lines(&[(
        "sum by (resource, requestType) (rate(azure_successful_requests_total{SCOPE}[5m]))",
        "{{requestType}} {{resource}}",
    )]),
    Panel::new("Failed", "reqps", "Requests that Azure refused, or did not answer.").lines(&[(
        "sum by (resource, requestType, responseCode) (rate(azure_failed_requests_total{SCOPE}[5m]))",
        "{{responseCode}} {{requestType}} {{resource}}",
    )]),
    Panel::new("Time of a request, 99 of 100", "s", "Until Azure answers; what it does then takes longer.").lines(&[(
        "histogram_quantile(0.99, sum by (requestType, le) (rate(azure_requests_time_seconds_bucket{SCOPE}[5m])))",
        "{{requestType}}",
    )]),
    Panel::new("Put off", "reqps", "Azure answered 429 (azure), or the budget is spent (budget).")
        .lines(&[("sum by (by, provider) (rate(slipway_azure_throttled_requests_total{SCOPE}[5m]))", "{{by}} {{provider}}")]),
    Panel::new("Left of the budget", "short", "Requests that may be sent at once.").lines(&[(
        "min by (subscription, provider, access) (slipway_azure_budget_remaining{SCOPE})",
        "{{provider}} {{access}} {{subscription}}",
    )]),
    Panel::new("Waiting for their turn", "short", "Requests that the budget holds back.")
        .lines(&[("sum(slipway_azure_budget_waiting{SCOPE})", "requests")]),
];

const AUTOSCALER: &[Panel] = &[
    Panel::number("Nodes", "short", "As planning sees them.")
        .lines(&[("sum(karpenter_cluster_state_node_count{SCOPE})", "nodes")]),
    Panel::number("Pods without a node", "short", "For which the last round found nothing.")
        .lines(&[("sum(karpenter_scheduler_unschedulable_pods_count{SCOPE})", "pods")]),
    Panel::number("Planned for", "short", "Pods that the last round was planned for.")
        .lines(&[("sum(karpenter_scheduler_queue_depth{SCOPE})", "pods")]),
    Panel::number("Sees everything", "bool", "Whether every watch that planning reads is complete.")
        .lines(&[("min(karpenter_cluster_state_synced{SCOPE})", "complete")]),
    Panel::new("Time to plan, 99 of 100", "s", "For all pods that wait.").lines(&[(
        "histogram_quantile(0.99, sum by (le) (rate(karpenter_scheduler_scheduling_duration_seconds_bucket{SCOPE}[5m])))",
        "planning",
    )]),
    Panel::new("NodeClaims", "ops", "That come, and that go.").lines(&[
        ("sum by (nodepool, reason) (rate(karpenter_nodeclaims_created_total{SCOPE}[5m]))", "{{nodepool}} created, {{reason}}"),
        ("sum by (nodepool) (rate(karpenter_nodeclaims_terminated_total{SCOPE}[5m]))", "{{nodepool}} terminated"),
    ]),
    Panel::new("What NodePools come to", "short", "What their nodes have, and their limits.").lines(&[
        ("sum by (nodepool, resource_type) (karpenter_nodepools_usage{SCOPE})", "{{nodepool}} {{resource_type}}"),
        ("sum by (nodepool, resource_type) (karpenter_nodepools_limit{SCOPE})", "{{nodepool}} {{resource_type}} at most"),
    ]),
    Panel::new("Disruptions", "ops", "That began, by reason, and that came to nothing.").lines(&[
        ("sum by (reason, decision) (rate(karpenter_voluntary_disruption_decisions_total{SCOPE}[5m]))", "{{decision}} {{reason}}"),
        ("sum by (reason) (rate(karpenter_voluntary_disruption_queue_failures_total{SCOPE}[5m]))", "failed, {{reason}}"),
    ]),
    Panel::new("May be disrupted now", "short", "What the budgets of NodePools let go.").lines(&[(
        "sum by (nodepool, reason) (karpenter_nodepools_allowed_disruptions{SCOPE})",
        "{{nodepool}} {{reason}}",
    )]),
    Panel::new("Evictions", "ops", "By answer; 429 is a PodDisruptionBudget.")
        .lines(&[("sum by (code) (rate(karpenter_pods_eviction_requests_total{SCOPE}[5m]))", "{{code}}")]),
];
