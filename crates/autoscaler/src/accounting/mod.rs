//! Claims, Machines and replicas of one scalable object, kept one to one: pure. What to do follows from what is there now and
//! never from what was done before, so it may be asked again after a crash at any point, on a view that lags, or twice.

mod account;
mod bind;
mod facts;

pub use account::{Account, Action, Planned, account, waits_for};
pub use facts::{Claim, ClaimState, Group, Machine};
