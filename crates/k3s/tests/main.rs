//! One test program for the crate's pure parts: API, admission, conversion, userdata, plans and quorum.

mod acceptance;
mod admission;
mod api;
mod component;
mod conversion;
mod healing;
mod hostile_userdata;
mod plans;
mod quorum;
mod rollout;
mod stage;
mod userdata;
mod world;
