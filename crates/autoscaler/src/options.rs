//! What the user set for the autoscaler: its flags, with the environment variables by which Karpenter is set, and those that
//! Cluster Autoscaler's users know.

use std::time::Duration;

use clap::Arg;
use slipway_packing::model::{MinValuesPolicy, PreferencePolicy};
use slipway_runtime::{
    Settings,
    manager::{duration_flag, switch},
};

use crate::{batch, instances::Scope, startup::StartupTaints};

const CLUSTER_NAME: &str = "cluster-name";
const CLUSTER_NAMESPACE: &str = "cluster-namespace";
const DRY_RUN: &str = "autoscaler-dry-run";
const BATCH_IDLE: &str = "batch-idle-duration";
const BATCH_MOST: &str = "batch-max-duration";
const PREFERENCES: &str = "preference-policy";
const MIN_VALUES: &str = "min-values-policy";
const STARTUP_TAINTS: &str = "startup-taints";
pub(crate) const MANAGEMENT_KUBECONFIG: &str = "cluster-api-kubeconfig";
pub(crate) const MANAGEMENT_URL: &str = "cluster-api-url";
pub(crate) const MANAGEMENT_TOKEN: &str = "cluster-api-token";
pub(crate) const MANAGEMENT_CA: &str = "cluster-api-certificate-authority-data";
pub(crate) const MANAGEMENT_SKIP_VERIFY: &str = "cluster-api-skip-tls-verify";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whose objects a NodeClass means that names no Cluster or namespace.
    pub scope: Scope,
    /// Decide, report, and write nothing.
    pub is_dry_run: bool,
    pub batch: batch::Limits,
    pub preferences: PreferencePolicy,
    pub min_values: MinValuesPolicy,
    pub startup_taints: StartupTaints,
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
    flags.extend(management_flags());
    flags
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
            startup_taints: StartupTaints::named(flags.get(STARTUP_TAINTS).unwrap_or_default().split(',')),
            group: variable("CAPI_GROUP", slipway_capi::names::GROUP),
            default_architecture: variable("CAPI_SCALE_ZERO_DEFAULT_ARCH", "amd64"),
        }
    }
}
