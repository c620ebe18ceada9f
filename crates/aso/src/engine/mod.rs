//! The two engines behind inline resources: our own, and a running Azure Service Operator, which is given an object for each
//! resource and writes Azure itself. `choice` says which one a resource has and why, `object` reads the operator's objects,
//! `manifest` makes them, `verdict` and `leaving` say what is to be done about them (all pure); `operator` and `observe` read, `act`
//! writes. Azure is read in the same way with either engine; only one of them writes.

pub mod act;
mod choice;
mod leaving;
mod manifest;
mod object;
mod observe;
mod operator;
mod status;
mod verdict;

pub use self::{
    choice::{ANNOTATION, AzureEngine, Choice, FLAG, Facts, Standing, Wanted, choose},
    leaving::{leave, pass},
    manifest::{Application, Terms},
    object::{OperatedObject, Told},
    observe::{Look, Operated, key},
    operator::{Definition, Operators},
    status::{OPERATOR_READY, Word, judge, report},
    verdict::{EngineStep, leaving, step},
};

/// What is noted beside a resource's record while the operator has an object for it: that the operator writes it, or that its
/// object is still there and quiet while we write.
pub const NOTE: &str = "engine";
/// The operator writes it.
pub const BY_OPERATOR: &str = "aso";
/// We write it, and the operator's object is quiet: others of its objects refer to it.
pub const QUIET: &str = "quiet";
/// What is noted beside a resource that was found in Azure and never written here: it stays when its object goes.
pub const FOUND: &str = "found";

/// Group, kind and name: what an object of the operator is known by in its namespace.
pub type Key = (String, String, String);
