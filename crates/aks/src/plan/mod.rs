//! What to do next, decided from what was observed. A plan is a list of actions that can be printed; each is one
//! idempotent step, result in order until one is not done at once.

pub mod control_plane;

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;
use slipway_azure::{ownership::Foreign, reconcile::ResourceKind};

use crate::render::RenderError;

/// The desired state of one resource in Azure, and where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredResource {
    pub kind: ResourceKind,
    pub id: String,
    pub manifest: Value,
}

/// Why nothing is done for now. None of these is an error; what is waited for is watched, or the time is known.
#[derive(Clone, Debug, PartialEq)]
pub enum Waiting {
    /// No pool to create the cluster with yet; after `until` a default pool is made.
    ForSystemPool {
        until: Timestamp,
    },
    /// A system pool object exists, its MachinePool does not.
    ForMachinePool {
        pool: String,
    },
    /// `defaultPoolTemplate.machinePoolRef` names a pool that does not exist.
    ForReferencedPool {
        pool: String,
    },
    ForControlPlane,
    /// Deleting it would leave the cluster without a system pool.
    ForAnotherSystemPool,
    /// Azure has not told what is there.
    ForAzure {
        id: String,
    },
    /// It belongs to another: nothing is written to it and nothing goes on.
    OwnedByAnother {
        id: String,
        foreign: Foreign,
    },
    /// The AKS cluster is gone, and nothing here deleted it.
    Vanished {
        id: String,
    },
    /// The objects ask for something that cannot be made; a change of them is waited for.
    ForTheUser(RenderError),
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Compare with Azure and send what differs.
    Ensure(DesiredResource),
    Delete {
        kind: ResourceKind,
        id: String,
    },
    /// It was there and is gone, and nothing here deleted it: report that before it is made again.
    AcceptVanished {
        kind: ResourceKind,
        id: String,
    },
    /// Write where the API server answers.
    SetEndpoint {
        host: String,
        port: i32,
    },
    /// Write the kubeconfig Secrets.
    WriteKubeconfigs,
    RemoveFinalizer,
    Wait(Waiting),
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ensure(desired) => write!(formatter, "ensure {:?} {}", desired.kind, desired.id),
            Self::Delete { kind, id } => write!(formatter, "delete {kind:?} {id}"),
            Self::AcceptVanished { kind, id } => write!(formatter, "report vanished {kind:?} {id}"),
            Self::SetEndpoint { host, port } => write!(formatter, "set endpoint {host}:{port}"),
            Self::WriteKubeconfigs => formatter.write_str("write kubeconfigs"),
            Self::RemoveFinalizer => formatter.write_str("remove finalizer"),
            Self::Wait(waiting) => write!(formatter, "wait {waiting:?}"),
        }
    }
}

/// Steps in order.
pub type Plan = Vec<Action>;
