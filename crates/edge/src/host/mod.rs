//! EdgeHost: a registered machine, what is known about it, and how it is let go.

pub mod admit;
pub mod api;
pub mod inventory;
pub mod release;
