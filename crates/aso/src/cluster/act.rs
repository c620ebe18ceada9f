//! The actions of an AzureASOManagedCluster.

use serde_json::json;
use slipway_azure::reconcile::Error;
use slipway_runtime::{Context, Outcome};

use super::{observe::ReconcileContext, plan::Action};
use crate::resources;

pub async fn act(
    action: &Action,
    reconcile: &mut ReconcileContext,
    context: &Context,
) -> Result<Outcome, Error> {
    let observed = &mut reconcile.observed;
    match action {
        Action::Resource(action) => {
            let engine = &mut reconcile.engine;
            resources::act(action, &mut observed.object, &mut observed.held, engine, context).await
        }
        Action::SetEndpoint(endpoint) => {
            let patch = json!({"spec": {"controlPlaneEndpoint": endpoint}});
            let stored = context.patch(&observed.object, &patch).await;
            observed.object = stored.map_err(Error::api("writing the control plane endpoint"))?;
            Ok(Outcome::Done)
        }
    }
}
