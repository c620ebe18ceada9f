//! Tests of the node agent.

mod cli;
mod command;
mod disk_image;
mod fetch;
mod ssh;
