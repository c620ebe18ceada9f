//! Every read: the control plane of the same Cluster, from the caches.

use slipway_capi::frame::Subject;
use slipway_runtime::Context;

use crate::{
    api::{AzureManagedCluster, Endpoint},
    caches::Caches,
};

/// What the plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub object: AzureManagedCluster,
    /// Where the control plane says its API server answers.
    pub endpoint: Option<Endpoint>,
}

pub fn observe(subject: &Subject<AzureManagedCluster>, caches: &Caches, context: &Context) -> Observed {
    let plane = subject
        .cluster
        .as_deref()
        .and_then(|cluster| caches.plane(&context.informers, cluster));
    Observed {
        object: AzureManagedCluster::clone(&subject.object),
        endpoint: plane.and_then(|plane| plane.spec.control_plane_endpoint.clone()),
    }
}
