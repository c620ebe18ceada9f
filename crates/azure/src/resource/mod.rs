//! ASO-shaped resources: which ARM type, address and body an object stands for, and back. The facts are a table
//! generated from Azure Service Operator's types (`parts/aso-table`); a kind outside it is a named error, not a guess.

mod error;
mod from_arm;
mod object;
mod shape;
mod table;
mod to_arm;

pub use error::ResourceError;
pub use from_arm::from_arm;
pub use object::{AsoObject, Reference};
pub use shape::Shape;
pub use table::{Form, Mapping, Scope, Table};
pub use to_arm::{Need, Put, Resolver, id_of, needs, to_arm};
