//! Every read: the vessels of a fleet and its charter. What cannot be read is a fact.

use std::sync::Arc;

use kube::ResourceExt;
use slipway_capi::{frame::Subject, owner};
use slipway_runtime::{Class, Classified, Context, Scope};

use super::{CHARTER, api::Fleet, charter, misbehaviour};
use crate::toy::vessel::api::Vessel;

/// What a plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub fleet: Fleet,
    pub vessels: Vec<Vessel>,
    /// What is wrong with the charter, and whether that passes.
    pub charter: Option<(String, Class)>,
    pub is_restless: bool,
}

pub async fn observe(subject: &Subject<Fleet>, context: &Context) -> Observed {
    let fleet = subject.object.as_ref();
    match misbehaviour(fleet) {
        Some("panic") => panic!("told to"),
        Some("hang") => std::future::pending().await,
        _ => {}
    }
    let vessels: Vec<Arc<Vessel>> = context
        .informers
        .get::<Vessel>(Scope::of_namespace(&context.settings))
        .list();
    let charter = match fleet.annotations().get(CHARTER) {
        Some(secret) if !subject.is_deleting() => {
            let read = charter::read(fleet, secret, misbehaviour(fleet) == Some("leak"), context).await;
            read.err().map(|error| (error.to_string(), error.class()))
        }
        _ => None,
    };
    Observed {
        vessels: vessels
            .iter()
            .filter(|vessel| owner::is_controlled_by(&vessel.metadata, &fleet.metadata))
            .map(|vessel| Vessel::clone(vessel))
            .collect(),
        charter,
        is_restless: misbehaviour(fleet) == Some("restless"),
        fleet: fleet.clone(),
    }
}
