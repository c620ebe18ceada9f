//! `slipway adopt`: running AKS clusters become objects here. The manager reads them in Azure ([`read`]), [`manifests`] makes the objects,
//! which are only read until they are confirmed ([`confirm`]), and [`act`] writes to the management cluster. Nothing is written in Azure.

pub mod act;
pub mod command;
pub mod confirm;
pub mod manifests;
pub mod read;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::command::subcommand;

/// The name of the question that the manager answers.
pub const QUESTION: &str = "adopt";

/// What a resource's policy becomes when its adoption is confirmed.
pub const ADOPTED_POLICY: &str = "slipway.dev/adopted-policy";

/// Which clusters are asked about, and by which Secret the manager signs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub ids: Vec<String>,
    pub namespace: String,
    #[serde(default)]
    pub credential: Option<String>,
    /// Resources that are read beside what belongs to the clusters anyway.
    #[serde(default)]
    pub also: Vec<String>,
}

/// A resource as Azure shows it, in the form of Azure Service Operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    pub id: String,
    pub group: String,
    pub version: String,
    pub kind: String,
    pub spec: Map<String, Value>,
    pub status: Value,
}

/// An AKS cluster and what belongs to it; the cluster itself comes first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FoundCluster {
    pub resources: Vec<Found>,
    /// The mark of whoever owns the AKS cluster.
    #[serde(default)]
    pub mark: Option<String>,
    /// What could not be read, or what whoever adopts it should know.
    pub notes: Vec<String>,
}

/// What the manager answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub clusters: Vec<FoundCluster>,
}
