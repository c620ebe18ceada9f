//! Everything the crate promises from outside: the oracles, the independent checker, and properties.

// Fixtures are written to be read, not to save a copy.
#![allow(
    clippy::assigning_clones,
    clippy::needless_pass_by_value,
    clippy::unnecessary_wraps
)]

mod brute_force;
mod churn;
mod cluster;
mod constraints;
mod cost_consolidation;
mod custom_labels;
mod deletion_order;
mod determinism;
mod differential;
mod disruption_inputs;
mod equal_domains;
mod improvements;
mod judge;
mod judge_refuses;
mod judged;
mod named_disruption;
mod named_scheduling;
mod named_topology;
mod optimum;
mod properties;
mod provisioning_cases;
mod report;
mod requirement_table;
mod static_pools;
mod suites;
mod workload_format;
