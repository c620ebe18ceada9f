//! `cargo xtask parts`: builds the real parts into the per-user cache.

use anyhow::Result;
use slipway_testbed::{Part, Peer, parts};

#[derive(clap::Args)]
pub struct Arguments {
    /// One part (kubernetes, cluster-api, kubeadm-bootstrap, kubeadm-control-plane, clusterctl, kwok), or a peer (aso,
    /// capz, cluster-api-k3s-bootstrap, cluster-api-k3s-control-plane); all parts unless told, and no peer.
    name: Option<String>,
}

pub fn run(arguments: &Arguments) -> Result<bool> {
    let builder = parts::Builder::new()?;
    if let Some(peer) = arguments.name.as_deref().and_then(Peer::named) {
        let parts = builder.build(&[Part::Kubernetes])?;
        println!("{}", builder.peer(peer, &parts)?.directory().display());
        return Ok(true);
    }
    let wanted = match &arguments.name {
        Some(name) => vec![Part::named(name)?],
        None => Part::ALL.to_vec(),
    };
    println!("{}", builder.build(&wanted)?.directory().display());
    Ok(true)
}
