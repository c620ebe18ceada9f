//! HostImage: these images on these hosts.

pub mod admit;
pub mod api;
pub mod plan;
