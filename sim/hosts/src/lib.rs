//! Hundreds of hosts in one process, for tests and benches of whoever manages hosts. Each is the real agent's service with its
//! real engine and cache over files in a folder; only the machine below it is simulated: power, boot loader, programs.

mod fleet;
mod host;
mod image;
mod machine;
mod process;
mod registry;

pub use fleet::{FLEET, Fleet, Tokens};
pub use host::{Options, Reach, SimulatedHost};
pub use image::{NodeImage, signing_key};
pub use machine::{Faults, OnProgram, SimulatedMachine, System};
pub use process::AgentProcess;
pub use registry::Registry;

/// The page's code, compiled and run with the documents. It reads watches with `futures::StreamExt`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/agent-api.md")]
pub struct AgentApiPage;
