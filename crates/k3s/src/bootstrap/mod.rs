//! Bootstrap: what a host is told at its first boot, and the KThreesConfig that asks for it.

pub mod admit;
pub mod controller;
pub mod etcd_proxy;
pub mod k3s_config;
pub mod plan;
pub mod render;
pub mod yaml;
