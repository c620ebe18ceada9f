//! The controllers at work: an apiserver in memory, the simulated Azure, virtual time, and the part that Cluster API's
//! core plays.

mod azure_features;
mod changes;
mod core;
mod deletion;
mod journey;
mod meddler;
mod nodes;
mod sweep;
mod takeover;
mod wire;
pub mod world;
