//! Karpenter's API on Cluster API machines. What stands is the API and the pure parts: the controllers that join them are
//! being built, and nothing of this is in the manager yet (docs/autoscaler.md says which).

pub mod accounting;
pub mod api;
pub mod batch;
pub mod hash;
pub mod instances;
pub mod lifecycle;
pub mod read;
pub mod safety;
pub mod snapshot;
