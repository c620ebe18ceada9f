//! The simulator from outside: what a client sees.

#[path = "main/backing.rs"]
mod backing;
#[path = "main/clusters.rs"]
mod clusters;
#[path = "main/conformance.rs"]
mod conformance;
#[path = "main/fixture.rs"]
mod fixture;
#[path = "main/groups.rs"]
mod groups;
#[path = "main/kubeconfigs.rs"]
mod kubeconfigs;
#[path = "main/operations.rs"]
mod operations;
#[path = "main/pools.rs"]
mod pools;
#[path = "main/recording.rs"]
mod recording;
#[path = "main/refusals.rs"]
mod refusals;
#[path = "main/server.rs"]
mod server;
#[path = "main/sign_in.rs"]
mod sign_in;
#[path = "main/throttling.rs"]
mod throttling;
