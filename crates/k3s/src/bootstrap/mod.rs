//! Bootstrap: what a host is told at its first boot, and the KThreesConfig that asks for it.

mod act;
pub mod admit;
mod concern;
pub mod controller;
pub mod etcd_proxy;
pub mod k3s_config;
mod lock;
mod observe;
mod owner;
pub mod plan;
pub mod rejoin;
pub mod render;
mod status;
pub mod yaml;
