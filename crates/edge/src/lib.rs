//! Edge hosts in Cluster API: which host a Machine gets, which images hosts keep, how hosts are upgraded in place, and what
//! Cluster API is answered about that. The infrastructure provider runs where it is named (docs/edge/operator.md says
//! what stands). Decisions are pure: facts in, a decision with its reason out.

pub mod api;
pub mod cluster;
pub mod cluster_upgrade;
pub mod command;
pub mod error;
mod example;
pub mod fleet;
pub mod hooks;
pub mod host;
pub mod host_image;
pub mod hosts;
mod insight;
pub mod machine;
pub mod node_upgrade;
pub mod orders;
pub mod provider;
pub mod selector;
pub mod upgrade_policy;
pub mod version;
pub mod window;

pub use provider::provider;
