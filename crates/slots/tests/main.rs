//! Tests of the pure half of the node agent.

mod boot;
mod chunking;
mod fuzz;
mod machine;
mod manifest;
