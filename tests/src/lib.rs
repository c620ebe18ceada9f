//! What the stories share.

pub mod toy;
