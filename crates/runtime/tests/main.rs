//! The runtime against a real kube-apiserver.

mod diagnostics;
mod family;
mod informers;
mod outage;
mod proxy;
mod restart;
