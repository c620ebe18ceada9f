//! Vessel: floats by itself. It belongs to no Cluster, leaves nothing behind and does nothing outside: the least a
//! kind can be.

pub mod api;

use std::convert::Infallible;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use slipway_capi::frame::{Frame, Kind, Membership, Plan, ProgressOf, Subject};
use slipway_runtime::{Context, Controller, Outcome, controller::Registration};

use self::api::{Vessel, VesselStatus};

struct Vessels;

impl Kind for Vessels {
    type Object = Vessel;
    type Observed = ();
    type Action = Infallible;
    type Error = kube::Error;

    fn conditions(_: &mut VesselStatus) -> Option<&mut Vec<Condition>> {
        None
    }

    async fn membership(&self, _: &Vessel, _: &Context) -> Result<Membership, kube::Error> {
        Ok(Membership::Standalone)
    }

    async fn observe(&self, _: &Subject<Vessel>, _: &Context) -> Result<(), kube::Error> {
        Ok(())
    }

    fn plan((): &(), _: Timestamp) -> Plan<Infallible> {
        Plan::new()
    }

    async fn act(
        &self,
        action: &Infallible,
        _: &Subject<Vessel>,
        (): &mut (),
        _: &Context,
    ) -> Result<Outcome, kube::Error> {
        match *action {}
    }

    fn status((): &(), _: &ProgressOf<Self>, _: Timestamp) -> VesselStatus {
        VesselStatus { afloat: true }
    }
}

pub fn registration() -> Registration {
    Controller::new("vessel", Frame::new(Vessels)).into_registration()
}
