//! The registration. Whoever installs the other providers did not ask for this one, so it runs only where it is named:
//! `--providers=edge`.

use std::sync::Arc;

use serde_json::json;
use slipway_capi::names::condition as names;
use slipway_runtime::{
    Clock, Package, PackageKind, Provider, Rule,
    admission::{Admission, Operation},
    provider::ConditionType,
};

use crate::{
    api::{
        self, ClusterUpgrade, EdgeCluster, EdgeClusterTemplate, EdgeHost, EdgeMachine, EdgeMachineTemplate,
        GROUP, HostImage, INFRASTRUCTURE_GROUP, NodeUpgrade, UpgradePolicy,
    },
    cluster, cluster_upgrade, command, example, fleet, hooks, host, host_image,
    hosts::{
        EveryHost, Hosts, Platform,
        moc::{
            MocHosts,
            clouds::{self, SecretClouds},
        },
        native::NativeHosts,
    },
    insight, machine, node_upgrade, upgrade_policy,
};

const WRITES: &[Operation] = &[Operation::Create, Operation::Update];

const RBAC: &[Rule] = &[
    Rule::new(GROUP, &["edgehosts"], &["list", "patch", "watch"]),
    Rule::new(GROUP, &["edgehosts/status"], &["patch"]),
    Rule::new(
        INFRASTRUCTURE_GROUP,
        &["edgemachines"],
        &["get", "list", "patch", "watch"],
    ),
    Rule::new(
        INFRASTRUCTURE_GROUP,
        &["edgeclusters", "edgemachinetemplates"],
        &["list", "watch"],
    ),
    // The endpoint of a virtual address, and who is the first to hold it.
    Rule::new(INFRASTRUCTURE_GROUP, &["edgeclusters"], &["patch"]),
    Rule::new(
        INFRASTRUCTURE_GROUP,
        &[
            "edgeclusters/status",
            "edgemachines/status",
            "edgemachinetemplates/status",
        ],
        &["patch"],
    ),
    Rule::new("cluster.x-k8s.io", &["clusters", "machines"], &["list", "watch"]),
    // What a ClusterUpgrade reads and writes. Control planes are of any kind.
    Rule::new(
        GROUP,
        &["clusterupgrades", "nodeupgrades", "upgradepolicies"],
        &["list", "watch"],
    ),
    Rule::new(GROUP, &["clusterupgrades"], &["patch"]),
    Rule::new(GROUP, &["clusterupgrades/status"], &["patch"]),
    Rule::new(
        "cluster.x-k8s.io",
        &["machinedeployments"],
        &["list", "patch", "watch"],
    ),
    Rule::new("cluster.x-k8s.io", &["clusters"], &["get", "patch"]),
    Rule::new("controlplane.cluster.x-k8s.io", &["*"], &["get", "patch"]),
    Rule::new("apiextensions.k8s.io", &["customresourcedefinitions"], &["get"]),
    Rule::new(INFRASTRUCTURE_GROUP, &["edgemachinetemplates"], &["create"]),
    // A Machine whose host reboots is kept from health checks.
    Rule::new("cluster.x-k8s.io", &["machines"], &["patch"]),
    Rule::new(GROUP, &["hostimages"], &["list", "watch"]),
    Rule::new(GROUP, &["hostimages", "nodeupgrades"], &["patch"]),
    Rule::new(
        GROUP,
        &[
            "hostimages/status",
            "nodeupgrades/status",
            "upgradepolicies/status",
        ],
        &["patch"],
    ),
    // Bootstrap data and the credentials of registries, when they are due, and the kubeconfig of the cluster whose node is upgraded.
    Rule::new("", &["secrets"], &["get"]),
    Rule::new("events.k8s.io", &["events"], &["create", "patch"]),
];

/// Of the runtime extension: what an answer is given from, and the upgrades that it asks for.
const HOOK_RBAC: &[Rule] = &[
    Rule::new("cluster.x-k8s.io", &["machines"], &["get"]),
    Rule::new(INFRASTRUCTURE_GROUP, &["edgemachines"], &["get"]),
    Rule::new(GROUP, &["nodeupgrades"], &["create", "delete", "list"]),
    Rule::new(GROUP, &["clusterupgrades"], &["list"]),
    Rule::new(GROUP, &["upgradepolicies"], &["get"]),
];

/// The fleet's CA and the records of join tokens. Objects that are created cannot be named.
const FLEET_RULE: Rule = Rule::new("", &["secrets"], &["create", "patch"]);
/// What the Service of hosts selects the manager's Pods by.
const HOSTS_LABEL: &str = "edge.slipway.dev/hosts";

/// The infrastructure provider over these hosts.
pub fn infrastructure(hosts: Arc<dyn Hosts>) -> Package {
    infrastructure_of(&Platform::new(hosts))
}

