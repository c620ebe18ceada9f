//! Cluster API's runtime hooks, called by a provider of control planes: which extension handles a hook
//! ([`registry`]), what is asked ([`prepare`]), what is sent and answered ([`types`]), the call itself ([`client`]), and whether the answer
//! covers the change that is desired ([`coverage`]).

pub mod client;
pub mod coverage;
pub mod prepare;
pub mod registry;
pub mod types;

use slipway_runtime::{Class, Classified};

pub use client::HookClient;
pub use registry::{Registration, Registry};

/// The group of the hooks.
pub const GROUP: &str = "hooks.runtime.cluster.x-k8s.io";
pub const VERSION: &str = "v1alpha1";
pub const CAN_UPDATE_MACHINE: &str = "CanUpdateMachine";
pub const CAN_UPDATE_MACHINE_SET: &str = "CanUpdateMachineSet";
pub const UPDATE_MACHINE: &str = crate::in_place::UPDATE_MACHINE;

/// Why a hook gave no usable answer. The messages are the same for the same failure, so that a condition that shows
/// one does not change on every try.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    #[error("found multiple {hook} hooks ({}): only one hook is supported", handlers.join(","))]
    TooManyHandlers { hook: String, handlers: Vec<String> },
    #[error("failed to call extension handler {handler:?}: {problem}")]
    Address { handler: String, problem: String },
    /// Nothing usable came back: no connection, a time-out, another status than 200, or no JSON.
    #[error("failed to call extension handler {handler:?}: {problem}")]
    Call { handler: String, problem: String },
    #[error("failed to call extension handler {handler:?}: got failure response with message: {message}")]
    Failure { handler: String, message: String },
    #[error(
        "failed to call extension handler {handler:?}: got unknown response status {status:?} with message: {message}"
    )]
    UnknownStatus {
        handler: String,
        status: String,
        message: String,
    },
    #[error("the answer of extension handler {handler:?} cannot be used: {problem}")]
    Patch { handler: String, problem: String },
}

impl Classified for HookError {
    fn class(&self) -> Class {
        match self {
            // An administrator has to act; both come and go with ExtensionConfigs, which are watched.
            Self::TooManyHandlers { .. } | Self::Address { .. } => Class::Terminal,
            Self::Call { .. } | Self::Failure { .. } | Self::UnknownStatus { .. } | Self::Patch { .. } => {
                Class::Transient
            }
        }
    }
}
