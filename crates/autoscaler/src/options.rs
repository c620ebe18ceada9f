//! What the user set for the autoscaler: its flags, with the environment variables by which Karpenter is set, and those that
//! Cluster Autoscaler's users know.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Arg, ArgAction, builder::ValueParser};
use slipway_packing::model::{MinValuesPolicy, MinimumSavings, PackingPolicy, PreferencePolicy};
use slipway_runtime::{
    Settings,
    manager::{duration_flag, switch},
    provider::{Gate, Stage},
};

use crate::{batch, instances::Scope, repair, startup::StartupTaints};

const CLUSTER_NAME: &str = "cluster-name";
const CLUSTER_NAMESPACE: &str = "cluster-namespace";
const DRY_RUN: &str = "autoscaler-dry-run";
const BATCH_IDLE: &str = "batch-idle-duration";
const BATCH_MOST: &str = "batch-max-duration";
const PREFERENCES: &str = "preference-policy";
const MIN_VALUES: &str = "min-values-policy";
const STARTUP_TAINTS: &str = "startup-taints";
const PACKING: &str = "packing";
const MINIMUM_SAVINGS: &str = "consolidation-minimum-savings";
const BUSY_DESTINATIONS: &str = "consolidation-onto-busy-nodes";
const REPAIR_POLICIES: &str = "repair-policies";
pub(crate) const MANAGEMENT_KUBECONFIG: &str = "cluster-api-kubeconfig";
pub(crate) const MANAGEMENT_URL: &str = "cluster-api-url";
pub(crate) const MANAGEMENT_TOKEN: &str = "cluster-api-token";
pub(crate) const MANAGEMENT_CA: &str = "cluster-api-certificate-authority-data";
pub(crate) const MANAGEMENT_SKIP_VERIFY: &str = "cluster-api-skip-tls-verify";

/// Karpenter's feature gates, as far as there is something to switch.
pub const GATES: &[Gate] = &[
    gate(
        "NodeRepair",
        false,
        "Autoscaler: unhealthy nodes are replaced, by the repair policies",
    ),
    gate(
        "ReservedCapacity",
        true,
        "Autoscaler: capacity that is reserved is planned with",
    ),
    gate(
        "SpotToSpotConsolidation",
        false,
        "Autoscaler: spot nodes are replaced by cheaper spot nodes",
    ),
    gate(
        "StaticCapacity",
        false,
        "Autoscaler: NodePools with spec.replicas hold so many nodes, whatever pods there are",
    ),
    gate(
        "TerminateFirstDrift",
        false,
        "Autoscaler: a drifted node goes first where its replacement cannot come before it",
    ),
    gate(
        "TerminateFirstRepair",
        false,
        "Autoscaler: an unhealthy node goes first where its replacement cannot come before it",
    ),
];
/// Those of Karpenter's that switch nothing here.
pub const FOREIGN_GATES: &[&str] = &["NodeOverlay", "CapacityBuffer", "PodDeletionCostManagement"];

const fn gate(name: &'static str, is_on: bool, help: &'static str) -> Gate {
    Gate {
        name,
        stage: if is_on { Stage::Beta } else { Stage::Alpha },
        enabled_by_default: is_on,
        help,
    }
}

/// Which of them are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    pub node_repair: bool,
    pub reserved_capacity: bool,
    pub spot_to_spot: bool,
    pub static_capacity: bool,
    pub terminate_first_drift: bool,
    pub terminate_first_repair: bool,
}

