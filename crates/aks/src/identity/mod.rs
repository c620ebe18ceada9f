//! AzureClusterIdentity: who signs in to Azure. No controller of its own: control planes hold it while they need it.

pub mod admit;
pub mod api;
