//! `slipway migrate`: a Cluster of the classic kinds (AzureManagedControlPlane and its like) goes on as one of inline resources
//! (AzureASOManagedControlPlane and its like), in the same namespace, under the same name, without a write in Azure. [`facts`] holds what is there,
//! [`plan`] says what is left to do and why, [`act`] does one step at a time. Where a migration stands is read from the objects, so it
//! goes on, or back, wherever it was interrupted.

pub mod act;
pub mod command;
pub mod credential;
pub mod facts;
pub mod inline;
pub mod observe;
pub mod plan;

pub use self::command::subcommand;

/// On the Cluster while it is migrated.
pub const MIGRATION: &str = "slipway.dev/migration";

/// On what a migration made: the kind that it stands for.
pub const MIGRATED_FROM: &str = "slipway.dev/migrated-from";

/// The value of the annotation that pauses a classic object: by it an undo finds what it has to take away.
pub const PAUSED_BY: &str = "slipway-migration";
