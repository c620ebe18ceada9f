//! The runtime against a real kube-apiserver.

mod diagnostics;
mod informers;
mod proxy;
mod restart;
