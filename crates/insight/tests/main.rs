//! The model over objects as they are in a management cluster.

mod explain;
mod tree;
mod world;
