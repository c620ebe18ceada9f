//! The reconcile loop of one Azure resource, as every Azure provider uses it: what state it is in, what was applied to
//! it, one step towards its desired state or towards its deletion, and the words for how that went. `state`, `kind`,
//! `records`, `planning` and `error` are pure; `observations` and `step` ask Azure through an [`Arm`](crate::Arm).

pub mod error;
pub mod kind;
pub mod observations;
pub mod planning;
pub mod records;
pub mod state;
pub mod step;

pub use error::Error;
pub use kind::ResourceKind;
pub use observations::{Absence, Observations, OperationStatus};
pub use records::Records;
pub use state::{ResourceState, state_of};
pub use step::{StepResult, StepStatus, THROTTLED};
