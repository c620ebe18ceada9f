//! The controllers at work: an apiserver in memory, the simulated Azure, virtual time, and the part that Cluster API's
//! core plays.

mod at_rest;
mod azure_features;
mod changes;
mod deletion;
mod fairness;
mod journey;
mod machine_sweep;
mod machines;
mod nodes;
mod ownership;
mod rivals;
mod surroundings;
mod sweep;
mod takeover;
mod told;
pub mod world;
