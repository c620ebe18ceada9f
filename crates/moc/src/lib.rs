//! MOC, the Microsoft On-premises Cloud, as it is spoken to: the messages that are needed, logging in, and typed calls over any transport.
//! The wire is written down with its numbers in docs/edge/moc.md. No real MOC has been spoken to with this; `sim/moc` stands in.

pub mod access;
pub mod cloud;
pub mod edit;
mod error;
mod secret;
pub mod session;

pub use cloud::{Cloud, Transport};
pub use error::{Code, MocError, refusal};

/// What the compiler makes of `proto/`.
pub mod wire {
    #![allow(clippy::all, clippy::pedantic, reason = "generated")]

    tonic::include_proto!("moc");
    pub mod cloudagent {
        pub mod compute {
            tonic::include_proto!("moc.cloudagent.compute");
        }
        pub mod storage {
            tonic::include_proto!("moc.cloudagent.storage");
        }
        pub mod security {
            tonic::include_proto!("moc.cloudagent.security");
        }
    }
    pub use cloudagent::{compute, security, storage};
}
