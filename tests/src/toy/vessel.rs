//! Floats vessels.

use std::sync::Arc;

use slipway_runtime::{Context, Next, Reconciler};

use super::{
    api::{Vessel, VesselStatus},
    fleet::ToyError,
};

pub struct VesselReconciler;

impl Reconciler for VesselReconciler {
    type Object = Vessel;
    type Error = ToyError;

    async fn reconcile(&self, vessel: Arc<Vessel>, context: &Context) -> Result<Next, ToyError> {
        if vessel.metadata.deletion_timestamp.is_none() {
            context
                .patch_status(vessel.as_ref(), &VesselStatus { afloat: true })
                .await?;
        }
        Ok(Next::OnChange)
    }
}
