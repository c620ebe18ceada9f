//! Inline resources: what `spec.resources` of an object means. Pure: from manifests and facts to ids, requests, an order
//! and the fate of each resource when its object is deleted.

mod catalog;
mod cost;
mod deletion;
mod export;
mod expression;
mod labelling;
mod order;
mod parse;
mod policy;
mod problem;
mod secrets;

pub(crate) use self::parse::spec_member;
pub use self::{
    catalog::{Catalog, Lookup},
    deletion::{Fate, Leaving, fates},
    export::{Credential, Destination, Export, Source, Store, exports, expressions},
    expression::{Expression, Secrets, Texts},
    labelling::{Labelling, Member},
    order::order,
    parse::{CREDENTIAL_FROM, Inline, Inventory, PROTECTION},
    policy::{Policy, RECONCILE_POLICY, managed},
    problem::Problem,
};
