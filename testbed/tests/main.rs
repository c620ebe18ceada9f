//! The testbed against itself: real processes, real failures.

// A test fails by panicking.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod clusters;
mod death;
mod parts;
