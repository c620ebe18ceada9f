//! Instance types from Cluster API's objects: pure. What an object says of its machines by annotations, template and live nodes
//! becomes packing's instance types; what it says wrongly becomes a finding on that object, and the others go on.

mod annotations;
mod catalog;
mod choose;
mod describe;
mod filter;
mod price;
mod source;

pub use annotations::{AutoscalingOptions, Finding, FindingReason};
pub use catalog::{Catalog, Offered, catalog};
pub use choose::{Choice, Demand, NoChoice, choose};
pub use describe::{Devices, Settings, Shape, describe};
pub use filter::{Refused, Scope, admits, sizes};
pub use price::{Price, PriceList, PriceListError};
pub use source::{Infrastructure, LiveNode, Reference, Source, SourceKind};
