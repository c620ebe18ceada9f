//! Changes that failed: the same body is not sent again at once, but after a growing wait. Only in memory; a restart
//! costs one more attempt.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use slipway_runtime::Class;
use tokio::time::Instant;

use crate::arm::{ArmError, Refusal, ResourceId};

#[derive(Debug)]
struct Failure {
    body: [u8; 32],
    refusal: Option<Refusal>,
    attempts: u32,
    until: Instant,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Failures(Arc<Mutex<HashMap<ResourceId, Failure>>>);

const FIRST: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_mins(30);

fn digest(body: &Value) -> [u8; 32] {
    Sha256::digest(body.to_string().as_bytes()).into()
}

impl Failures {
    /// A body is about to be sent.
    pub fn sending(&self, id: &ResourceId, body: &Value) {
        let body = digest(body);
        let mut failures = self.0.lock();
        let failure = failures.entry(id.clone()).or_insert(Failure {
            body,
            refusal: None,
            attempts: 0,
            until: Instant::now(),
        });
        if failure.body != body {
            failure.body = body;
            failure.attempts = 0;
        }
        failure.refusal = None;
    }

    /// The operation that our last body started failed.
    pub fn operation_failed(&self, id: &ResourceId, error: &ArmError) {
        let mut failures = self.0.lock();
        if let (Some(failure), Some(refusal)) = (failures.get_mut(id), error.refusal()) {
            let wait = (FIRST * 2u32.saturating_pow(failure.attempts.min(10))).min(LONGEST);
            failure.attempts += 1;
            failure.refusal = Some(refusal.clone());
            failure.until = Instant::now() + wait;
        }
    }

    /// Why this body is not sent now.
    pub fn held_back(&self, id: &ResourceId, body: &Value) -> Option<ArmError> {
        let failures = self.0.lock();
        let failure = failures.get(id)?;
        let refusal = failure.refusal.clone()?;
        let held = failure.body == digest(body) && Instant::now() < failure.until;
        // Somebody granted something, or the network came back: those are retried by the queue's own backoff.
        let worth_waiting = !matches!(refusal.class(), Class::Conflict);
        (held && worth_waiting).then(|| ArmError::Refused {
            doing: "changing",
            target: id.to_string(),
            refusal,
        })
    }

    pub fn forget(&self, id: &ResourceId) {
        self.0.lock().remove(id);
    }
}
