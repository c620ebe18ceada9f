//! The provider ids of a node pool's machines: from the workload cluster, or from Azure where it is not reached and the pool
//! may have other machines than before. Azure is not asked again for a pool that stays as it is.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use serde_json::Value;
use slipway_capi::secret::{Purpose, VALUE_KEY};
use slipway_runtime::{
    Context, ObjectKey,
    secret_facts::{Watched, watched_version},
};
use tokio::time::Instant;

use super::nodes::{NodeListing, Nodes, PoolNodes, from_scale_sets};
use crate::{
    Arm,
    reconcile::{Error, ResourceState},
};

/// How the machines of a pool that AKS scales are listed again where its nodes cannot be watched: a machine that went and
/// another that came leave no trace in the pool.
const RELIST_SCALED: Duration = Duration::from_hours(1);

/// The reason of a workload cluster that does not let us list its nodes.
pub const NODES_FORBIDDEN: &str = "NodesForbidden";
/// The role that reads nodes where AKS leaves authorization to Azure.
const CLUSTER_ADMIN: &str = "Azure Kubernetes Service RBAC Cluster Admin";

/// A node pool whose machines are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    /// The object that stands for it: requeued when its nodes change.
    pub object: &'a ObjectKey,
    /// The name of its Cluster, in the object's namespace.
    pub cluster: &'a str,
    /// Its name in AKS.
    pub name: &'a str,
    /// The resource group of the cluster's nodes, where it is known.
    pub group: Option<&'a str>,
    /// As AKS shows it.
    pub state: &'a ResourceState,
    /// The provider ids that are written on the object.
    pub written: &'a [String],
}

/// A listing of a pool's machines.
#[derive(Clone, Debug)]
struct Listing {
    /// What the pool was like.
    state: String,
    /// The hash of the provider ids that were listed.
    written: u64,
    at: Instant,
}

/// The last listing of each pool's machines. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Machines(Arc<Mutex<HashMap<ObjectKey, Listing>>>);

impl Machines {
    /// The provider ids of the pool's machines, where they can be told.
    pub async fn provider_ids(
        &self,
        pool: &Pool<'_>,
        nodes: &Nodes,
        arm: Option<&Arm>,
        context: &Context,
    ) -> Result<Option<Vec<String>>, Error> {
        match listed(pool, nodes, context).await? {
            NodeListing::Nodes(ids) => return Ok(Some(ids)),
            NodeListing::Pending => return Ok(None),
            NodeListing::Denied => {
                return Err(Error::SignIn {
                    code: NODES_FORBIDDEN,
                    message: format!(
                        "the workload cluster does not let its kubeconfig list nodes: assign the role {CLUSTER_ADMIN} on the AKS \
                         cluster to the identity that signs in"
                    ),
                });
            }
            NodeListing::Unreachable => {}
        }
        let (Some(arm), Some(group)) = (arm, pool.group) else {
            return Ok(None);
        };
        // While AKS still works on the pool its machines come and go: they are listed when it is done.
        if pool.state.provisioning_state() != Some("Succeeded") {
            return Ok(None);
        }
        let state = machines_key(pool.state);
        let scaled = scales(pool.state);
        let known = self.0.lock().get(pool.object).cloned();
        // A list that is no longer ours was emptied, or the pool is another of the same name.
        let current = known.is_some_and(|listing| {
            Some(listing.state) == state
                && listing.written == hash(pool.written)
                && (!scaled || listing.at.elapsed() < RELIST_SCALED)
        });
        if current {
            return Ok(None);
        }
        let ids = from_scale_sets(arm, group, pool.name).await?;
        if let Some(state) = state {
            let listing = Listing {
                state,
                written: hash(&ids),
                at: Instant::now(),
            };
            self.0.lock().insert(pool.object.clone(), listing);
        }
        Ok(Some(ids))
    }

    /// The pool is gone.
    pub fn forget(&self, object: &ObjectKey) {
        self.0.lock().remove(object);
    }

    /// For how many pools a listing is kept.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What the workload cluster says of the pool's nodes. The kubeconfig is read only where it is another than that of the
/// connection.
async fn listed(pool: &Pool<'_>, nodes: &Nodes, context: &Context) -> Result<NodeListing, Error> {
    let namespace = pool.object.namespace().unwrap_or_default();
    let name = Purpose::Kubeconfig.secret_name(pool.cluster);
    let cluster = ObjectKey::namespaced(namespace, pool.cluster);
    let request = PoolNodes {
        pool: pool.name,
        group: pool.group,
        object: pool.object,
    };
    match watched_version(&ObjectKey::namespaced(namespace, &name), context) {
        Watched::Absent => return Ok(NodeListing::Unreachable),
        Watched::Version(version) => {
            if let Some(listing) = nodes.of_connected_pool(&cluster, &version, &request) {
                return Ok(listing);
            }
        }
        Watched::Unknown => {}
    }
    let secret = Api::<Secret>::namespaced(context.client.clone(), namespace)
        .get_opt(&name)
        .await
        .map_err(Error::api(format!("reading Secret {name}")))?;
    let text = secret
        .as_ref()
        .and_then(|secret| secret.data.as_ref()?.get(VALUE_KEY))
        .and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
    let Some(text) = text else {
        return Ok(NodeListing::Unreachable);
    };
    let version = secret.as_ref().and_then(ResourceExt::resource_version);
    Ok(nodes.of_pool(&cluster, text, version, &request, context))
}

fn hash(ids: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    ids.hash(&mut hasher);
    hasher.finish()
}

/// How many nodes AKS says the pool has.
pub fn count(state: &ResourceState) -> Option<i32> {
    let count = state.body()?.pointer("/properties/count")?.as_i64()?;
    i32::try_from(count).ok()
}

/// Whether AKS scales the pool.
pub fn scales(state: &ResourceState) -> bool {
    state
        .body()
        .and_then(|body| body.pointer("/properties/enableAutoScaling"))
        .is_some_and(|value| value == true)
}

/// What of a pool decides which machines it has: while it stays, its machines do too.
pub(crate) fn machines_key(state: &ResourceState) -> Option<String> {
    let properties = state.body()?.get("properties")?;
    let kind = |name: &str| properties.get(name).map(Value::to_string).unwrap_or_default();
    Some(
        [
            "count",
            "nodeImageVersion",
            "currentOrchestratorVersion",
            "powerState",
            "eTag",
        ]
        .map(kind)
        .join("|"),
    )
}
