//! The registration. The autoscaler ships by Helm, under Karpenter's own names, and not as a clusterctl provider. Whoever installs
//! the others did not ask for it, so it runs only where it is named: `--providers=autoscaler`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::EnvVar;
use slipway_runtime::{
    Names, Package, PackageKind, Provider, Rule,
    provider::{ConditionType, NamedPort},
};

use crate::{
    api::{
        crd,
        names::{GROUP, NODE_CLASS_GROUP, condition},
    },
    command, disruption, group, insight, management,
    memory::Memory,
    metrics::KarpenterMetrics,
    node, node_claim, node_class, node_pool, options, provisioner, static_capacity,
};

const MADE: &[&str] = &["create", "delete", "get", "list", "watch"];

/// As Karpenter's chart has them.
const NAMES: Names = Names {
    namespace: "karpenter",
    workload: "karpenter",
    container: "controller",
    lease: "karpenter-leader-election",
    labels: &[
        ("app.kubernetes.io/name", "karpenter"),
        ("app.kubernetes.io/instance", "karpenter"),
    ],
    metrics: NamedPort {
        name: "http-metrics",
        number: 8080,
    },
    health: NamedPort {
        name: "http",
        number: 8081,
    },
};

const RBAC: &[Rule] = &[
    Rule::new(GROUP, &["nodepools"], &["list", "watch", "patch"]),
    Rule::new(
        GROUP,
        &["nodeclaims"],
        &["create", "delete", "list", "watch", "patch"],
    ),
    Rule::new(NODE_CLASS_GROUP, &["clusterapinodeclasses"], &["list", "watch"]),
    Rule::new(GROUP, &["nodepools/status", "nodeclaims/status"], &["patch"]),
    Rule::new(NODE_CLASS_GROUP, &["clusterapinodeclasses/status"], &["patch"]),
    // Machines are bound and marked, and the marked ones deleted; replicas go through the scale subresource alone.
    Rule::new("cluster.x-k8s.io", &["clusters"], Rule::READ),
    Rule::new(
        "cluster.x-k8s.io",
        &["machinedeployments", "machinesets", "machinepools"],
        Rule::READ,
    ),
    Rule::new(
        "cluster.x-k8s.io",
        &[
            "machinedeployments/scale",
            "machinesets/scale",
            "machinepools/scale",
        ],
        &["patch"],
    ),
    Rule::new(
        "cluster.x-k8s.io",
        &["machines"],
        &["create", "delete", "get", "list", "watch", "patch"],
    ),
    // Capacity in the status of machine templates, and what Machines are made of where they come from templates.
    Rule::new("infrastructure.cluster.x-k8s.io", &["*"], MADE),
    Rule::new("bootstrap.cluster.x-k8s.io", &["*"], MADE),
    Rule::new("apiextensions.k8s.io", &["customresourcedefinitions"], &["get"]),
    // The cluster as it is planned with, and the drain.
    Rule::new("", &["nodes"], &["get", "list", "watch", "patch"]),
    Rule::new("", &["pods"], &["delete", "list", "watch"]),
    Rule::new("", &["pods/eviction"], &["create"]),
    Rule::new(
        "",
        &[
            "configmaps",
            "namespaces",
            "persistentvolumeclaims",
            "persistentvolumes",
        ],
        &["list", "watch"],
    ),
    Rule::new("policy", &["poddisruptionbudgets"], &["list", "watch"]),
    Rule::new("apps", &["daemonsets"], &["list", "watch"]),
    Rule::new(
        "storage.k8s.io",
        &["csinodes", "storageclasses", "volumeattachments"],
        &["list", "watch"],
    ),
    // Other autoscalers, in whichever namespace they hold their lease.
    Rule::new("coordination.k8s.io", &["leases"], &["list", "watch"]),
    Rule::new("events.k8s.io", &["events"], &["create", "patch"]),
];

/// Everything the autoscaler brings.
pub fn provider() -> Provider {
    let memory: Arc<Memory> = Arc::default();
    let mut package = Package::new(PackageKind::HelmOnly, "autoscaler");
    package.name_prefix = Some("karpenter");
    package.names = Some(NAMES);
    package.on_request = true;
    package.environment = vec![EnvVar {
        name: "KARPENTER_SERVICE".to_owned(),
        value: Some(NAMES.workload.to_owned()),
        ..EnvVar::default()
    }];
    package.crds = crd::crds();
    package.rbac = RBAC.to_vec();
    package.controllers = vec![
        node_class::registration(&memory),
        node_pool::registration(&memory),
        node_claim::registration(&memory),
        node::registration(&memory),
        provisioner::registration(&memory),
        disruption::registration(&memory),
        static_capacity::registration(&memory),
    ];
    package.controllers.extend(group::registrations(&memory));
    let across = |controller| management::across(controller, &memory);
    package.controllers = package.controllers.into_iter().map(across).collect();
    package.conditions = conditions();
    let mut provider = Provider::new("autoscaler");
    provider.insight = insight::insight();
    provider.packages = vec![package];
    provider.flags = options::flags();
    provider.gates = options::GATES.to_vec();
    provider.foreign_gates = options::FOREIGN_GATES;
    provider.subcommands = vec![command::subcommand()];
    provider.metrics = |metrics| KarpenterMetrics::default().register(metrics);
    provider
}

fn conditions() -> Vec<ConditionType> {
    let of = |kind: &'static str, found: &[(&'static str, &'static str)]| -> Vec<ConditionType> {
        found
            .iter()
            .map(|&(name, meaning)| ConditionType { kind, name, meaning })
            .collect()
    };
    [
        of(
            "NodePool",
            &[
                (condition::READY, "its NodeClass is ready"),
                (condition::VALIDATION_SUCCEEDED, "its spec can be used"),
                (condition::NODE_CLASS_READY, "its NodeClass is there and ready"),
                (
                    condition::NODE_REGISTRATION_HEALTHY,
                    "its last machines have registered; if not, one at a time is made",
                ),
            ],
        ),
        of(
            "NodeClaim",
            &[
                (condition::READY, "it is launched, registered and initialized"),
                (condition::LAUNCHED, "a Machine stands for it"),
                (condition::REGISTERED, "its Node has joined"),
                (
                    condition::INITIALIZED,
                    "its Node is ready, has what was asked for, and its startup taints are gone",
                ),
                (
                    condition::CONSOLIDATABLE,
                    "no pod has come or gone on its Node for as long as consolidateAfter says",
                ),
                (
                    condition::DRIFTED,
                    "it is no longer what its NodePool or NodeClass asks for",
                ),
                (
                    condition::DISRUPTION_REASON,
                    "it is being disrupted, and its Node takes no more pods",
                ),
                (condition::DRAINED, "it is deleted, and its pods have left"),
                (
                    condition::VOLUMES_DETACHED,
                    "it is deleted, and its volumes are detached",
                ),
                (
                    condition::INSTANCE_TERMINATING,
                    "it is deleted, and its Machine may go",
                ),
                (
                    condition::CONSISTENT_STATE_FOUND,
                    "its Node has nine tenths or more of what its machine was said to have",
                ),
            ],
        ),
        of(
            "ClusterAPINodeClass",
            &[
                (condition::READY, "machines can be had from at least one object"),
                (
                    condition::VALIDATION_SUCCEEDED,
                    "none of its objects is left out for what is written on it",
                ),
                (
                    slipway_capi::names::condition::PAUSED,
                    "it is paused, and nothing is done for it",
                ),
            ],
        ),
    ]
    .concat()
}
