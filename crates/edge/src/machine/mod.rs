//! EdgeMachine: a Machine on an edge host, and which host it gets.

pub mod admit;
pub mod api;
pub mod capacity;
pub mod claim;
pub mod provider_id;
