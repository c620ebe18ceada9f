//! The registration: what this provider brings to the manager and to its manifests.

use std::sync::Arc;

use futures::FutureExt;
use serde_json::{Value, json};
use slipway_azure::{
    credential::{Mode, NAMESPACE_ACCOUNT, OPERATOR_ACCOUNT},
    workload::nodes::Nodes,
};
use slipway_runtime::{
    Context, Package, PackageKind, Provider, RoleGrant, Rule,
    command::ASKER_ACCOUNT,
    controller::Registration,
    provider::{Gate, Stage},
};

use crate::{
    access::{Access, IDENTITIES_FLAG},
    adopt,
    api::{GROUP, crd::crds},
    cluster, conditions, control_plane, diff,
    engine::{FLAG, Wanted},
    example, insight, migrate, pool,
};

/// Switches this API off.
pub const GATE: &str = "ASOAPI";

const PATCH: &[&str] = &["list", "watch", "patch"];
/// What is done with an object of Azure Service Operator.
const OPERATED: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];
/// A ClusterRole with this label gives the manager rights to further kinds of Azure Service Operator.
const FURTHER_KINDS: &str = "cluster.x-k8s.io/aggregate-to-capz-manager";
/// The role that collects them, and its binding.
const COLLECTED: (&str, &str) = (
    "capz-slipway-further-kinds-role",
    "capz-slipway-further-kinds-rolebinding",
);

const RBAC: &[Rule] = &[
    Rule::new("cluster.x-k8s.io", &["clusters"], Rule::READ),
    // Where something else scales a pool, its MachinePool carries its count.
    Rule::new("cluster.x-k8s.io", &["machinepools"], PATCH),
    Rule::new(
        GROUP,
        &[
            "azureasomanagedclusters",
            "azureasomanagedcontrolplanes",
            "azureasomanagedmachinepools",
        ],
        PATCH,
    ),
    Rule::new(
        GROUP,
        &[
            "azureasomanagedclusters/status",
            "azureasomanagedcontrolplanes/status",
            "azureasomanagedmachinepools/status",
        ],
        &["patch"],
    ),
    // Credentials are read, kubeconfigs and other values are written.
    Rule::new(
        "",
        &["secrets"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    Rule::new("", &["configmaps"], &["get", "create", "patch"]),
    // A namespace signs in with a ServiceAccount of its own. What was federated with Azure Service Operator signs in as it did.
    Rule::new("", &["serviceaccounts/token"], &["create"]).named(&[NAMESPACE_ACCOUNT, OPERATOR_ACCOUNT]),
    // Where Azure Service Operator runs, and what it writes, is told by its kinds, its lease and its objects.
    Rule::new("apiextensions.k8s.io", &["customresourcedefinitions"], &["get"]),
    Rule::new("coordination.k8s.io", &["leases"], &["list"]),
    // The kinds that come with Cluster API Provider Azure. For others a role is labelled (FURTHER_KINDS).
    Rule::new(
        "containerservice.azure.com",
        &[
            "fleetsmembers",
            "maintenanceconfigurations",
            "managedclusters",
            "managedclustersagentpools",
        ],
        OPERATED,
    ),
    Rule::new("kubernetesconfiguration.azure.com", &["extensions"], OPERATED),
    Rule::new(
        "network.azure.com",
        &[
            "bastionhosts",
            "natgateways",
            "privateendpoints",
            "virtualnetworks",
            "virtualnetworkssubnets",
        ],
        OPERATED,
    ),
    Rule::new("resources.azure.com", &["resourcegroups"], OPERATED),
    Rule::new("events.k8s.io", &["events"], &["create", "patch"]),
];

/// kubeadm's bootstrap provider asks a cluster's control plane for its version, for nodes that are not AKS's own.
const KUBEADM: RoleGrant = RoleGrant {
    name: "kubeadm-bootstrap-aso",
    namespace: "capi-kubeadm-bootstrap-system",
    rules: &[Rule::new(GROUP, &["azureasomanagedcontrolplanes"], Rule::READ)],
};

/// What `clusterctl generate cluster` offers. The class is there twice: as a flavor, and under the name by which clusterctl finds
/// the class of a cluster.
const TEMPLATES: &[(&str, &str)] = &[
    (
        "cluster-template-aks-aso.yaml",
        include_str!("../templates/cluster-template-aks-aso.yaml"),
    ),
    (
        "cluster-template-aks-aso-clusterclass.yaml",
        include_str!("../templates/clusterclass-aks-aso.yaml"),
    ),
    (
        "cluster-template-aks-aso-topology.yaml",
        include_str!("../templates/cluster-template-aks-aso-topology.yaml"),
    ),
    (
        "clusterclass-aks-aso.yaml",
        include_str!("../templates/clusterclass-aks-aso.yaml"),
    ),
];

/// Whose token asks the manager: whoever may have one may ask.
fn asker() -> [Value; 3] {
    const ROLE: &str = "capz-slipway-asker-role";
    let metadata = |name: &str| json!({"name": name});
    [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(ASKER_ACCOUNT)}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata(ROLE),
            "rules": [
                {"nonResourceURLs": ["/debug/diff/*", "/debug/ask/*"], "verbs": ["get", "post"]},
                {"nonResourceURLs": ["/debug/plans", "/debug/plans/*"], "verbs": ["get"]},
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": metadata("capz-slipway-asker-rolebinding"),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
            "subjects": [{"kind": "ServiceAccount", "name": ASKER_ACCOUNT, "namespace": "capz-system"}],
        }),
    ]
}

