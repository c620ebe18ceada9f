//! What all three kinds do with their inline resources: observe them, plan what is made, changed, exported and deleted, carry it
//! out, and say how each stands. `held`, `verdict`, `plan`, `delete`, `export`, `labels`, `fetched` and `status` are pure; `observe` reads, `act`
//! writes.

mod act;
mod delete;
mod export;
mod fetched;
mod held;
mod labels;
mod observe;
mod plan;
mod status;
mod verdict;

pub(crate) use self::fetched::hex;
pub use self::{
    act::{Engine, act, store},
    delete::delete,
    export::{Ca, NOT_WRITTEN, Outgoing, StoredExport, foreign, push as push_outgoing},
    fetched::{Asked, Fetch},
    held::{Held, Resource},
    observe::{Facts, Mutation, SecretData, Sources, Standing, observe, user},
    plan::{Action, Desired, Recording, Wraps, changes_azure, follow_up, plan},
    status::{BORROWED, IDENTITY_BORROWED, MAPPED_BY_RULE, NEWER, RESOURCES_READY, Summary, sum_up},
    verdict::{Verdict, Waiting},
};
