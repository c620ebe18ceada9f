//! What this provider promises to those who bring their manifests, checked from outside.

mod completeness;
mod drop_in;
mod rendering;
mod rules;
