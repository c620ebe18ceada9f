//! What Azure looks like: one view per subscription and identity, filled by lists that all clusters share, and by
//! single reads where something changed.

mod index;
mod shared;

pub use index::{Found, Index, Listing, Shown};
pub use shared::{Read, View, Views};
