//! The state machine: every reachable state is visited, and scenarios that read as documentation are replayed.

mod reachable;
mod scenarios;
mod world;
