//! The protocol between node agents, the edge manager and hosts beside each other: messages, who may call what,
//! certificates, enrolment, and connections in both directions. It knows no disk and no cluster.

pub mod ca;
pub mod channel;
pub mod client;
pub mod enrol;
pub mod identity;
pub mod order;
pub mod peers;
pub mod problem;
pub mod proto;
pub mod roles;
mod secret;
pub mod serve;
pub mod tls;
pub mod token;
pub mod tunnel;

pub use identity::Identity;
pub use problem::{Class, Problem};
