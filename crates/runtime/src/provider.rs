//! One provider, one registration: the single value from which the manager runs a provider and from which
//! CRDs, ClusterRoles, webhook configurations and clusterctl components are rendered.

use std::fmt;

use k8s_openapi::{
    api::core::v1::EnvVar, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};

pub use slipway_insight::{ConditionType, Insight};

use crate::{RoleGrant, Rule, admission::Admission, conversion::Conversion, hook::Hook, metrics::Metrics};

/// The clusterctl type of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PackageKind {
    Infrastructure,
    Bootstrap,
    ControlPlane,
    RuntimeExtension,
    /// Not installed by clusterctl; ships in the Helm chart only.
    HelmOnly,
}

impl PackageKind {
    /// Those that clusterctl installs.
    pub const CLUSTERCTL: [Self; 4] = [
        Self::Infrastructure,
        Self::Bootstrap,
        Self::ControlPlane,
        Self::RuntimeExtension,
    ];

    /// clusterctl's own word for the kind, in its configuration and inventory.
    pub fn clusterctl_type(self) -> &'static str {
        match self {
            Self::Infrastructure => "InfrastructureProvider",
            Self::Bootstrap => "BootstrapProvider",
            Self::ControlPlane => "ControlPlaneProvider",
            Self::RuntimeExtension => "RuntimeExtensionProvider",
            Self::HelmOnly => "",
        }
    }

    /// The prefix of the package's identity and of its components file.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Infrastructure => "infrastructure",
            Self::Bootstrap => "bootstrap",
            Self::ControlPlane => "control-plane",
            Self::RuntimeExtension => "runtime-extension",
            Self::HelmOnly => "helm",
        }
    }
}

/// What the objects of a package are called where that does not follow from its prefix: a drop-in's are those of what it replaces,
/// because people, dashboards and tools know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    pub namespace: &'static str,
    /// The Deployment, its service account, its metrics Service and its disruption budget.
    pub workload: &'static str,
    pub container: &'static str,
    pub lease: &'static str,
    /// Of all its objects; its pods are selected by them.
    pub labels: &'static [(&'static str, &'static str)],
    /// Where metrics are read by plain HTTP, and where health is.
    pub metrics: NamedPort,
    pub health: NamedPort,
}

/// A port of a container, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedPort {
    pub name: &'static str,
    pub number: u16,
}

/// What is installed together: one clusterctl provider, one components file, one Deployment. Two Slipway
/// providers may add to the same package; the renderer joins them by identity.
pub struct Package {
    pub kind: PackageKind,
    /// The clusterctl name, e.g. `azure` in `infrastructure-azure`.
    pub name: &'static str,
    pub crds: Vec<CustomResourceDefinition>,
    pub rbac: Vec<Rule>,
    /// What managers of other packages need to work with its kinds.
    pub role_grants: Vec<RoleGrant>,
    pub admission: Vec<Admission>,
    pub conversion: Vec<Conversion>,
    pub hooks: Vec<Hook>,
    pub controllers: Vec<crate::controller::Registration>,
    /// What the names of rendered objects begin with; the identity if absent. A drop-in takes those of what it replaces, so that
    /// namespace, lease and objects are the ones that are there already.
    pub name_prefix: Option<&'static str>,
    /// Names of its objects that are somebody else's altogether.
    pub names: Option<Names>,
    /// Runs, and is enabled in the chart, only where it is named: it is nothing that whoever installs the others asked for.
    pub on_request: bool,
    /// What the manager's cluster role and its binding are called after the prefix; `manager` if absent. A drop-in takes
    /// another name than upstream's where that role is aggregated: clusterctl leaves it behind, and a role that is
    /// applied over it stays aggregated, without rules of its own.
    pub cluster_role: Option<&'static str>,
    /// Further arguments of the manager in the rendered Deployment. May hold `${VARIABLE:=default}`.
    pub arguments: Vec<String>,
    /// Environment variables of the manager in the rendered Deployment.
    pub environment: Vec<EnvVar>,
    /// Labels of the manager's Pods, beside those its Deployment selects them by.
    pub pod_labels: Vec<(&'static str, &'static str)>,
    /// Volumes of the manager's Pods, and where its container mounts them.
    pub volumes: Vec<serde_json::Value>,
    pub volume_mounts: Vec<serde_json::Value>,
    /// Further objects of the components file; namespaced ones are put into the package's namespace.
    pub objects: Vec<serde_json::Value>,
    /// The conditions of its kinds, for the reference.
    pub conditions: Vec<ConditionType>,
    /// Cluster templates and classes for `clusterctl generate cluster`, by file name (`cluster-template-FLAVOR.yaml`,
    /// `clusterclass-NAME.yaml`).
    pub templates: Vec<(&'static str, &'static str)>,
}

impl Package {
    pub fn new(kind: PackageKind, name: &'static str) -> Self {
        Self {
            kind,
            name,
            crds: Vec::new(),
            rbac: Vec::new(),
            role_grants: Vec::new(),
            admission: Vec::new(),
            conversion: Vec::new(),
            hooks: Vec::new(),
            controllers: Vec::new(),
            name_prefix: None,
            names: None,
            on_request: false,
            cluster_role: None,
            arguments: Vec::new(),
            environment: Vec::new(),
            pod_labels: Vec::new(),
            volumes: Vec::new(),
            volume_mounts: Vec::new(),
            objects: Vec::new(),
            conditions: Vec::new(),
            templates: Vec::new(),
        }
    }

    /// `infrastructure-azure`, `bootstrap-k3s`, …; what clusterctl has no word for goes by its name alone.
    pub fn identity(&self) -> String {
        match self.kind {
            PackageKind::HelmOnly => self.name.to_owned(),
            kind => format!("{}-{}", kind.prefix(), self.name),
        }
    }

