//! The actions of a fleet: each is one idempotent call.

use kube::ResourceExt;
use serde_json::json;
use slipway_capi::owner;
use slipway_runtime::{Context, Outcome};

use super::{FleetError, api::Fleet, plan::Action};
use crate::toy::vessel::api::{Vessel, VesselSpec};

pub async fn act(action: &Action, fleet: &Fleet, context: &Context) -> Result<Outcome, FleetError> {
    let result = match action {
        Action::CreateVessel { number } => context.create(&new_vessel(fleet, *number)).await.map(drop),
        Action::DeleteVessel(vessel) => context.delete(vessel.as_ref()).await,
        Action::WriteRestlessly => {
            let patch = json!({"metadata": {"labels": {"toy.slipway.dev/restless": "true"}}});
            context.patch(fleet, &patch).await.map(drop)
        }
    };
    result.map_err(|source| FleetError {
        doing: format!("{action} of Fleet {}", fleet.name_any()),
        source,
    })?;
    Ok(Outcome::Done)
}

/// Named by its owner and number, so that a second try meets the first.
fn new_vessel(fleet: &Fleet, number: i32) -> Vessel {
    let mut vessel = Vessel::new(
        &format!("{}-{number}", fleet.name_any()),
        VesselSpec { number, cargo: None },
    );
    vessel.metadata.namespace = fleet.namespace();
    vessel.metadata.owner_references = owner::controller_reference(fleet).map(|reference| vec![reference]);
    vessel
}