impl Gates {
    fn of(settings: &Settings) -> Self {
        let on = |name: &str| settings.gates.enabled(name);
        Gates {
            node_repair: on("NodeRepair"),
            reserved_capacity: on("ReservedCapacity"),
            spot_to_spot: on("SpotToSpotConsolidation"),
            static_capacity: on("StaticCapacity"),
            terminate_first_drift: on("TerminateFirstDrift"),
            terminate_first_repair: on("TerminateFirstRepair"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Whose objects a NodeClass means that names no Cluster or namespace.
    pub scope: Scope,
    /// Decide, report, and write nothing.
    pub is_dry_run: bool,
    pub batch: batch::Limits,
    pub preferences: PreferencePolicy,
    pub min_values: MinValuesPolicy,
    pub startup_taints: StartupTaints,
    pub gates: Gates,
    pub packing: PackingPolicy,
    pub minimum_savings: MinimumSavings,
    /// Nodes inside `consolidateAfter` are places for pods of others.
    pub busy_destinations: bool,
    /// Where the repair policies are, if not Karpenter's usual ones.
    pub repair_policies: Option<PathBuf>,
    /// `CAPI_GROUP`: the group of the annotations that follow it.
    pub group: String,
    /// `CAPI_SCALE_ZERO_DEFAULT_ARCH`.
    pub default_architecture: String,
}

/// The flags, for `slipway manager`. Where Karpenter or its Cluster API provider has a setting, it has their name here too.
pub fn flags() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let mut flags = vec![
        text(
            CLUSTER_NAME,
            "NAME",
            "Autoscaler: the Cluster whose objects nodes come from, where a ClusterAPINodeClass names none; every Cluster if absent",
        ),
        text(
            CLUSTER_NAMESPACE,
            "NAMESPACE",
            "Autoscaler: the namespace of those objects, where a ClusterAPINodeClass names none; every namespace if absent",
        ),
        switch(
            DRY_RUN,
            "Autoscaler: decide and report, and write nothing; what exists is left alone",
        ),
        duration_flag(
            BATCH_IDLE,
            "1s",
            "Autoscaler: pods are planned for when none has come for this long",
        )
        .env("BATCH_IDLE_DURATION"),
        duration_flag(
            BATCH_MOST,
            "10s",
            "Autoscaler: pods are planned for this long after the first came, at the latest",
        )
        .env("BATCH_MAX_DURATION"),
        text(
            PREFERENCES,
            "POLICY",
            "Autoscaler: Respect or Ignore what pods prefer and do not require",
        )
        .value_parser(["Respect", "Ignore"])
        .default_value("Respect")
        .env("PREFERENCE_POLICY"),
        text(
            MIN_VALUES,
            "POLICY",
            "Autoscaler: Strict or BestEffort about the minValues of requirements",
        )
        .value_parser(["Strict", "BestEffort"])
        .default_value("Strict")
        .env("MIN_VALUES_POLICY"),
        text(
            STARTUP_TAINTS,
            "KEY,…",
            "Autoscaler: keys of taints that others add to nodes which start, and take away: pods need not tolerate them",
        ),
    ];
    flags.extend(disruption_flags());
    flags.extend(management_flags());
    flags
}

/// What nodes are made and given up by.
fn disruption_flags() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    vec![
        text(
            PACKING,
            "POLICY",
            "Autoscaler: karpenter packs pods as Karpenter does, cost at the least price; the annotation slipway.dev/packing of a \
             NodePool says more",
        )
        .value_parser(["karpenter", "cost"])
        .default_value("karpenter"),
        text(
            MINIMUM_SAVINGS,
            "AMOUNT",
            "Autoscaler: what consolidation has to save at least: so much per hour, or a percentage of what goes; several may be given",
        )
        .value_parser(ValueParser::new(|text: &str| savings([text]).map(|_| text.to_owned())))
        .action(ArgAction::Append),
        switch(
            BUSY_DESTINATIONS,
            "Autoscaler: nodes inside consolidateAfter take pods of nodes that are consolidated",
        ),
        text(
            REPAIR_POLICIES,
            "FILE",
            "Autoscaler: by which conditions nodes are repaired, as a list of Karpenter's repair policies in YAML; nodes that are not \
             ready for 30 minutes are replaced if absent",
        )
        .value_parser(ValueParser::new(|path: &str| {
            repair::read(Path::new(path)).map(|_| path.to_owned())
        })),
    ]
}

/// What a user gives as amounts: `0.05` per hour, `5%` of what goes.
fn savings<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<MinimumSavings, String> {
    let mut least = MinimumSavings::default();
    for text in texts {
        let (number, percent) = match text.strip_suffix('%') {
            Some(number) => (number, true),
            None => (text, false),
        };
        let number = number
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite() && *number >= 0.0);
        let Some(number) = number else {
            return Err(format!(
                "{text:?} is neither an amount per hour, such as 0.05, nor a percentage, such as 5%"
            ));
        };
        if percent {
            least.percent = least.percent.max(number);
        } else {
            least.per_hour = least.per_hour.max(number);
        }
    }
    Ok(least)
}

