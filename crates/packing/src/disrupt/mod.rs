//! Which nodes to give up, and for what: emptiness, drift and consolidation as pure decisions. Every probe runs over
//! one world and is taken back; nothing is rebuilt in between.

mod budget;
mod candidates;
mod consolidate;
mod cron;
mod eviction;
mod methods;
mod score;

pub use budget::{Reason, allowed_disruptions};
pub use eviction::leaving_pods;
pub use methods::{Command, Decision, Method, Outcome, disrupt, next_command};
pub use score::{Totals, eviction_cost, is_worth_it, reschedule_cost, score};