/// The same with workload clusters that are connected to in another way.
pub fn infrastructure_of(platform: &Platform) -> Package {
    let mut package = Package::new(PackageKind::Infrastructure, "edge");
    package.on_request = true;
    package.crds = api::infrastructure();
    package.crds.extend(api::hosts());
    package.crds.extend(api::upgrades());
    package.crds.extend(api::images());
    package.rbac = RBAC.to_vec();
    package.admission = vec![
        Admission::validating::<EdgeCluster>(WRITES, cluster::admit::validate),
        Admission::validating::<EdgeClusterTemplate>(WRITES, cluster::admit::validate_template),
        Admission::validating::<EdgeMachine>(WRITES, machine::admit::validate),
        Admission::validating::<EdgeMachineTemplate>(WRITES, machine::admit::validate_template),
        Admission::validating::<EdgeHost>(
            &[Operation::Create, Operation::Update, Operation::Delete],
            host::admit::validate,
        ),
        Admission::validating::<ClusterUpgrade>(WRITES, cluster_upgrade::admit::validate),
        Admission::validating::<HostImage>(WRITES, host_image::admit::validate),
        Admission::validating::<NodeUpgrade>(WRITES, node_upgrade::admit::validate),
        Admission::validating::<UpgradePolicy>(WRITES, upgrade_policy::admit::validate),
    ];
    package.controllers = vec![
        host::registration(platform),
        cluster::registration(),
        machine::registration(platform),
        machine::template::registration(),
        cluster_upgrade::registration(),
        node_upgrade::registration(platform),
        host_image::registration(platform),
        upgrade_policy::registration(),
    ];
    package.conditions = conditions();
    package
}

/// The runtime extension. It needs the definitions of the infrastructure provider, and nobody who leads.
pub fn extension() -> Package {
    let mut package = Package::new(PackageKind::RuntimeExtension, "edge");
    package.on_request = true;
    package.rbac = HOOK_RBAC.to_vec();
    package.hooks = hooks::serve::hooks();
    package
}

/// Everything edge brings.
pub fn provider() -> Provider {
    let hosts: Arc<NativeHosts> = Arc::default();
    let clouds: Arc<SecretClouds> = Arc::default();
    let every = EveryHost {
        native: hosts.clone(),
        moc: Arc::new(MocHosts::new(clouds.clone(), Clock::system())),
    };
    let mut package = infrastructure(Arc::new(every));
    package.controllers.insert(0, fleet::registration(&hosts));
    package.controllers.insert(1, clouds::registration(&clouds));
    package.objects = vec![service()];
    package.pod_labels = vec![(HOSTS_LABEL, "true")];
    package.rbac.push(FLEET_RULE);
    let mut provider = Provider::new("edge");
    provider.insight = insight::insight();
    provider.packages = vec![package, extension()];
    provider.gates = vec![hooks::serve::PLAN_GATE];
    provider.flags = flags();
    provider.examples = example::examples();
    provider.simulator = Some(example::simulator());
    provider.subcommands = vec![command::subcommand(), hooks::command::subcommand()];
    provider
}

/// The Service by which hosts find the manager. Only who leads has the port open.
fn service() -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "slipway-edge-hosts"},
        "spec": {
            "selector": {HOSTS_LABEL: "true"},
            "ports": [{"name": "hosts", "port": 9445, "targetPort": 9445}],
        },
    })
}

fn flags() -> Vec<clap::Arg> {
    let flag = |name: &'static str, value: &'static str, help: &'static str| {
        clap::Arg::new(name).long(name).value_name(value).help(help)
    };
    vec![
        flag(
            fleet::ADDRESS_FLAG,
            "ADDRESS",
            "Edge: where hosts join and connect, as host:port",
        )
        .default_value(fleet::DEFAULT_ADDRESS),
        flag(
            fleet::NAMESPACE_FLAG,
            "NAMESPACE",
            "Edge: the namespace of the fleet's CA and join tokens; the manager's own if absent",
        ),
    ]
}

const PAUSED: (&str, &str) = (
    names::PAUSED,
    "it or its Cluster is paused, and nothing is done for it",
);

fn conditions() -> Vec<ConditionType> {
    let of = |kind: &'static str, found: &[(&'static str, &'static str)]| -> Vec<ConditionType> {
        found
            .iter()
            .map(|&(name, meaning)| ConditionType { kind, name, meaning })
            .collect()
    };
    [
        of(
            "EdgeHost",
            &[
                (names::READY, "its agent answers, and nobody works on it"),
                (host::status::REACHABLE, "its agent answers"),
                (
                    host::status::CLAIMED,
                    "an EdgeMachine has it, or did and it is being wiped; Unknown where that machine is missing",
                ),
                PAUSED,
            ],
        ),
        of(
            "EdgeCluster",
            &[(names::READY, "the endpoint of its API is known"), PAUSED],
        ),
        of(
            "EdgeMachine",
            &[
                (names::READY, "its host has run its bootstrap data"),
                (machine::status::HOST_CLAIMED, "a host is its own"),
                (
                    machine::status::BOOTSTRAPPED,
                    "its host has run its bootstrap data",
                ),
                PAUSED,
            ],
        ),
        of(
            "HostImage",
            &[(names::READY, "every host that is selected has every image"), PAUSED],
        ),
        of(
            "NodeUpgrade",
            &[
                (names::READY, "the host runs the image, and its node is ready"),
                (
                    node_upgrade::status::SETTLED,
                    "it has ended, and nothing of it is left on host, node and machine",
                ),
                PAUSED,
            ],
        ),
        of(
            "ClusterUpgrade",
            &[
                (names::READY, "every machine runs the version"),
                (
                    cluster_upgrade::status::HALTED,
                    "machines that went back from an image stop it, and its message names them",
                ),
                PAUSED,
            ],
        ),
        of(
            "UpgradePolicy",
            &[(names::READY, "upgrades can go by it"), PAUSED],
        ),
    ]
    .concat()
}
