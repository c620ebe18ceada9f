//! Admission: defaulting and validation as pure functions over (old, new) and a few facts, and the thin handlers that
//! fetch those facts. Each kind has its own `admit`; here is what they share.

pub mod address;
pub mod existing;
pub mod handler;
pub mod immutable;
pub mod names;
pub mod patches;

use slipway_runtime::admission::Admission;

use crate::{
    cluster, cluster_template, control_plane, control_plane_template, identity, pool, pool_template,
};

/// Every webhook of this provider.
pub fn admission() -> Vec<Admission> {
    vec![
        control_plane::admit::defaulting(),
        control_plane_template::admit::defaulting(),
        pool::admit::defaulting(),
        pool_template::admit::defaulting(),
        control_plane::admit::validating(),
        control_plane_template::admit::validating(),
        pool::admit::validating(),
        pool_template::admit::validating(),
        cluster::admit::validating(),
        cluster_template::admit::validating(),
        identity::admit::validating(),
    ]
}
