//! A simulated K3s for tests and local runs: the servers, their nodes, and the etcd they keep together. [`model`] is
//! pure and moves only when told to; [`Simulator`] serves many clusters over HTTPS, each with an endpoint of its own
//! as a load balancer would give it, and lets hosts join by reading their userdata as cloud-init and k3s would.

mod admin;
mod carry;
mod certificates;
mod cloud_config;
mod cluster;
pub mod model;
mod node;
mod serve;
mod simulator;
mod userdata;

pub use cloud_config::{Config, Role, installs_k3s};
pub use cluster::{BootError, Cluster, Machine};
pub use model::{Host, Member, Model, Node, Timing};
pub use node::Registration;
pub use simulator::Simulator;
pub use userdata::{Instance, Unreadable, Userdata, WrittenFile};
