//! What the user set for the autoscaler: its flags, and the environment variables that Cluster Autoscaler's users know.

use std::time::Duration;

use clap::{Arg, ArgAction};
use slipway_runtime::{Settings, manager::duration_flag};

use crate::{batch, instances::Scope};

const CLUSTER_NAME: &str = "cluster-name";
const CLUSTER_NAMESPACE: &str = "cluster-namespace";
const DRY_RUN: &str = "autoscaler-dry-run";
const BATCH_IDLE: &str = "batch-idle-duration";
const BATCH_MOST: &str = "batch-max-duration";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whose objects a NodeClass means that names no Cluster or namespace.
    pub scope: Scope,
    /// Decide, report, and write nothing.
    pub is_dry_run: bool,
    pub batch: batch::Limits,
    /// `CAPI_GROUP`: the group of the annotations that follow it.
    pub group: String,
    /// `CAPI_SCALE_ZERO_DEFAULT_ARCH`.
    pub default_architecture: String,
}

/// The flags, for `slipway manager`.
pub fn flags() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    vec![
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
        Arg::new(DRY_RUN)
            .long(DRY_RUN)
            .action(ArgAction::SetTrue)
            .help("Autoscaler: decide and report, and write nothing; what exists is left alone"),
        duration_flag(
            BATCH_IDLE,
            "1s",
            "Autoscaler: pods are planned for when none has come for this long",
        ),
        duration_flag(
            BATCH_MOST,
            "10s",
            "Autoscaler: pods are planned for this long after the first came, at the latest",
        ),
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
            group: variable("CAPI_GROUP", slipway_capi::names::GROUP),
            default_architecture: variable("CAPI_SCALE_ZERO_DEFAULT_ARCH", "amd64"),
        }
    }
}
