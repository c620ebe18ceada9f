//! What Cluster API decides in inline resources: versions, network ranges, pools at creation, counts, credentials. Pure. A
//! value that is absent is set, an equal one stays, another one is a conflict that only the user can settle.

mod access;
mod agent_pool;
mod managed_cluster;
mod setting;

pub use self::{
    access::{Access, access},
    agent_pool::{PoolFacts, ReplicaManager, replica_manager, set_agent_pool},
    managed_cluster::{ClusterFacts, Pool, Pools, Profiles, profiles, set_managed_cluster},
    setting::Setting,
};

/// The API group of AKS.
pub const CONTAINER_SERVICE: &str = "containerservice.azure.com";
/// The kind of an AKS cluster.
pub const MANAGED_CLUSTER: &str = "ManagedCluster";
/// The kind of a node pool.
pub const AGENT_POOL: &str = "ManagedClustersAgentPool";

use serde_json::Value;

use crate::inline::Problem;

/// Where the first resource of a kind stands.
fn position(resources: &[Value], kind: &str) -> Option<usize> {
    resources.iter().position(|manifest| {
        let group = manifest["apiVersion"]
            .as_str()
            .and_then(|text| text.split('/').next());
        group == Some(CONTAINER_SERVICE) && manifest["kind"] == kind
    })
}

/// The first resource of a kind, and where it stands.
fn defined<'a>(resources: &'a mut [Value], kind: &'static str) -> Result<(&'a mut Value, String), Problem> {
    let missing = || Problem::NothingDefined {
        path: "spec.resources".to_owned(),
        kind,
    };
    let index = position(resources, kind).ok_or_else(missing)?;
    Ok((&mut resources[index], format!("spec.resources[{index}]")))
}
