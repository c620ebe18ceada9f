//! The scheduler's inside: labels and types as integers and bit sets, pods as classes, topology as counters.

pub(crate) mod catalog;
pub(crate) mod choice;
pub(crate) mod claim;
pub(crate) mod domains;
pub(crate) mod equivalence_class;
pub(crate) mod equivalence_classes;
pub(crate) mod explain;
pub(crate) mod finish;
mod fits;
pub(crate) mod group;
pub(crate) mod guided;
pub(crate) mod intern;
pub(crate) mod node_check;
pub(crate) mod nodes;
pub(crate) mod relax;
pub(crate) mod run;
mod spread_out;
pub(crate) mod which_claim;
pub(crate) mod world;
