//! Everything the crate promises from outside: the oracles, the independent checker, and properties.

mod report;
mod requirement_table;
mod workload_format;
