//! The controllers at work: an apiserver in memory, the simulated Azure, virtual time, and the part that Cluster API's
//! core plays.

mod adoption;
mod at_rest;
mod changes;
mod deletion;
mod diff;
mod exports;
mod journey;
mod nodes;
mod operated;
mod operated_sweep;
mod operator;
mod ownership;
mod surroundings;
mod sweep;
mod tenancy;
pub mod world;
