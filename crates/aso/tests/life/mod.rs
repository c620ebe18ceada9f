//! The controllers at work: an apiserver in memory, the simulated Azure, virtual time, and the part that Cluster API's
//! core plays.

mod adoption;
mod adoption_kills;
pub mod annotated;
mod at_rest;
mod changes;
mod comes_and_goes;
mod deletion;
mod diff;
mod exports;
mod groups;
mod journey;
mod nodes;
mod operated;
mod operated_sweep;
pub mod operator;
mod ownership;
mod surroundings;
mod sweep;
mod tenancy;
pub mod world;
