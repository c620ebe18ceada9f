//! The runtime against a real kube-apiserver.

mod informers;
mod proxy;
mod restart;
