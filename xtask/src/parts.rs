//! `cargo xtask parts`: builds the real parts into the per-user cache.

use anyhow::Result;
use slipway_testbed::{Part, Upstream, parts};

#[derive(clap::Args)]
pub struct Arguments {
    /// One part (kubernetes, cluster-api, kubeadm-bootstrap, kubeadm-control-plane, clusterctl, kwok), or an upstream project (aso,
    /// capz, cluster-api-k3s-bootstrap, cluster-api-k3s-control-plane); all parts unless told, and no upstream.
    name: Option<String>,
}

pub fn run(arguments: &Arguments) -> Result<bool> {
    let builder = parts::Builder::new()?;
    if let Some(upstream) = arguments.name.as_deref().and_then(Upstream::named) {
        let parts = builder.build(&[Part::Kubernetes])?;
        println!("{}", builder.upstream(upstream, &parts)?.directory().display());
        return Ok(true);
    }
    let desired = match &arguments.name {
        Some(name) => vec![Part::named(name)?],
        None => Part::ALL.to_vec(),
    };
    println!("{}", builder.build(&desired)?.directory().display());
    Ok(true)
}
