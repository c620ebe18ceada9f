//! NodeUpgrade.

// Columns of the same type share an attribute's text, which the lint takes for a repetition.
#![allow(clippy::duplicated_attributes)]

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::{Image, rule};

/// One upgrade in place of one machine's host. Made by the runtime extension or by hand; it is never changed, a newer one takes
/// its place.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "edge.slipway.dev",
    version = "v1alpha1",
    kind = "NodeUpgrade",
    plural = "nodeupgrades",
    category = "edge",
    shortname = "nu",
    namespaced,
    status = "NodeUpgradeStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Machine", type_ = "string", json_path = ".spec.machineName"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Progress", type_ = "integer", json_path = ".status.percent"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        priority = 10
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct NodeUpgradeSpec {
    /// The Machine, and which one of that name.
    #[schemars(extend("minLength" = 1))]
    pub machine_name: String,
    #[serde(rename = "machineUID")]
    #[schemars(extend("minLength" = 1))]
    pub machine_uid: String,
    /// The EdgeHost that the machine has.
    #[schemars(extend("minLength" = 1))]
    pub host_name: String,
    /// What the host is to run.
    pub image: Image,
    /// The version that the kubelet must report, to the letter, e.g. v1.34.3+k3s1.
    pub version: String,
    /// Of everything the machine is to become: a machine that is to become something else gets another upgrade.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub desired_hash: String,
    #[serde(default)]
    pub role: Role,
    #[serde(default)]
    pub distribution: Distribution,
    /// The UpgradePolicy that says when the host may be disturbed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_name: Option<String>,
    #[serde(default)]
    pub drain: DrainPolicy,
    #[serde(default)]
    pub deadlines: Deadlines,
    /// How often the new slot is tried; the host's own number if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1, "maximum" = 7))]
    pub tries: Option<u32>,
    /// A patch version back is meant. A minor version back is never taken on a control plane.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_downgrade: bool,
    /// How a snapshot of etcd is taken on the only server of a cluster, program first. k3s needs none here: its own is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshot_command: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    ControlPlane,
    #[default]
    Worker,
}

/// What runs Kubernetes on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Distribution {
    #[default]
    K3s,
    Kubeadm,
}

/// How pods leave before the host reboots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct DrainPolicy {
    /// Nothing is evicted: pods are stopped by the reboot.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip: bool,
    /// How long it may take (default 30).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub minutes: Option<u32>,
    /// What then happens.
    pub on_timeout: OnDrainTimeout,
    /// When a drain that was given up is tried again (default 60).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub retry_minutes: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDrainTimeout {
    /// The node takes pods again, and it is tried later.
    #[default]
    Abort,
    /// The host reboots with the pods that are left.
    Reboot,
}

/// How long the disturbing parts may take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Deadlines {
    /// From arming to a decision of the host about its new slot (default 20). Health checks of machines are kept off no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub reboot_minutes: Option<u32>,
    /// From that decision to a node that is ready at its version (default 15). Then the host goes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1))]
    pub verify_minutes: Option<u32>,
}

fn rules() -> Value {
    json!([rule(
        "self == oldSelf",
        "cannot be changed: a newer NodeUpgrade of the machine takes its place",
    )])
}

/// How far it is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum Phase {
    #[default]
    Pending,
    Caching,
    Preparing,
    /// The new slot is written and verified; nobody has noticed anything yet.
    Prepared,
    Draining,
    Rebooting,
    Verifying,
    RollingBack,
    Done,
    RolledBack,
    Failed,
    Superseded,
    Cancelled,
}

impl Phase {
    /// It never changes again.
    pub fn is_terminal(self) -> bool {
        self >= Self::Done
    }

    /// The node is felt to be missing.
    pub fn disturbs(self) -> bool {
        (Self::Draining..=Self::RollingBack).contains(&self)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeUpgradeStatus {
    pub phase: Phase,
    /// What is done or waited for, in words; how it ended, at the end.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Of the phase, in steps of five.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// When the last drain was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_aborted_at: Option<Time>,
    /// Why the host was told to go back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback_reason: Option<String>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl DrainPolicy {
    pub fn minutes(&self) -> i64 {
        i64::from(self.minutes.unwrap_or(30))
    }

    pub fn retry_minutes(&self) -> i64 {
        i64::from(self.retry_minutes.unwrap_or(60))
    }
}

impl Deadlines {
    pub fn reboot_minutes(&self) -> i64 {
        i64::from(self.reboot_minutes.unwrap_or(20))
    }

    pub fn verify_minutes(&self) -> i64 {
        i64::from(self.verify_minutes.unwrap_or(15))
    }
}
