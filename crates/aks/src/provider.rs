//! The registration: what this provider brings to the manager and to its manifests.

use k8s_openapi::api::core::v1::EnvVar;
use serde_json::json;
use slipway_azure::{
    machine::{Board, GATE},
    metrics::AzureMetrics,
    setup,
    workload::nodes::Nodes,
};
use slipway_runtime::{
    Package, PackageKind, Provider, RoleGrant, Rule, controller::Registration, provider::ForeignFlag,
};

use crate::{
    access::Access,
    admit::admission,
    api::{GROUP, crd::crds},
    cluster, conditions,
    control_plane::{self, POOL_WAIT_FLAG},
    example, insight, machine, pool,
};

/// Where the manager finds the token of its service account for Azure.
pub(crate) const TOKEN_FILE: &str = "/var/run/secrets/azure/tokens/azure-identity-token";

const PATCH: &[&str] = &["list", "watch", "patch"];
const DETACH: &[&str] = &["list", "patch", "delete"];

/// kubeadm's bootstrap provider asks a cluster's control plane for its version, for nodes that are not AKS's own. Its roles
/// name kubeadm's control planes alone; core's name every kind of the group.
const KUBEADM: RoleGrant = RoleGrant {
    name: "kubeadm-bootstrap",
    namespace: "capi-kubeadm-bootstrap-system",
    rules: &[Rule::new(GROUP, &["azuremanagedcontrolplanes"], Rule::READ)],
};

