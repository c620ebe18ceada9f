//! Tests against real ARM traffic recorded by the pinned azure-service-operator module, and against the simulator.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it stands"
)]

mod connections;
mod credentials;
mod fairness;
mod faults;
mod handed_out;
mod mapper;
mod metrics;
mod properties;
mod recordings;
mod rest;
mod samples;
mod verbs;
mod workload_identity;
mod world;
mod writes;
