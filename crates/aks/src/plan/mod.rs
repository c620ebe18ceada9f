//! What to do next, decided from what was observed. A plan is a list of actions that can be printed; each is one
//! idempotent step, taken in order until one is not done at once.

pub mod control_plane;
pub mod pool;

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde_json::Value;

use crate::render::RenderError;

/// What a resource looked like.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Sight {
    /// Azure did not tell, or has not been asked.
    #[default]
    Unknown,
    Absent,
    /// As Azure shows it.
    Present(Value),
}

impl Sight {
    pub fn body(&self) -> Option<&Value> {
        match self {
            Self::Present(body) => Some(body),
            _ => None,
        }
    }

    pub fn is_absent(&self) -> bool {
        *self == Self::Absent
    }

    /// A text of the resource's properties.
    pub fn property(&self, name: &str) -> Option<&str> {
        let value = self.body()?.get("properties")?.get(name)?.as_str()?;
        (!value.is_empty()).then_some(value)
    }

    pub fn provisioning_state(&self) -> Option<&str> {
        self.property("provisioningState")
    }

    pub fn tags(&self) -> BTreeMap<String, String> {
        let tags = self
            .body()
            .and_then(|body| body.get("tags"))
            .and_then(Value::as_object);
        tags.into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect()
    }
}

/// One resource in Azure: where it is, and how it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    pub part: Part,
    pub id: String,
    pub manifest: Value,
}

/// The parts of a cluster, in the order in which they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    ResourceGroup,
    VirtualNetwork,
    Subnet,
    ManagedCluster,
    PrivateEndpoint,
    FleetMember,
    Extension,
    AgentPool,
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
    /// The objects ask for something that cannot be made; a change of them is waited for.
    ForTheUser(RenderError),
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Compare with Azure and send what differs.
    Ensure(Wanted),
    Delete {
        part: Part,
        id: String,
    },
    /// Write where the API server answers.
    SetEndpoint {
        host: String,
        port: i32,
    },
    /// Write the kubeconfig Secrets.
    WriteKubeconfigs,
    /// AKS scales the pool: say so on the MachinePool, and carry over its count.
    FollowReplicas {
        count: i32,
    },
    /// AKS no longer scales the pool: take the mark off the MachinePool.
    StopFollowingReplicas,
    /// Look up the pool's nodes and write their provider ids.
    ListNodes,
    RemoveFinalizer,
    Wait(Waiting),
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ensure(wanted) => write!(formatter, "ensure {:?} {}", wanted.part, wanted.id),
            Self::Delete { part, id } => write!(formatter, "delete {part:?} {id}"),
            Self::SetEndpoint { host, port } => write!(formatter, "set endpoint {host}:{port}"),
            Self::WriteKubeconfigs => formatter.write_str("write kubeconfigs"),
            Self::FollowReplicas { count } => write!(formatter, "follow replicas {count}"),
            Self::StopFollowingReplicas => formatter.write_str("stop following replicas"),
            Self::ListNodes => formatter.write_str("list nodes"),
            Self::RemoveFinalizer => formatter.write_str("remove finalizer"),
            Self::Wait(waiting) => write!(formatter, "wait {waiting:?}"),
        }
    }
}

/// Steps in order.
pub type Plan = Vec<Action>;

/// What of the sights of Azure belongs to an id. Azure's ids differ in case from time to time.
pub fn sight<'a>(sights: &'a BTreeMap<String, Sight>, id: &str) -> &'a Sight {
    static UNKNOWN: Sight = Sight::Unknown;
    sights.get(&id.to_lowercase()).unwrap_or(&UNKNOWN)
}