const RBAC: &[Rule] = &[
    // What inline resources have adopted is not deleted with a classic object.
    Rule::new(
        GROUP,
        &[
            "azureasomanagedclusters",
            "azureasomanagedcontrolplanes",
            "azureasomanagedmachinepools",
        ],
        &["list"],
    ),
    // Admission reads the Cluster for its network and its deletion; the controllers for whom it refers to.
    Rule::new("cluster.x-k8s.io", &["clusters"], Rule::READ),
    // Where AKS scales a pool, its MachinePool carries AKS's count.
    Rule::new(
        "cluster.x-k8s.io",
        &["machinepools"],
        &["get", "list", "watch", "patch"],
    ),
    // Where machines are switched on, those of VMs that go are deleted, and that of the last system node is held.
    Rule::new(
        "cluster.x-k8s.io",
        &["machines"],
        &["list", "watch", "patch", "delete"],
    ),
    Rule::new(
        GROUP,
        &["azuremanagedmachines"],
        &["list", "watch", "create", "patch", "delete"],
    ),
    Rule::new(
        GROUP,
        &[
            "azuremanagedclusters",
            "azuremanagedcontrolplanes",
            "azuremanagedmachinepools",
        ],
        PATCH,
    ),
    // An identity in use carries a finalizer. One outside the watched namespace is asked for.
    Rule::new(
        GROUP,
        &["azureclusteridentities"],
        &["get", "list", "watch", "patch"],
    ),
    Rule::new(
        GROUP,
        &[
            "azuremanagedclusters/status",
            "azuremanagedcontrolplanes/status",
            "azuremanagedmachinepools/status",
            "azuremanagedmachines/status",
        ],
        &["patch"],
    ),
    // Credentials are read, kubeconfigs are written.
    Rule::new(
        "",
        &["secrets"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    // Whose labels say whether they may use an identity.
    Rule::new("", &["namespaces"], &["get"]),
    // Objects that another installation kept for the same resources are detached.
    Rule::new("apiextensions.k8s.io", &["customresourcedefinitions"], &["get"]),
    Rule::new(
        "containerservice.azure.com",
        &["managedclusters", "managedclustersagentpools", "fleetsmembers"],
        DETACH,
    ),
    Rule::new("kubernetesconfiguration.azure.com", &["extensions"], DETACH),
    Rule::new(
        "network.azure.com",
        &["privateendpoints", "virtualnetworks", "virtualnetworkssubnets"],
        DETACH,
    ),
    Rule::new("resources.azure.com", &["resourcegroups"], DETACH),
    Rule::new("events.k8s.io", &["events"], &["create", "patch"]),
];

/// What `clusterctl generate cluster` offers. The class is there twice: as a flavor, and under the name by which
/// clusterctl finds the class of a cluster.
const TEMPLATES: &[(&str, &str)] = &[
    (
        "cluster-template-aks.yaml",
        include_str!("../templates/cluster-template-aks.yaml"),
    ),
    (
        "cluster-template-aks-clusterclass.yaml",
        include_str!("../templates/clusterclass-aks.yaml"),
    ),
    (
        "cluster-template-aks-topology.yaml",
        include_str!("../templates/cluster-template-aks-topology.yaml"),
    ),
    (
        "clusterclass-aks.yaml",
        include_str!("../templates/clusterclass-aks.yaml"),
    ),
];

/// What CAPZ v1.21's manager takes beside the flags that all Cluster API managers share. Its Deployment goes on starting.
const CAPZ_FLAGS: &[ForeignFlag] = &[
    ForeignFlag::value("api-call-timeout"),
    ForeignFlag::value("azurecluster-concurrency"),
    ForeignFlag::value("azuremachine-concurrency"),
    ForeignFlag::value("azuremachinepool-concurrency"),
    ForeignFlag::value("azuremachinepoolmachine-concurrency"),
    ForeignFlag::value("bootstrap-config-gvk"),
    ForeignFlag::value("debouncing-timer"),
    ForeignFlag::value("disable-controllers-or-webhooks"),
    ForeignFlag::switch("enable-tracing"),
    ForeignFlag::value("reconcile-timeout"),
    ForeignFlag::value("reconciler-requeue"),
    ForeignFlag::value("service-reconcile-timeout"),
];

/// Its feature gates, and those of the Cluster API v1.10 it is built with.
const CAPZ_GATES: &[&str] = &[
    "AKS",
    "AKSResourceHealth",
    "APIServerILB",
    "ASOAPI",
    "ClusterResourceSet",
    "ClusterTopology",
    "EdgeZone",
    "KubeadmBootstrapFormatIgnition",
    "MachinePool",
    "MachineSetPreflightChecks",
    "MachineWaitForVolumeDetachConsiderVolumeAttachments",
    "PriorityQueue",
    "RuntimeSDK",
];

/// AKS clusters. Adds to the package `infrastructure-azure`, under the names that package has always had.
pub fn provider() -> Provider {
    with(&Access::default(), &Nodes::default())
}

/// The controllers alone, with clients of one's own for Azure and for workload clusters.
pub fn controllers(access: &Access, nodes: &Nodes) -> Vec<Registration> {
    let board = Board::default();
    vec![
        cluster::registration(),
        control_plane::registration(access.clone()),
        pool::registration(access.clone(), nodes.clone(), board.clone()),
        machine::registration(&board),
    ]
}

/// The same with clients of one's own for Azure and for workload clusters.
pub fn with(access: &Access, nodes: &Nodes) -> Provider {
    let mut package = Package::new(PackageKind::Infrastructure, "azure");
    package.name_prefix = Some("capz");
    package.cluster_role = Some("slipway");
    package.role_grants = vec![KUBEADM];
    package.crds = crds();
    package.rbac = RBAC.to_vec();
    package.admission = admission();
    // What `crates/azure` signs in with as a workload identity, at the path that the webhook of workload identities uses.
    package.pod_labels = vec![("azure.workload.identity/use", "true")];
    package.volumes = vec![json!({
        "name": "azure-identity-token",
        "projected": {"sources": [{"serviceAccountToken": {
            "audience": "api://AzureADTokenExchange",
            "expirationSeconds": 3600,
            "path": "azure-identity-token",
        }}]},
    })];
    package.volume_mounts = vec![json!({
        "name": "azure-identity-token", "mountPath": "/var/run/secrets/azure/tokens", "readOnly": true,
    })];
    package.environment = vec![EnvVar {
        name: "AZURE_FEDERATED_TOKEN_FILE".to_owned(),
        value: Some(TOKEN_FILE.to_owned()),
        ..EnvVar::default()
    }];
    package.conditions = conditions::described();
    package.controllers = controllers(access, nodes);
    package.templates = TEMPLATES.to_vec();
    let mut provider = Provider::new("aks");
    provider.insight = insight::insight();
    provider.packages = vec![package];
    provider.examples = vec![example::example()];
    provider.simulator = Some(example::simulator());
    provider.gates = vec![GATE];
    provider.foreign_flags = CAPZ_FLAGS;
    provider.foreign_gates = CAPZ_GATES;
    provider.metrics = |metrics| AzureMetrics::default().register(metrics);
    provider.flags = setup::flags();
    provider.flags.push(
        clap::Arg::new(POOL_WAIT_FLAG)
            .long(POOL_WAIT_FLAG)
            .num_args(1)
            .default_value("5m")
            .help("How long an AKS cluster waits for a system pool before it gets one of its own"),
    );
    provider
}
