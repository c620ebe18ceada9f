//! Holds the rules on who may know whom (docs/architecture.md) over `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{CargoOpt, DependencyKind, MetadataCommand};

/// Pure crates: data in, data out.
const PURE: &[&str] = &["slipway-insight", "slipway-packing", "slipway-slots"];

/// What a pure crate may not reach, however far down.
const IMPURE: &[&str] = &[
    "tokio",
    "kube",
    "kube-client",
    "hyper",
    "reqwest",
    "mio",
    "azure_core",
    "slipway-runtime",
];

/// Provider crates: they know `capi`, `runtime` and their engine, never each other.
const PROVIDERS: &[&str] = &[
    "slipway-aks",
    "slipway-aso",
    "slipway-autoscaler",
    "slipway-edge",
    "slipway-k3s",
];

/// Crates for tests and local runs: never linked into what ships.
const NOT_SHIPPED: &[&str] = &[
    "slipway-apiserver-sim",
    "slipway-azure-sim",
    "slipway-bench-cache",
    "slipway-bench-runtime",
    "slipway-edge-sim",
    "slipway-hosts-sim",
    "slipway-k3s-sim",
    "slipway-kit",
    "slipway-moc-sim",
    "slipway-testbed",
    "slipway-tests",
    "slipway-xtask",
];

/// Only these may name the Azure SDK: the engine, and the kit that stands in for its transport.
const AZURE: &[&str] = &["slipway-azure", "slipway-kit"];

struct Graph {
    direct: BTreeMap<String, BTreeSet<String>>,
    workspace: BTreeSet<String>,
}

/// Normal (not dev, not build) dependencies of every package, by name.
fn graph() -> Graph {
    let metadata = MetadataCommand::new()
        .features(CargoOpt::AllFeatures)
        // Only what is built here: packages of other platforms may not have been downloaded.
        .other_options(
            [
                "--offline",
                "--locked",
                "--filter-platform=x86_64-unknown-linux-gnu",
            ]
            .map(String::from),
        )
        .exec()
        .expect("cargo metadata answers");
    let names: BTreeMap<_, _> = metadata
        .packages
        .iter()
        .map(|package| (&package.id, package.name.to_string()))
        .collect();
    let resolve = metadata.resolve.as_ref().expect("metadata resolves");
    let mut direct = BTreeMap::<String, BTreeSet<String>>::new();
    for node in &resolve.nodes {
        let entry = direct.entry(names[&node.id].clone()).or_default();
        for dependency in &node.deps {
            if dependency
                .dep_kinds
                .iter()
                .any(|kind| kind.kind == DependencyKind::Normal)
            {
                entry.insert(names[&dependency.pkg].clone());
            }
        }
    }
    let workspace = metadata
        .workspace_members
        .iter()
        .map(|id| names[id].clone())
        .collect();
    Graph { direct, workspace }
}

impl Graph {
    /// Everything `root` reaches.
    fn reach(&self, root: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut left = vec![root.to_owned()];
        while let Some(name) = left.pop() {
            for next in self.direct.get(&name).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    left.push(next.clone());
                }
            }
        }
        seen
    }

    fn members(&self, names: &[&str]) -> Vec<String> {
        names
            .iter()
            .filter(|name| self.workspace.contains(**name))
            .map(|name| (*name).to_owned())
            .collect()
    }
}

#[test]
fn pure_crates_reach_no_runtime_and_no_input_or_output() {
    let graph = graph();
    for pure in graph.members(PURE) {
        let reached = graph.reach(&pure);
        let impure: Vec<_> = IMPURE.iter().filter(|name| reached.contains(**name)).collect();
        assert!(impure.is_empty(), "{pure} is pure but reaches {impure:?}");
    }
}

#[test]
fn providers_never_know_each_other() {
    let graph = graph();
    for provider in graph.members(PROVIDERS) {
        let reached = graph.reach(&provider);
        let others: Vec<_> = PROVIDERS
            .iter()
            .filter(|other| **other != provider && reached.contains(**other))
            .collect();
        assert!(
            others.is_empty(),
            "{provider} knows {others:?}: what two providers need moves down"
        );
    }
}

#[test]
fn nothing_made_for_tests_is_linked_into_what_ships() {
    let graph = graph();
    for shipped in graph.members(&["slipway", "slipway-agent"]) {
        let reached = graph.reach(&shipped);
        let foreign: Vec<_> = NOT_SHIPPED
            .iter()
            .filter(|name| reached.contains(**name))
            .collect();
        assert!(foreign.is_empty(), "{shipped} links {foreign:?}");
    }
}

/// The agent is a program of its own: beside it only simulated hosts and what measures agents know it.
#[test]
fn only_simulated_hosts_and_benches_know_the_agent() {
    let graph = graph();
    let knowing: Vec<_> = graph
        .workspace
        .iter()
        .filter(|member| graph.direct[*member].contains("slipway-agent"))
        .filter(|member| !["slipway-hosts-sim", "slipway-moc-sim"].contains(&member.as_str()))
        .filter(|member| !member.starts_with("slipway-bench-"))
        .collect();
    assert!(knowing.is_empty(), "{knowing:?} know slipway-agent");
}

/// The protocol is all that managers know of hosts, and the protocol knows no host.
#[test]
fn managers_and_the_protocol_do_not_know_the_agent() {
    let graph = graph();
    for member in graph.members(&["slipway", "slipway-agent-api", "slipway-edge"]) {
        assert!(
            !graph.reach(&member).contains("slipway-agent"),
            "{member} knows slipway-agent: what both need belongs to slipway-agent-api"
        );
    }
    let known: Vec<_> = graph
        .reach("slipway-agent-api")
        .into_iter()
        .filter(|name| graph.workspace.contains(name))
        .collect();
    assert_eq!(known, ["slipway-slots"], "the protocol knows pure crates only");
}

#[test]
fn only_the_azure_engine_names_the_azure_sdk() {
    let graph = graph();
    for member in &graph.workspace {
        let names_sdk = graph.direct[member].iter().any(|name| name.starts_with("azure_"));
        assert!(
            !names_sdk || AZURE.contains(&member.as_str()),
            "{member} names the Azure SDK directly"
        );
    }
}

#[test]
fn the_runtime_knows_no_provider() {
    let graph = graph();
    let reached = graph.reach("slipway-runtime");
    let known: Vec<_> = reached
        .iter()
        .filter(|name| graph.workspace.contains(*name))
        .collect();
    // How kinds are shown is data of a registration.
    assert_eq!(known, ["slipway-insight"], "slipway-runtime knows {known:?}");
}

#[test]
fn providers_do_not_render() {
    let graph = graph();
    for provider in graph.members(PROVIDERS) {
        assert!(
            !graph.reach(&provider).contains("slipway-render"),
            "{provider} reaches slipway-render: it registers, and others render"
        );
    }
}
