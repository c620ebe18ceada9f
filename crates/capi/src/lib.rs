//! What every provider needs from Cluster API: narrow views of its kinds, ownership, pausing, conditions in both
//! forms, secrets, templates, server-side apply with two field managers, and the client of the runtime hooks.
//!
//! Decisions are pure functions over data; the few functions that call the apiserver take a [`kube::Client`] and do
//! one thing. `docs/capi.md` lists which part of Cluster API's contract is served by which function.

pub mod annotations;
pub mod apply;
pub mod condition;
pub mod contract;
pub mod error;
pub mod finalizer;
pub mod frame;
pub mod hook;
pub mod in_place;
pub mod insight;
pub mod names;
pub mod owner;
pub mod paused;
pub mod reference;
pub mod secret;
pub mod template;
pub mod topology;
pub mod view;

pub use error::Error;
