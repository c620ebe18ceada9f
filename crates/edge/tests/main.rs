//! Tests of the edge crate: decisions as tables, golden stories, and properties over every state that can be reached.

mod acceptance;
mod admission;
mod claim_states;
mod claims;
mod cluster_upgrade_life;
mod cluster_upgrades;
mod explain;
mod golden;
mod hook_server;
mod hooks;
mod host_images;
mod host_suite;
mod image_life;
mod in_place_story;
mod in_place_upsets;
mod in_place_world;
mod joining;
mod life;
mod machines;
mod node_decisions;
mod node_upgrades;
mod policies;
mod real_apiserver;
mod simulated_hosts;
mod upgrade_life;
mod upgrade_world;
