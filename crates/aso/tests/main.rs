//! Tests of the provider: against Cluster API Provider Azure (definitions, published templates), its plans, and its controllers at
//! work.

mod capz;
mod capz_templates;
mod drop_in;
mod life;
mod migration;
mod own_templates;
mod pages;
mod plans;
mod provider;
