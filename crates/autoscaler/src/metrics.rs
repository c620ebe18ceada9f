//! What is counted, under Karpenter's names and labels, so that its dashboards and alerts work.

use std::sync::{Arc, OnceLock, atomic::AtomicU64};

use jiff::Timestamp;
use kube::ResourceExt;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};
use slipway_packing::{
    disrupt::{Decision, Method, Reason as Reasoned},
    model::ResourceList,
};
use slipway_runtime::Metrics;

use crate::{
    api::{NodeClaim, names::label},
    disruption::plan as disruption,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Created {
    reason: &'static str,
    nodepool: String,
    min_values_relaxed: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Terminated {
    nodepool: String,
    capacity_type: String,
    zone: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Disrupted {
    reason: &'static str,
    nodepool: String,
    capacity_type: String,
    consolidation_policy: String,
    termination_mode: &'static str,
}

/// Karpenter calls a way to disrupt by what it is for and, where that is to save money, by how many nodes it looks at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfMethod {
    reason: &'static str,
    consolidation_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decided {
    decision: &'static str,
    reason: &'static str,
    consolidation_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Allowed {
    nodepool: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfZone {
    nodepool: String,
    zone: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPool {
    nodepool: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Amount {
    resource_type: String,
    nodepool: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: &'static str,
}

const PROVISIONER: Controller = Controller {
    controller: "provisioner",
};

type Amounts = Family<Amount, Gauge<f64, AtomicU64>>;

/// The counters. Clones count together; whoever runs the controllers registers them once.
#[derive(Clone, Debug)]
pub struct KarpenterMetrics {
    claims_created: Family<Created, Counter>,
    claims_terminated: Family<Terminated, Counter>,
    claims_disrupted: Family<Disrupted, Counter>,
    claim_termination: Family<OfPool, Histogram, fn() -> Histogram>,
    nodes_created: Family<OfZone, Counter>,
    nodes_terminated: Family<OfZone, Counter>,
    nodes_drained: Family<OfPool, Counter>,
    pods_drained: Family<Reason, Counter>,
    evictions: Family<Code, Counter>,
    disruption_evaluation: Family<OfMethod, Histogram, fn() -> Histogram>,
    disruption_decisions: Family<Decided, Counter>,
    disruption_eligible: Family<Reason, Gauge>,
    disruption_allowed: Family<Allowed, Gauge>,
    disruption_failed_validations: Family<OfMethod, Counter>,
    disruption_failures: Family<Decided, Counter>,
    limit: Amounts,
    usage: Amounts,
    scheduling: Family<Controller, Histogram, fn() -> Histogram>,
    queue_depth: Family<Controller, Gauge>,
    unschedulable: Family<Controller, Gauge>,
    node_count: Gauge,
    synced: Gauge,
    registered: Arc<OnceLock<()>>,
}

impl Default for KarpenterMetrics {
    fn default() -> Self {
        let powers = || Histogram::new((0..12).map(|power| f64::from(1_u32 << power)));
        let seconds = || {
            Histogram::new([
                0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
            ])
        };
        KarpenterMetrics {
            claims_created: Family::default(),
            claims_terminated: Family::default(),
            claims_disrupted: Family::default(),
            claim_termination: Family::new_with_constructor(powers),
            nodes_created: Family::default(),
            nodes_terminated: Family::default(),
            nodes_drained: Family::default(),
            pods_drained: Family::default(),
            evictions: Family::default(),
            disruption_evaluation: Family::new_with_constructor(seconds),
            disruption_decisions: Family::default(),
            disruption_eligible: Family::default(),
            disruption_allowed: Family::default(),
            disruption_failed_validations: Family::default(),
            disruption_failures: Family::default(),
            limit: Family::default(),
            usage: Family::default(),
            scheduling: Family::new_with_constructor(seconds),
            queue_depth: Family::default(),
            unschedulable: Family::default(),
            node_count: Gauge::default(),
            synced: Gauge::default(),
            registered: Arc::default(),
        }
    }
}

fn pool(claim: &NodeClaim) -> String {
    claim.labels().get(label::NODE_POOL).cloned().unwrap_or_default()
}

fn text(claim: &NodeClaim, key: &str) -> String {
    claim.labels().get(key).cloned().unwrap_or_default()
}

impl KarpenterMetrics {
    pub fn register(&self, metrics: &Metrics) {
        if self.registered.set(()).is_err() {
            return;
        }
        self.register_claims(metrics);
        self.register_nodes(metrics);
        self.register_scheduling(metrics);
        self.register_disruption(metrics);
    }

    fn register_disruption(&self, metrics: &Metrics) {
        metrics.register(
            "karpenter_voluntary_disruption_decision_evaluation_duration_seconds",
            "Time that one way to disrupt nodes takes to decide",
            self.disruption_evaluation.clone(),
        );
        metrics.register(
            "karpenter_voluntary_disruption_decisions",
            "Number of disruptions that began, by decision and reason",
            self.disruption_decisions.clone(),
        );
        metrics.register(
            "karpenter_voluntary_disruption_eligible_nodes",
            "Number of Nodes that the last decision for a reason would give up",
            self.disruption_eligible.clone(),
        );
        metrics.register(
            "karpenter_nodepools_allowed_disruptions",
            "Number of Nodes of a NodePool that its budgets let go now, by reason",
            self.disruption_allowed.clone(),
        );
        metrics.register(
            "karpenter_voluntary_disruption_failed_validations",
            "Number of decisions that no longer held when they were decided once more",
            self.disruption_failed_validations.clone(),
        );
        metrics.register(
            "karpenter_voluntary_disruption_queue_failures",
            "Number of disruptions that came to nothing because their replacements did not come",
            self.disruption_failures.clone(),
        );
    }

    fn register_claims(&self, metrics: &Metrics) {
        metrics.register(
            "karpenter_nodeclaims_created",
            "Number of NodeClaims created, by reason, NodePool and whether minValues were relaxed",
            self.claims_created.clone(),
        );
        metrics.register(
            "karpenter_nodeclaims_terminated",
            "Number of NodeClaims terminated, by NodePool, capacity type and zone",
            self.claims_terminated.clone(),
        );
        metrics.register(
            "karpenter_nodeclaims_disrupted",
            "Number of NodeClaims that the autoscaler itself deleted, by reason",
            self.claims_disrupted.clone(),
        );
        metrics.register(
            "karpenter_nodeclaims_termination_duration_seconds",
            "Time from the deletion of a NodeClaim until its Machine is gone",
            self.claim_termination.clone(),
        );
        metrics.register(
            "karpenter_nodepools_limit",
            "Limits of a NodePool by resource",
            self.limit.clone(),
        );
        metrics.register(
            "karpenter_nodepools_usage",
            "What the nodes of a NodePool come to, by resource",
            self.usage.clone(),
        );
    }

    fn register_nodes(&self, metrics: &Metrics) {
        metrics.register(
            "karpenter_nodes_created",
            "Number of Nodes that registered, by NodePool and zone",
            self.nodes_created.clone(),
        );
        metrics.register(
            "karpenter_nodes_terminated",
            "Number of Nodes that went with their NodeClaim, by NodePool and zone",
            self.nodes_terminated.clone(),
        );
        metrics.register(
            "karpenter_nodes_drained",
            "Number of Nodes drained",
            self.nodes_drained.clone(),
        );
        metrics.register(
            "karpenter_pods_drained",
            "Number of pods that were evicted or deleted in a drain, by reason",
            self.pods_drained.clone(),
        );
        metrics.register(
            "karpenter_pods_eviction_requests",
            "Number of evictions asked for, by the answer's code",
            self.evictions.clone(),
        );
    }

    fn register_scheduling(&self, metrics: &Metrics) {
        metrics.register(
            "karpenter_scheduler_scheduling_duration_seconds",
            "Time that planning for all pods that wait takes",
            self.scheduling.clone(),
        );
        metrics.register(
            "karpenter_scheduler_queue_depth",
            "Number of pods that the last round was planned for",
            self.queue_depth.clone(),
        );
        metrics.register(
            "karpenter_scheduler_unschedulable_pods_count",
            "Number of pods for which the last round found nothing",
            self.unschedulable.clone(),
        );
        metrics.register(
            "karpenter_cluster_state_node_count",
            "Number of Nodes as planning sees them",
            self.node_count.clone(),
        );
        metrics.register(
            "karpenter_cluster_state_synced",
            "Whether every watch that planning reads is complete",
            self.synced.clone(),
        );
    }

    pub fn claim_created(&self, claim: &NodeClaim, min_values_relaxed: bool) {
        let labels = Created {
            reason: "provisioned",
            nodepool: pool(claim),
            min_values_relaxed: min_values_relaxed.to_string(),
        };
        self.claims_created.get_or_create(&labels).inc();
    }

    /// A claim was made so that others can go.
    pub fn replacement_created(&self, claim: &NodeClaim, why: Reasoned, min_values_relaxed: bool) {
        let labels = Created {
            reason: reason(why),
            nodepool: pool(claim),
            min_values_relaxed: min_values_relaxed.to_string(),
        };
        self.claims_created.get_or_create(&labels).inc();
    }

    /// A claim was deleted for a disruption.
    pub fn claim_disrupted_gracefully(&self, claim: &NodeClaim, why: Reasoned, consolidation_policy: String) {
        let labels = Disrupted {
            reason: reason(why),
            nodepool: pool(claim),
            capacity_type: text(claim, label::CAPACITY_TYPE),
            consolidation_policy,
            termination_mode: "graceful",
        };
        self.claims_disrupted.get_or_create(&labels).inc();
    }

    /// A look at what could be disrupted.
    pub fn disruption_planned(&self, plan: &disruption::Plan) {
        for (method, seconds) in &plan.seconds {
            let family = &self.disruption_evaluation;
            family.get_or_create(&of_method(*method)).observe(*seconds);
        }
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for (why, count) in &plan.eligible {
            let labels = Reason { reason: reason(*why) };
            self.disruption_eligible
                .get_or_create(&labels)
                .set(number(*count));
        }
        for ((nodepool, why), count) in &plan.allowed {
            let labels = Allowed {
                nodepool: nodepool.clone(),
                reason: reason(*why),
            };
            self.disruption_allowed.get_or_create(&labels).set(number(*count));
        }
        for proposal in &plan.dropped {
            self.validation_failed(proposal.command.method);
        }
    }

    /// A disruption began.
    pub fn disrupted(&self, method: Method, decision: Decision) {
        self.disruption_decisions
            .get_or_create(&decided(method, decision))
            .inc();
    }

    /// What was decided no longer held.
    pub fn validation_failed(&self, method: Method) {
        self.disruption_failed_validations
            .get_or_create(&of_method(method))
            .inc();
    }

    /// The replacements did not come.
    pub fn disruption_failed(&self, method: Method, decision: Decision) {
        self.disruption_failures
            .get_or_create(&decided(method, decision))
            .inc();
    }

    /// A claim was deleted here, and not by a user.
    pub fn claim_disrupted(&self, claim: &NodeClaim, reason: &'static str) {
        let labels = Disrupted {
            reason,
            nodepool: pool(claim),
            capacity_type: text(claim, label::CAPACITY_TYPE),
            consolidation_policy: String::new(),
            termination_mode: "forceful",
        };
        self.claims_disrupted.get_or_create(&labels).inc();
    }

    /// A deleted claim's Machine is gone, or told to go with nothing left to wait for.
    pub fn claim_terminated(&self, claim: &NodeClaim, now: Timestamp) {
        let deleted = claim.metadata.deletion_timestamp.as_ref();
        let seconds = deleted.map_or(0.0, |time| now.duration_since(time.0).as_secs_f64());
        let labels = Terminated {
            nodepool: pool(claim),
            capacity_type: text(claim, label::CAPACITY_TYPE),
            zone: text(claim, label::ZONE),
        };
        self.claims_terminated.get_or_create(&labels).inc();
        let of_pool = OfPool {
            nodepool: pool(claim),
        };
        self.claim_termination.get_or_create(&of_pool).observe(seconds);
        let had_node = claim
            .status
            .as_ref()
            .is_some_and(|status| status.node_name.is_some());
        if had_node {
            self.nodes_terminated.get_or_create(&of_zone(claim)).inc();
        }
    }

    pub fn node_registered(&self, claim: &NodeClaim) {
        self.nodes_created.get_or_create(&of_zone(claim)).inc();
    }

    pub fn node_drained(&self, claim: &NodeClaim) {
        let labels = OfPool {
            nodepool: pool(claim),
        };
        self.nodes_drained.get_or_create(&labels).inc();
    }

    pub fn pod_drained(&self, reason: &'static str) {
        self.pods_drained.get_or_create(&Reason { reason }).inc();
    }

    pub fn eviction_answered(&self, code: u16) {
        let labels = Code {
            code: code.to_string(),
        };
        self.evictions.get_or_create(&labels).inc();
    }

    /// What a NodePool may have, and has.
    pub fn pool_measured(&self, pool: &str, limits: &ResourceList, resources: &ResourceList) {
        for (family, amounts) in [(&self.limit, limits), (&self.usage, resources)] {
            for (name, amount) in amounts {
                let labels = Amount {
                    resource_type: name.replace(['-', '/', '.'], "_"),
                    nodepool: pool.to_owned(),
                };
                family.get_or_create(&labels).set(amount.as_f64());
            }
        }
    }

    /// One round of the provisioner.
    pub fn planned(&self, pods: usize, refused: usize, nodes: usize, seconds: f64) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.scheduling.get_or_create(&PROVISIONER).observe(seconds);
        self.queue_depth.get_or_create(&PROVISIONER).set(number(pods));
        self.unschedulable
            .get_or_create(&PROVISIONER)
            .set(number(refused));
        self.node_count.set(number(nodes));
    }

    pub fn synced(&self, synced: bool) {
        self.synced.set(i64::from(synced));
    }
}

/// As Karpenter's labels have it.
fn reason(reason: Reasoned) -> &'static str {
    match reason {
        Reasoned::Underutilized => "underutilized",
        Reasoned::Empty => "empty",
        Reasoned::Drifted => "drifted",
        Reasoned::Unhealthy => "unhealthy",
    }
}

fn of_method(method: Method) -> OfMethod {
    OfMethod {
        reason: reason(method.reason()),
        consolidation_type: match method {
            Method::Emptiness => "empty",
            Method::MultiNodeConsolidation => "multi",
            Method::SingleNodeConsolidation => "single",
            Method::CostConsolidation => "cost",
            Method::Repair | Method::StaticDrift | Method::Drift => "",
        },
    }
}

fn decided(method: Method, decision: Decision) -> Decided {
    let OfMethod {
        reason,
        consolidation_type,
    } = of_method(method);
    Decided {
        decision: match decision {
            Decision::Delete => "delete",
            Decision::Replace => "replace",
            Decision::TerminateFirst => "terminate-first",
            Decision::Reboot => "reboot",
        },
        reason,
        consolidation_type,
    }
}

fn of_zone(claim: &NodeClaim) -> OfZone {
    OfZone {
        nodepool: pool(claim),
        zone: text(claim, label::ZONE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Karpenter's own: what its dashboards read.
    #[test]
    fn names_and_labels_are_karpenters() {
        let (counted, metrics) = (KarpenterMetrics::default(), Metrics::new());
        counted.register(&metrics);
        counted.register(&metrics);
        let mut claim = NodeClaim::default();
        for (key, value) in [
            (label::NODE_POOL, "general"),
            (label::ZONE, "z1"),
            (label::CAPACITY_TYPE, "spot"),
        ] {
            claim.labels_mut().insert(key.to_owned(), value.to_owned());
        }
        counted.claim_created(&claim, false);
        counted.claim_disrupted(&claim, "expired");
        counted.claim_terminated(&claim, Timestamp::UNIX_EPOCH);
        counted.node_registered(&claim);
        counted.eviction_answered(429);
        counted.planned(5, 1, 3, 0.1);
        counted.disrupted(Method::Emptiness, Decision::Delete);
        counted.disruption_failed(Method::Drift, Decision::Replace);
        let text = metrics.encode();
        for line in [
            r#"karpenter_nodeclaims_created_total{reason="provisioned",nodepool="general",min_values_relaxed="false"} 1"#,
            r#"karpenter_nodeclaims_disrupted_total{reason="expired",nodepool="general",capacity_type="spot",consolidation_policy="",termination_mode="forceful"} 1"#,
            r#"karpenter_nodeclaims_terminated_total{nodepool="general",capacity_type="spot",zone="z1"} 1"#,
            r#"karpenter_nodes_created_total{nodepool="general",zone="z1"} 1"#,
            r#"karpenter_pods_eviction_requests_total{code="429"} 1"#,
            r#"karpenter_scheduler_queue_depth{controller="provisioner"} 5"#,
            r#"karpenter_scheduler_unschedulable_pods_count{controller="provisioner"} 1"#,
            "karpenter_cluster_state_node_count 3",
            r#"karpenter_voluntary_disruption_decisions_total{decision="delete",reason="empty",consolidation_type="empty"} 1"#,
            r#"karpenter_voluntary_disruption_queue_failures_total{decision="replace",reason="drifted",consolidation_type=""} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }
}
