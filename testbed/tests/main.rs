//! The testbed against itself: real processes, real failures.

mod bad_input;
mod clusters;
mod death;
mod parts;
