//! Tests of the provider: against its peer (definitions, published templates), its plans, and its controllers at work.

mod drop_in;
mod life;
mod own_templates;
mod pages;
mod peer;
mod peer_templates;
mod plans;
mod provider;
