//! What one reconcile observed of its resources in Azure. Observing never fails: what went wrong is part of what was
//! observed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use slipway_runtime::Outcome;

use super::{
    error::Error,
    state::{ResourceState, state_of},
};
use crate::{Arm, ArmError, ResourceId, engine::Observation};

/// How the operation on a resource stands.
#[derive(Debug)]
pub enum OperationStatus {
    /// An operation runs, or the budget is spent: nothing is sent before that is over.
    Busy {
        progress: Option<String>,
        outcome: Outcome,
    },
    /// The operation we started failed, or Azure could not be asked.
    Failed(Error),
}

/// What was observed of all resources of an object, by id in lower case.
#[derive(Debug, Default)]
pub struct Observations {
    pub states: BTreeMap<String, ResourceState>,
    operations: BTreeMap<String, OperationStatus>,
}

/// How sure absence has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// A list of the last minutes is enough.
    Listed,
    /// Asked just now: something is to be made, or left behind.
    Certain,
}

pub(super) fn state(body: Option<&Arc<Value>>) -> ResourceState {
    body.map_or(ResourceState::Absent, |body| {
        ResourceState::Present(Value::clone(body))
    })
}

impl Observations {
    /// Observes one resource, once.
    pub async fn observe(
        &mut self,
        arm: &Arm,
        id: &str,
        api_version: &str,
        absence: Absence,
        max_age: Option<Duration>,
    ) {
        let key = id.to_lowercase();
        if self.states.contains_key(&key) {
            return;
        }
        let id = match ResourceId::parse(id) {
            Ok(id) => id,
            Err(error) => {
                self.states.insert(key.clone(), ResourceState::Unknown);
                self.operations
                    .insert(key, OperationStatus::Failed(ArmError::from(error).into()));
                return;
            }
        };
        let mut observation = arm.observe(&id, api_version, max_age).await;
        if let Err(error @ ArmError::Refused { .. }) = observation {
            // The operation is over; what it left behind is still to be observed.
            self.operations
                .insert(key.clone(), OperationStatus::Failed(error.into()));
            observation = arm.observe(&id, api_version, max_age).await;
        }
        let absent = |observation: &Observation| observation.outcome.is_done() && observation.body.is_none();
        if absence == Absence::Certain && observation.as_ref().is_ok_and(absent) {
            observation = arm.observe_known(&id, api_version).await;
        }
        match observation {
            Ok(Observation {
                body,
                progress,
                outcome,
            }) => {
                let observed = if outcome.is_done() || body.is_some() {
                    state(body.as_ref())
                } else {
                    ResourceState::Unknown
                };
                self.states.insert(key.clone(), observed);
                if !outcome.is_done() {
                    self.operations
                        .entry(key)
                        .or_insert(OperationStatus::Busy { progress, outcome });
                }
            }
            Err(error) => {
                self.states.insert(key.clone(), ResourceState::Unknown);
                self.operations
                    .entry(key)
                    .or_insert_with(|| OperationStatus::Failed(error.into()));
            }
        }
    }

    pub fn state_of(&self, id: &str) -> &ResourceState {
        state_of(&self.states, id)
    }

    /// How the operation on a resource stands.
    pub fn operation(&self, id: &str) -> Option<&OperationStatus> {
        self.operations.get(&id.to_lowercase())
    }

    /// How the operation on a resource stands; handed out once, because an error is not reported twice.
    pub fn take_operation(&mut self, id: &str) -> Option<OperationStatus> {
        self.operations.remove(&id.to_lowercase())
    }
}
