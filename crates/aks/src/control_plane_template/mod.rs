//! AzureManagedControlPlaneTemplate: no controller, core clones it.

pub mod admit;
pub mod api;
