//! What is decided, and what is said about the rest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::budget::Reason;
use crate::model::{NewClaim, NodeAssignment};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    Repair,
    Emptiness,
    StaticDrift,
    Drift,
    /// In place of the two below, for NodePools whose policy is `cost`.
    CostConsolidation,
    MultiNodeConsolidation,
    SingleNodeConsolidation,
}

impl Method {
    /// The order in which they are tried; the first that finds something ends the search.
    pub const ALL: [Method; 7] = [
        Method::Repair,
        Method::Emptiness,
        Method::StaticDrift,
        Method::Drift,
        Method::CostConsolidation,
        Method::MultiNodeConsolidation,
        Method::SingleNodeConsolidation,
    ];

    pub const fn reason(self) -> Reason {
        match self {
            Method::Repair => Reason::Unhealthy,
            Method::Emptiness => Reason::Empty,
            Method::StaticDrift | Method::Drift => Reason::Drifted,
            Method::CostConsolidation | Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => {
                Reason::Underutilized
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    Delete,
    Replace,
    /// The nodes go although their replacements can only come after them.
    TerminateFirst,
    /// The nodes stay and are started again.
    Reboot,
}

/// Why a replacement cannot come before its node went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TerminateFirst {
    /// It only fits into the place that the node has in a full reservation.
    NoReservedCapacity,
    /// The static NodePool is at its limit.
    StaticAtLimit,
}

/// The condition that made a node unhealthy and decides what is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unhealthy {
    pub condition: String,
    pub status: String,
    pub reason: String,
    /// It was to be rebooted, and that was tried often enough.
    pub escalated: bool,
}

/// Nodes to give up, and what to create first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    pub method: Method,
    pub reason: Reason,
    pub decision: Decision,
    pub nodes: Vec<String>,
    pub replacements: Vec<NewClaim>,
    /// Nodes that stay and take over pods.
    pub existing: Vec<NodeAssignment>,
    /// Per hour.
    pub savings: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminate_first: Option<TerminateFirst>,
    /// How many seconds pods get from the moment that the nodes are deleted; none leaves it to the claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy: Option<Unhealthy>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    pub command: Option<Command>,
    /// More commands of the same method. None of them needs another: they may be carried out side by side.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Command>,
    /// Why nodes stay, by node.
    pub blocked: BTreeMap<String, String>,
    /// How many nodes of each pool could have gone.
    pub allowed: BTreeMap<String, usize>,
    /// A budget kept a candidate: ask again even if nothing changes.
    pub constrained_by_budgets: bool,
}

impl Outcome {
    pub fn commands(&self) -> impl Iterator<Item = &Command> {
        self.command.iter().chain(&self.beside)
    }
}
