//! Bootstrap: what a host is told at its first boot, and the KThreesConfig that asks for it.

pub mod admit;
mod concern;
pub mod controller;
pub mod etcd_proxy;
mod gather;
pub mod k3s_config;
mod lock;
mod owner;
pub mod plan;
pub mod render;
mod status;
pub mod yaml;
