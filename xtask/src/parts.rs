//! `cargo xtask parts`: builds the real parts into the per-user cache.

use anyhow::Result;
use slipway_testbed::{Part, parts};

#[derive(clap::Args)]
pub struct Arguments {
    /// One part (kubernetes, cluster-api, kubeadm-bootstrap, kubeadm-control-plane, clusterctl, kwok); all unless told.
    name: Option<String>,
}

pub fn run(arguments: &Arguments) -> Result<bool> {
    let wanted = match &arguments.name {
        Some(name) => vec![Part::named(name)?],
        None => Part::ALL.to_vec(),
    };
    let parts = parts::Builder::new()?.build(&wanted)?;
    println!("{}", parts.directory().display());
    Ok(true)
}
