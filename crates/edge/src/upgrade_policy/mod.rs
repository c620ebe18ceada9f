//! UpgradePolicy: in which order, when and how many hosts are upgraded, and when it stops.

pub mod admit;
pub mod api;
pub mod judge;
pub mod path;
