//! The autoscaler's tests: its definitions against Karpenter's, and the tables and properties of its pure parts.

mod accounting;
mod defects;
mod drop_in;
mod instances;
mod lifecycle;
mod snapshot;
mod world;
