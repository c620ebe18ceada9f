//! NodeUpgrade: one host brought to one image in place, from the first byte in its cache to the node that is ready again.

pub mod admit;
pub mod api;
mod disturb;
pub mod drain;
pub mod facts;
pub mod plan;
pub mod reading;
mod trial;
mod undo;

pub use plan::{Action, Decision, decide};
