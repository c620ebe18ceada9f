//! The operator runtime under every Slipway controller.
//!
//! A provider crate exports one [`Provider`]: its custom resources, rules, admission, conversion, hooks and
//! controllers, declared beside the code they belong to. This crate runs them; it knows
//! Kubernetes, and nothing of any provider.

pub mod admission;
pub mod answers;
pub mod build;
pub mod certificates;
pub mod client;
pub mod clock;
pub mod command;
pub mod controller;
pub mod conversion;
pub mod duration;
pub mod events;
pub mod health;
pub mod hook;
pub mod informer;
pub mod install;
pub mod lease;
pub mod logs;
pub mod manager;
pub mod metrics;
pub mod object_key;
pub mod outcome;
pub mod plans;
pub mod preview;
pub mod process;
pub mod provider;
pub mod queue;
pub mod random;
pub mod rbac;
pub mod secret_facts;
pub mod server;
pub mod settings;
#[cfg(test)]
mod test_server;
pub mod throttle;
pub mod workload;
pub mod writes;

pub use answers::Answers;
pub use client::instrumented_client;
pub use clock::Clock;
pub use controller::{Context, Controller, Reconciler};
pub use events::Events;
pub use informer::{Informer, Informers, Scope};
pub use manager::Manager;
pub use metrics::Metrics;
pub use object_key::ObjectKey;
pub use outcome::{Class, Classified, Next, Outcome, plain};
pub use plans::Plans;
pub use preview::{Preview, Previews};
pub use provider::{Names, Package, PackageKind, Provider};
pub use random::Random;
pub use rbac::{RoleGrant, Rule};
pub use secret_facts::SecretFacts;
pub use settings::Settings;
