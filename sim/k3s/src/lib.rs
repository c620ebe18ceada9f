//! A simulated K3s cluster for tests: the servers, their nodes, and the etcd they keep together, as far as a control
//! plane controller can see and touch them.

pub mod model;

pub use model::{Host, Member, Model, Node};