    /// What the names of its rendered objects begin with.
    pub fn prefix(&self) -> String {
        self.name_prefix.map_or_else(|| self.identity(), str::to_owned)
    }
}

impl fmt::Debug for Package {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Package")
            .field("identity", &self.identity())
            .finish_non_exhaustive()
    }
}

/// How mature a feature is, and so whether it is on unless the user says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    Stable,
}

/// A feature a user can switch with `--feature-gates=Name=true`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    pub name: &'static str,
    pub stage: Stage,
    pub enabled_by_default: bool,
    pub help: &'static str,
}

/// A flag of the manager that a provider replaces, which means nothing here: accepted, so that a Deployment with it still
/// starts, and warned about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignFlag {
    pub name: &'static str,
    takes_value: bool,
    /// The flag of ours that does what it did.
    pub instead: Option<&'static str>,
}

impl ForeignFlag {
    /// `--name VALUE`.
    pub const fn value(name: &'static str) -> Self {
        Self {
            name,
            takes_value: true,
            instead: None,
        }
    }

    /// `--name` or `--name=BOOL`.
    pub const fn switch(name: &'static str) -> Self {
        Self {
            name,
            takes_value: false,
            instead: None,
        }
    }

    pub const fn instead(self, flag: &'static str) -> Self {
        Self {
            instead: Some(flag),
            ..self
        }
    }

    pub(crate) fn argument(self) -> clap::Arg {
        let argument = clap::Arg::new(self.name)
            .long(self.name)
            .hide(true)
            .action(clap::ArgAction::Append);
        if self.takes_value {
            argument.num_args(1)
        } else {
            argument
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
        }
    }
}

/// A subcommand a provider adds to the `slipway` binary (`slipway simulate`, …).
pub struct Subcommand {
    pub command: clap::Command,
    /// Runs to the process's exit code.
    pub run: fn(&clap::ArgMatches) -> std::process::ExitCode,
}

/// Something `slipway up` applies and shows becoming ready, for people who look before they read.
pub struct Example {
    /// What it is, in one line.
    pub title: &'static str,
    /// The objects, applied in this order. A text `$said/a/0` in them is what the provider's simulator said at the pointer `/a/0`.
    pub objects: Vec<serde_json::Value>,
    /// The condition that each of these objects (by index) comes to have.
    pub becomes: Vec<(usize, &'static str)>,
    /// Kinds (group, version, kind) whose objects are shown meanwhile, as what they say of being ready changes.
    pub follows: &'static [[&'static str; 3]],
}

/// What a simulator may need of what runs beside it.
pub struct Surroundings<'a> {
    /// The kubeconfig of an API server for the clusters that it simulates; where it asks for one.
    pub workload: &'a std::path::Path,
    /// The kubeconfig of the management cluster.
    pub management: &'a std::path::Path,
    /// This program.
    pub slipway: &'a std::path::Path,
}

/// A program that simulates a cloud on this machine. `slipway up` starts it before the manager, where it is built beside
/// this program; it prints one line of JSON when it is ready and stops on SIGTERM.
pub struct Simulator {
    pub program: &'static str,
    /// It needs an API server for the clusters that it simulates.
    pub needs_workload: bool,
    pub arguments: fn(&Surroundings<'_>) -> Vec<String>,
    /// The line it printed, and the folder that holds the volumes of the manager's Pod, give what the manager's
    /// environment needs to reach it.
    pub environment: fn(&serde_json::Value, &std::path::Path) -> Vec<(&'static str, String)>,
    /// What the line gives the manager as arguments.
    pub flags: fn(&serde_json::Value) -> Vec<String>,
    /// Addresses for people, from the same line: what is there, and where.
    pub addresses: fn(&serde_json::Value) -> Vec<(&'static str, String)>,
}

/// Everything one provider brings.
pub struct Provider {
    /// The name in `--providers=…`.
    pub name: &'static str,
    pub packages: Vec<Package>,
    /// Flags of `slipway manager` that only this provider reads.
    pub flags: Vec<clap::Arg>,
    pub gates: Vec<Gate>,
    /// Flags and feature gates of the manager it replaces that mean nothing here.
    pub foreign_flags: &'static [ForeignFlag],
    pub foreign_gates: &'static [&'static str],
    pub subcommands: Vec<Subcommand>,
    pub examples: Vec<Example>,
    /// What the examples run against.
    pub simulator: Option<Simulator>,
    /// How its kinds are shown to people, and what the reasons in their conditions mean.
    pub insight: Insight,
    /// Registers the metrics that only this provider counts, for the reference.
    pub metrics: fn(&Metrics),
}

impl Provider {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            packages: Vec::new(),
            flags: Vec::new(),
            gates: Vec::new(),
            foreign_flags: &[],
            foreign_gates: &[],
            subcommands: Vec::new(),
            examples: Vec::new(),
            simulator: None,
            insight: Insight::default(),
            metrics: |_| {},
        }
    }
}

/// What all of these say of kinds, conditions and reasons.
pub fn catalogue<'a>(providers: impl IntoIterator<Item = &'a Provider>) -> slipway_insight::Catalogue {
    let (mut insights, mut conditions) = (Vec::new(), Vec::new());
    for provider in providers {
        insights.push(provider.insight.clone());
        conditions.extend(
            provider
                .packages
                .iter()
                .flat_map(|package| package.conditions.clone()),
        );
    }
    slipway_insight::Catalogue::new(insights, conditions)
}

impl fmt::Debug for Provider {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Provider")
            .field("name", &self.name)
            .field("packages", &self.packages)
            .finish_non_exhaustive()
    }
}
