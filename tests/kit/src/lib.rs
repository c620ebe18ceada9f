//! What the tests of every provider share, so that a provider's own tests are its scenarios and nothing else.
//!
//! [`core`] is a fake Cluster API core on the apiserver simulator, [`azure`] the simulated Azure in this process, [`sweep`]
//! runs a scenario under every fault at every call, and [`journey`] makes scenarios of what a user does in a simulated
//! world. [`workload`] is a workload cluster in this process, [`manager`] runs a manager as a process, [`held`] counts what one in this process holds,
//! [`definitions`] compares custom resources with upstream's, and [`extension`] is a runtime extension that updates in place.
//! The kit knows no provider: what is behind a provider's objects is handed to it.

pub mod asker;
pub mod azure;
pub mod clusterctl;
pub mod core;
pub mod definitions;
pub mod extension;
pub mod held;
pub mod journey;
pub mod manager;
pub mod mistakes;
pub mod objects;
pub mod sweep;
pub mod workload;
