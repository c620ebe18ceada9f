//! Real clusters for tests and local runs: etcd, kube-apiserver, Cluster API and kwok as plain processes on
//! loopback, built from pinned Go modules, that die with the process that started them.

pub mod audit;
mod balancer;
pub mod canary;
pub mod certificates;
mod cluster;
mod directory;
pub mod hosts;
pub mod install;
pub mod installed;
pub mod inventory;
pub mod parts;
mod ports;
mod process;
pub mod rights;
pub mod shared;
pub mod tools;
pub mod upstream;
pub mod wait;

pub use cluster::{
    Builder, Cluster, CommandError, Description, ManagementCluster, StartError, WorkloadCluster,
};
pub use parts::{BuiltUpstream, Manifest, Part, Parts, PartsError, Upstream};
pub use process::{Process, Program};
pub use shared::shared;
