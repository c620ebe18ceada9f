//! The status of an AzureManagedCluster. What was provisioned stays so. Pure.

use jiff::Timestamp;
use slipway_capi::{
    condition::{self, Report, Status},
    names::{condition as names, reason},
};

use super::{observe::Observed, plan::NO_ENDPOINT};
use crate::api::{AzureManagedClusterStatus, InfrastructureInitialization, V1Beta2Conditions};

pub fn status(observed: &Observed, now: Timestamp) -> AzureManagedClusterStatus {
    let mut status = observed.object.status.clone().unwrap_or_default();
    let ready = if observed.endpoint.is_some() {
        Report::new(names::READY, Status::True, reason::READY, "")
    } else {
        Report::new(names::READY, Status::False, reason::NOT_READY, NO_ENDPOINT)
    };
    let list = &mut status
        .v1beta2
        .get_or_insert_with(V1Beta2Conditions::default)
        .conditions;
    condition::set(list, &ready, observed.object.metadata.generation, now);
    let before = status
        .initialization
        .as_ref()
        .and_then(|before| before.provisioned);
    let provisioned = before == Some(true) || observed.endpoint.is_some();
    status.ready = Some(provisioned);
    status.initialization = Some(InfrastructureInitialization {
        provisioned: provisioned.then_some(true),
    });
    status
}
