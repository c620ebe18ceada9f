//! What this provider promises to those who bring their manifests, checked from outside.

mod completeness;
mod drop_in;
mod fields;
mod graduation;
mod life;
mod mutations;
mod pages;
mod plans;
mod provider;
mod published_templates;
mod real_apiserver;
mod rendering;
mod rules;
mod to_azure;
