//! The `slipway` command. Thin: it composes the providers and runs the command line over them.

use std::process::ExitCode;

use slipway_azure::{session::Sessions, workload::nodes::Nodes};
use slipway_runtime::Provider;

/// The providers of this binary, in the order they are listed and started.
fn providers() -> Vec<Provider> {
    // Both Azure providers sign in through the same engines: they share tokens, views and request limits.
    let sessions = Sessions::default();
    let aks = slipway_aks::access::Access::sharing(sessions.clone());
    let aso = slipway_aso::access::Access::sharing(sessions);
    let mut aks = slipway_aks::provider::with(&aks, &Nodes::default());
    let mut aso = slipway_aso::provider::with(&aso, &Nodes::default());
    // The examples of both run on the simulated Azure that the first one names.
    aks.examples.append(&mut aso.examples);
    vec![
        aks,
        aso,
        slipway_k3s::provider(),
        slipway_autoscaler::provider(),
        slipway_edge::provider(),
    ]
}

fn main() -> ExitCode {
    slipway::run(providers(), std::env::args_os())
}
