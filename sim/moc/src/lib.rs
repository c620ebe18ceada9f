//! A cloud agent of MOC for tests. It speaks the wire that docs/edge/moc.md writes down, over mutual TLS or in memory, and refuses what MOC's
//! published clients and codes say that MOC refuses: what it is too kind about, nobody knows who has not spoken to a real one.

mod guests;
mod server;
mod services;
mod world;

pub use guests::{AgentGuests, Guests, call_in};
pub use server::Server;
pub use world::{Made, Moc, Pace};
