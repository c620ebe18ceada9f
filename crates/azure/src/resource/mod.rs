//! ASO-shaped resources: which ARM type, address and body an object stands for, and back. The facts are a table
//! generated from Azure Service Operator's types (`parts/aso-table`); what is newer than the table follows its rules, and
//! [`Mapping::exact`] says so.

mod error;
mod fit;
mod from_arm;
pub mod handed_out;
pub mod import;
mod object;
mod rules;
mod shape;
mod structs;
mod table;
mod to_arm;

pub use error::ResourceError;
pub use from_arm::from_arm;
pub use object::{AsoObject, Reference};
pub use shape::Shape;
pub use structs::Form;
pub use table::{Mapping, Scope, Table};
pub use to_arm::{Need, Put, Resolver, id_of, needs, to_arm};
