//! Write, verify, arm, confirm or roll back: carries out what the state machine of `slipway-slots` decides.

mod failpoint;
mod source;

pub use failpoint::{Failpoint, Failpoints, Unhindered};
pub use source::{ChunkSource, FetchError};
