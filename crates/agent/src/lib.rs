//! The node agent: writes signed images into the inactive slot of a host, arms its boot store, and confirms the new
//! system or returns to the old one. Decisions are `slipway-slots`'; this crate carries them out.

pub mod address;
pub mod boot_store;
pub mod cache;
pub mod command;
pub mod deliver;
pub mod disk_image;
pub mod engine;
pub mod enrol;
pub mod fetch;
pub mod image;
pub mod io_priority;
pub mod self_update;
pub mod service;
pub mod ssh;
pub mod target;
pub mod vhdx;
