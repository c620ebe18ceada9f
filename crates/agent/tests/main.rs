//! Tests of the node agent.

mod command;
mod disk_image;
mod fetch;
mod ssh;
