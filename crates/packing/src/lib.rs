//! Karpenter's scheduling and consolidation as pure functions: data in, data out. No I/O, no clock, no threads of its
//! own; the same input gives the same plan.

pub mod labels;
pub mod model;
pub mod quantity;
pub mod requirement;
pub mod requirements;
