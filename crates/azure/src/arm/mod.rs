//! Requests to Azure Resource Manager: ids, calls, answers, long-running operations and refusals.

mod client;
mod error;
mod id;
mod operation;
mod reply;
mod text;

pub use client::{Call, Client, ClientError, Page, Token, Tokens, Verb};
pub use error::{ArmError, ErrorResponse, RetryPolicy};
pub use id::{IdError, ResourceId};
pub use operation::{Operation, Poll, State, Tracking, provisioning_state, resource_state};
pub use reply::{Answer, Reply};
pub use text::stable;
