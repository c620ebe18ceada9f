//! Tests of the protocol over real connections on loopback.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail where they stand, as tests do"
)]

mod enrolment;
mod messages;
mod rights;
mod rotation;
mod support;
mod tunnels;
mod watching;
