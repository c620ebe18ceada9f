//! The whole output: what to create, what goes where, and why something goes nowhere.

use serde::{Deserialize, Serialize};

use super::{Names, ResourceList};
use crate::requirement::RequirementSpec;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Plan {
    pub new_claims: Vec<NewClaim>,
    pub existing: Vec<NodeAssignment>,
    pub unschedulable: Vec<PodRefusal>,
}

/// A node to create.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NewClaim {
    pub node_pool: String,
    pub requirements: Vec<RequirementSpec>,
    /// Cheapest first.
    pub instance_types: Names,
    /// Of the pods, and of the daemons that every remaining type would run.
    pub requests: ResourceList,
    /// `namespace/name`, in the order they were placed.
    pub pods: Vec<String>,
    /// Per hour, of the cheapest launchable offering.
    pub cheapest_price: f64,
    /// The cheapest launchable offering of the first instance type.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cheapest_zone: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cheapest_capacity_type: String,
    /// `minValues` had to be lowered (policy `BestEffort`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub min_values_relaxed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAssignment {
    pub node: String,
    pub initialized: bool,
    pub pods: Vec<String>,
}

/// Why a pod was placed nowhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRefusal {
    pub pod: String,
    pub uid: String,
    pub reason: RefusalReason,
    /// One sentence.
    pub message: String,
    /// Why not, by candidate. Existing nodes that refuse for the same reason are counted together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<CandidateRefusal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalReason {
    /// The pod asks for something that is never allowed.
    Invalid,
    /// No candidate takes it.
    Unschedulable,
    /// Reserved capacity exists and may become free: ask again.
    ReservedCapacityPending,
    /// Its dynamic resources are not simulated.
    DynamicResources,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CandidateRefusal {
    pub kind: CandidateKind,
    /// The node or NodePool; for a claim of this plan its place in `newClaims`.
    pub name: String,
    /// How many candidates of this kind gave this reason.
    pub count: usize,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CandidateKind {
    NodePool,
    NewClaim,
    Node,
}