/// Inline Azure resources. Adds to the package `infrastructure-azure`.
pub fn provider() -> Provider {
    with(&Access::default(), &Nodes::default())
}

/// The controllers alone, with clients of one's own for Azure and for workload clusters.
pub fn controllers(access: &Access, nodes: &Nodes) -> Vec<Registration> {
    vec![
        cluster::registration(access.clone()),
        adopt::read::answering(access.clone(), control_plane::registration(access.clone())),
        pool::registration(access.clone(), nodes.clone()),
    ]
}

/// Runs a controller only where the gate is on.
fn gated(inner: Registration) -> Registration {
    Registration {
        name: inner.name,
        run: Arc::new(move |context: Context| {
            let run = Arc::clone(&inner.run);
            async move {
                if context.settings.gates.enabled(GATE) {
                    return run(context).await;
                }
                context.shutdown.cancelled().await;
                Ok(())
            }
            .boxed()
        }),
    }
}

/// The same with clients of one's own for Azure and for workload clusters.
pub fn with(access: &Access, nodes: &Nodes) -> Provider {
    let mut package = Package::new(PackageKind::Infrastructure, "azure");
    package.name_prefix = Some("capz");
    package.cluster_role = Some("slipway");
    package.crds = crds();
    package.rbac = RBAC.to_vec();
    package.role_grants = vec![KUBEADM];
    package.conditions = conditions::described();
    package.controllers = controllers(access, nodes).into_iter().map(gated).collect();
    package.arguments = vec![format!("--feature-gates={GATE}=${{EXP_ASO_API:=true}}")];
    package.templates = TEMPLATES.to_vec();
    // clusterctl takes the one of the package before away, and identities are federated with it.
    package.objects = vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": OPERATOR_ACCOUNT}}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": COLLECTED.0},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {(FURTHER_KINDS): "true"}}]},
            "rules": [],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": COLLECTED.1},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": COLLECTED.0},
            "subjects": [{"kind": "ServiceAccount", "name": "capz-manager", "namespace": "capz-system"}],
        }),
    ];
    package.objects.extend(asker());
    let mut provider = Provider::new("aso");
    provider.insight = insight::insight();
    provider.packages = vec![package];
    provider.examples = vec![example::example()];
    provider.subcommands = vec![diff::subcommand(), adopt::subcommand(), migrate::subcommand()];
    provider.flags = vec![
        clap::Arg::new(FLAG)
            .long(FLAG)
            .num_args(1)
            .value_parser(Wanted::NAMES)
            .help(
                "Who writes inline resources in Azure: auto (Azure Service Operator where it is installed and runs, this manager \
                 elsewhere), native (this manager) or aso; the annotation slipway.dev/azure-engine of an object goes before it",
            ),
        clap::Arg::new(IDENTITIES_FLAG)
            .long(IDENTITIES_FLAG)
            .num_args(1)
            .value_parser(Mode::NAMES)
            .help(
                "What inline resources sign in with where their Secret proves nothing: strict (a ServiceAccount of their \
                 namespace) or relaxed (the manager's); the word of aso-controller-settings if absent, else strict",
            ),
    ];
    provider.gates = vec![Gate {
        name: GATE,
        stage: Stage::Beta,
        enabled_by_default: true,
        help: "AzureASOManagedCluster, AzureASOManagedControlPlane and AzureASOManagedMachinePool",
    }];
    provider
}
