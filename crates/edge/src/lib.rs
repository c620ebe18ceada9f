//! Edge hosts in Cluster API: which host a Machine gets, which images hosts keep, how hosts are upgraded in place, and what
//! Cluster API is answered about that. This crate decides; it does not run in the manager yet (docs/edge/operator.md says what
//! stands). Decisions are pure: facts in, a decision with its reason out.

pub mod api;
pub mod cluster;
pub mod cluster_upgrade;
pub mod hooks;
pub mod host;
pub mod host_image;
pub mod machine;
pub mod node_upgrade;
pub mod orders;
pub mod selector;
pub mod upgrade_policy;
pub mod version;
pub mod window;
