//! The actions of an AzureASOManagedControlPlane: those for its resources.

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
    let engine = &mut reconcile.engine;
    resources::act(
        &action.0,
        &mut observed.plane,
        &mut observed.held,
        engine,
        context,
    )
    .await
}
