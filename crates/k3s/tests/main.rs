//! One test program for the crate: API, admission, conversion, userdata, plans and quorum as pure functions; both
//! controllers on an apiserver in memory and the simulated K3s; the fault sweep.

mod acceptance;
mod admission;
mod api;
mod behaviours;
mod completeness;
mod component;
mod conversion;
mod driver;
mod environment;
mod extension;
mod golden;
mod healing;
mod hostile_userdata;
mod in_place;
mod judge;
mod judgement;
mod logs;
mod moved_away;
mod plans;
mod quorum;
mod rollout;
mod sweep;
mod truth;
mod unkind;
mod userdata;
mod words;
mod world;