/// Where Cluster API is, if not in the cluster that is scaled; named as karpenter-provider-cluster-api names them.
fn management_flags() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name(value)
            .help(help)
            .hide_env_values(true)
    };
    vec![
        text(
            MANAGEMENT_KUBECONFIG,
            "FILE",
            "Autoscaler: the kubeconfig of the management cluster; this cluster if absent",
        )
        .env("CLUSTER_API_KUBECONFIG"),
        text(
            MANAGEMENT_URL,
            "URL",
            "Autoscaler: the apiserver of the management cluster, instead of a kubeconfig",
        )
        .env("CLUSTER_API_URL"),
        text(
            MANAGEMENT_TOKEN,
            "TOKEN",
            "Autoscaler: the token for that apiserver; better given by its environment variable",
        )
        .env("CLUSTER_API_TOKEN"),
        text(
            MANAGEMENT_CA,
            "BASE64",
            "Autoscaler: the CA certificates of that apiserver, as a kubeconfig has them",
        )
        .env("CLUSTER_API_CERTIFICATE_AUTHORITY_DATA"),
        switch(
            MANAGEMENT_SKIP_VERIFY,
            "Autoscaler: trust whatever certificate that apiserver shows",
        )
        .env("CLUSTER_API_SKIP_TLS_VERIFY"),
    ]
}

impl Options {
    pub fn of(settings: &Settings) -> Self {
        let flags = &settings.flags;
        let given = |name: &str| flags.get(name).filter(|text| !text.is_empty()).map(str::to_owned);
        let usual = batch::Limits::default();
        let duration = |name: &str, otherwise: Duration| flags.duration(name).unwrap_or(otherwise);
        let variable = |name: &str, otherwise: &str| {
            std::env::var(name)
                .ok()
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| otherwise.to_owned())
        };
        Options {
            scope: Scope {
                cluster_name: given(CLUSTER_NAME),
                namespace: given(CLUSTER_NAMESPACE),
            },
            is_dry_run: flags.is_true(DRY_RUN),
            batch: batch::Limits {
                idle: duration(BATCH_IDLE, usual.idle),
                most: duration(BATCH_MOST, usual.most),
            },
            preferences: match flags.get(PREFERENCES) {
                Some("Ignore") => PreferencePolicy::Ignore,
                _ => PreferencePolicy::Respect,
            },
            min_values: match flags.get(MIN_VALUES) {
                Some("BestEffort") => MinValuesPolicy::BestEffort,
                _ => MinValuesPolicy::Strict,
            },
            gates: Gates::of(settings),
            packing: flags
                .get(PACKING)
                .and_then(PackingPolicy::named)
                .unwrap_or_default(),
            minimum_savings: savings(flags.all(MINIMUM_SAVINGS).iter().map(String::as_str))
                .unwrap_or_default(),
            busy_destinations: flags.is_true(BUSY_DESTINATIONS),
            repair_policies: given(REPAIR_POLICIES).map(PathBuf::from),
            startup_taints: StartupTaints::named(flags.get(STARTUP_TAINTS).unwrap_or_default().split(',')),
            group: variable("CAPI_GROUP", slipway_capi::names::GROUP),
            default_architecture: variable("CAPI_SCALE_ZERO_DEFAULT_ARCH", "amd64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn savings_are_amounts_or_percentages() {
        let of = |texts: &[&str]| savings(texts.iter().copied());
        assert_eq!(of(&[]), Ok(MinimumSavings::default()));
        let both = MinimumSavings {
            per_hour: 0.05,
            percent: 5.0,
        };
        assert_eq!(of(&["0.05", "5%"]), Ok(both));
        for wrong in ["", "much", "-1", "NaN", "5 %x"] {
            let told = of(&[wrong]).expect_err(wrong);
            assert!(told.contains("neither an amount per hour"), "{told}");
        }
    }
}
