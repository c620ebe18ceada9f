//! An address that the servers of a cluster hold in turn: who may hold it now ([`turn`], pure), the lease in their own cluster that says so
//! ([`lease`]), how neighbours learn of it ([`announce`]), and the task that keeps it ([`keeper`]).

pub mod announce;
pub mod keeper;
pub mod lease;
pub mod turn;
