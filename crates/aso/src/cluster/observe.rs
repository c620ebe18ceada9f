//! Every read of an AzureASOManagedCluster: its resources, and the control plane of the same Cluster from the caches.

use slipway_azure::reconcile::Error;
use slipway_capi::{frame::Subject, view::Cluster};
use slipway_runtime::Context;

use crate::{
    api::{AzureASOManagedCluster, Endpoint},
    caches::Caches,
    resources::{self, Engine, Held, Mutation, Standing},
    shared::Shared,
};

/// Everything a reconcile works with.
pub struct ReconcileContext {
    pub observed: Observed,
    pub engine: Engine,
}

/// What the plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub object: AzureASOManagedCluster,
    /// The kind of the Cluster's control plane, if it is not one that this kind goes with.
    pub other_control_plane: Option<String>,
    /// Where the control plane says its API server answers.
    pub endpoint: Option<Endpoint>,
    pub held: Held,
}

/// The kind of a Cluster's control plane, if it is not one of ours.
fn other_control_plane(cluster: &Cluster) -> Option<String> {
    let reference = cluster.spec.control_plane_ref.as_ref();
    match (Caches::plane_key(cluster), reference) {
        (Some(_), _) => None,
        (None, Some(reference)) => Some(reference.kind.clone()),
        (None, None) => Some("none".to_owned()),
    }
}

pub async fn observe(
    subject: &Subject<AzureASOManagedCluster>,
    shared: &Shared,
    context: &Context,
) -> Result<ReconcileContext, Error> {
    let object = subject.object.as_ref();
    let cluster = subject.cluster.as_deref();
    let plane = cluster.and_then(|cluster| shared.caches.plane(&context.informers, cluster));
    let status = object.status.clone().unwrap_or_default();
    let standing = Standing {
        object,
        cluster_name: subject.cluster_name.as_deref().unwrap_or_default(),
        ready: status.ready,
        conditions: &status.conditions,
        lines: &status.resources,
        secrets: Vec::new(),
    };
    let nothing = |_: &mut [serde_json::Value], _: &resources::Facts<'_>| Mutation::default();
    let (held, engine) = resources::observe(&standing, &shared.sources(), nothing, context).await?;
    let endpoint = plane.and_then(|plane| plane.status.as_ref()?.control_plane_endpoint.clone());
    let observed = Observed {
        object: object.clone(),
        other_control_plane: cluster.and_then(other_control_plane),
        endpoint,
        held,
    };
    Ok(ReconcileContext { observed, engine })
}
