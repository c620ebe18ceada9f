//! The autoscaler's tests: its definitions against Karpenter's, the tables and properties of its pure parts, and its
//! controllers' life under faults.

mod accounting;
mod defects;
mod disruption;
mod drop_in;
mod instances;
mod life;
mod lifecycle;
mod plans;
mod provisioner;
mod real;
mod snapshot;
mod world;
