//! The actions of an EdgeCluster: one idempotent call. The only place that writes.

use kube::ResourceExt;
use serde_json::json;
use slipway_runtime::{Context, Outcome};

use super::{api::EdgeCluster, plan::Action};
use crate::error::Error;

/// Over the version that was read.
pub async fn act(action: &Action, cluster: &EdgeCluster, context: &Context) -> Result<Outcome, Error> {
    let Action::WriteEndpoint(endpoint) = action;
    let patch = json!({
        "metadata": {"resourceVersion": cluster.metadata.resource_version},
        "spec": {"controlPlaneEndpoint": endpoint},
    });
    let doing = format!("writing the endpoint of EdgeCluster {}", cluster.name_any());
    context.patch(cluster, &patch).await.map_err(Error::api(doing))?;
    Ok(Outcome::Done)
}
