//! Which nodes to give up, and for what: repair, emptiness, drift and consolidation as pure decisions. Every probe runs
//! over one world and is taken back; nothing is rebuilt in between.

mod budget;
mod candidates;
mod command;
mod consolidate;
mod cost;
mod cron;
mod deletion_order;
mod drift;
mod eviction;
mod health;
mod methods;
mod repair;
mod score;
mod static_drift;

pub use budget::{BudgetClock, Reason, allowed_disruptions, budget_problem};
pub use command::{Command, Decision, Method, Outcome, TerminateFirst, Unhealthy};
pub use deletion_order::{DeletionOrder, deletion_order};
pub(crate) use eviction::do_not_disrupt as is_asked_to_stay;
pub use eviction::leaving_pods;
pub use health::{InvalidRepairPolicies, check_repair_policies};
pub use methods::{disrupt, disrupt_among, next_command};
pub use score::{Totals, eviction_cost, is_worth_it, reschedule_cost, score};
