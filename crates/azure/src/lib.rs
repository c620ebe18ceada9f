//! Azure Resource Manager for Slipway's providers.
//!
//! Pure cores (`resource`, `diff`, `budget::model`, `view::index`, `arm::operation`, `arm::error`, most of `reconcile`)
//! are data in, data out; the shells around them hold the connections. `session`, `takeover` and `workload` also read and
//! write Kubernetes. No other crate names the Azure SDK, and no provider is known here.

pub mod adopted;
pub mod arm;
pub mod budget;
pub mod caches;
pub mod cloud;
pub mod credential;
pub mod diff;
pub mod engine;
pub mod insight;
pub mod machine;
pub mod metrics;
pub mod ownership;
pub mod reconcile;
pub mod resource;
pub mod session;
pub mod setup;
pub mod takeover;
pub mod transport;
pub mod tuning;
pub mod view;
pub mod workload;

pub use arm::{Answer, ArmError, Client, ResourceId};
pub use budget::{Budget, Priority};
pub use cloud::Cloud;
pub use credential::{CredentialError, Credentials, Identity};
pub use engine::{Arm, Azure, Desired, Ensured, Urgency};
pub use setup::Clouds;
pub use tuning::Tuning;
