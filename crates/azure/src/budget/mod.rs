//! The request budget: how many requests a subscription and its resource providers still take, and whose turn is next.

mod front;
mod headers;
mod model;

pub use front::Budget;
pub use headers::RateLimitFeedback;
pub use model::{Access, Limits, Model, Rate, Ticket};

use std::sync::Arc;

use crate::arm::{ResourceId, Verb};

/// What a request is for: it decides who goes first when there is not enough for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A change somebody waits for, and the reads it needs.
    Change,
    /// A question about an operation that runs.
    Operation,
    /// Looking whether something drifted.
    Refresh,
}

/// The limit a request falls under.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketKey {
    /// Lower case.
    pub subscription: String,
    /// Lower case, e.g. `microsoft.containerservice`.
    pub provider: String,
    pub access: Access,
}

impl BucketKey {
    pub fn of(target: &ResourceId, verb: Verb) -> Self {
        Self {
            subscription: target.subscription().unwrap_or_default().to_ascii_lowercase(),
            provider: target.provider().to_ascii_lowercase(),
            access: match verb {
                Verb::Get => Access::Read,
                Verb::Delete => Access::Delete,
                // ARM counts a POST as a write.
                Verb::Put | Verb::Patch | Verb::Post => Access::Write,
            },
        }
    }
}

/// A request that wants its turn.
#[derive(Clone, Debug)]
pub struct PermitRequest {
    pub bucket: BucketKey,
    /// The resource's key: a limit may hold for one resource alone.
    pub resource: String,
    pub priority: Priority,
    pub cluster: Arc<str>,
}
