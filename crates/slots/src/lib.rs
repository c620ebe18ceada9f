//! A/B slots as pure functions: which image may be written, where its bytes come from, what a boot store's bytes
//! mean, and which step comes next. Data in, data out: no clock, no threads, no input or output.

pub mod boot;
pub mod chunking;
pub mod digest;
pub mod machine;
pub mod manifest;
pub mod slot;
pub mod write_plan;

pub use digest::Digest;
pub use slot::{BySlot, Slot};
