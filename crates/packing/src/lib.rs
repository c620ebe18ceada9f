//! Karpenter's scheduling and consolidation as pure functions: data in, data out. No I/O, no clock, no threads of its
//! own; the same input gives the same plan.

mod bits;
mod default_spread;
pub mod disrupt;
mod engine;
mod host_ports;
pub mod labels;
pub mod model;
pub mod optimum;
pub mod quantity;
pub mod requirement;
pub mod requirements;
pub mod resources;
mod schedule;
pub mod static_pools;
mod storage;
pub mod taints;
pub mod time;
mod validate;

pub use schedule::schedule;
