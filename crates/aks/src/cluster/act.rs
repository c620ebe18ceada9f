//! The action of an AzureManagedCluster.

use serde_json::json;
use slipway_azure::reconcile::Error;
use slipway_runtime::{Context, Outcome};

use super::plan::Action;
use crate::api::AzureManagedCluster;

pub async fn act(action: &Action, object: &AzureManagedCluster, context: &Context) -> Result<Outcome, Error> {
    let Action::SetEndpoint(endpoint) = action;
    let patch = json!({"spec": {"controlPlaneEndpoint": endpoint}});
    context
        .patch(object, &patch)
        .await
        .map_err(Error::api("writing the control plane endpoint"))?;
    Ok(Outcome::Done)
}
