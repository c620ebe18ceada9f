//! Tests of the whole crate: the views against the pinned Cluster API, conditions against its documented behaviour,
//! and hooks against a real TLS server.

mod conditions;
mod hooks;
mod views_match_cluster_api;
