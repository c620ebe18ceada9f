//! Tests of the node agent.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail where they stand, as tests do"
)]

mod acceptance;
mod address;
mod address_partitions;
mod cache;
mod cli;
mod command;
mod disk_image;
mod engine;
mod faults;
mod fetch;
mod fuzz;
mod local_targets;
mod machine;
mod power;
mod processes;
mod program;
mod real_tools;
mod self_update;
mod service;
mod ssh;
mod support;
mod target_suite;
