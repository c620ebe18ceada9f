//! Tests of the whole crate: the views against the pinned Cluster API,
//! hooks against a real TLS server, and writes against a real kube-apiserver with Cluster API.

mod hooks;
mod in_place;
mod odd_input;
mod real_apiserver;
mod views_match_cluster_api;
