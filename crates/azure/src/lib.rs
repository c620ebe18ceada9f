//! Azure Resource Manager for Slipway's providers.
//!
//! Pure cores (`resource`, `diff`, `budget::model`, `view::plan`, `arm::operation`, `arm::error`) are data in, data
//! out; the shells around them hold the connections. No other crate names the Azure SDK.

pub mod arm;
pub mod budget;
pub mod cloud;
pub mod credential;
pub mod diff;
pub mod engine;
pub mod resource;
pub mod setup;
pub mod transport;
pub mod tuning;
pub mod view;

pub use arm::{Answer, ArmError, Client, ResourceId};
pub use budget::{Budget, Priority};
pub use cloud::Cloud;
pub use credential::{CredentialError, Credentials, Identity};
pub use engine::{Arm, Azure, Desired, Ensured};
pub use setup::Clouds;
pub use tuning::Tuning;
