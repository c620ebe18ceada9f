//! Tests of the provider against its peer: definitions, published templates.

mod drop_in;
mod peer;
mod peer_templates;
