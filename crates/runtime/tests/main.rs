//! The runtime against a real kube-apiserver.

mod diagnostics;
mod family;
mod informers;
mod other_cluster;
mod outage;
mod proxy;
mod restart;
